# `make fit` and `make test` set everything up by themselves; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
export OMP_NUM_THREADS = 1

.PHONY: help fit test style types units test-oldest test-slow lint bench pages notebooks docs
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/ready: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) torch torchvision  # torch first: the pinned build, then what builds on it
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[dev]'
	@touch $@

fit: $(VENV)/ready  ## train FML on the embedded data, about a minute
	$(BIN)/fedlit fit --config fml_fashion.yaml

test: style  ## lint, types, and all tests but the slow ones
	@$(MAKE) --no-print-directory -j 2 types units  # side by side: without a cache, mypy takes half a minute

style: $(VENV)/ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo

types: $(VENV)/ready  ## mypy alone
	$(BIN)/mypy

units: $(VENV)/ready
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

# Among themselves, old versions of others call what is deprecated; with the newest ones these warnings are errors.
test-oldest: export PYTEST_ADDOPTS = -W default::DeprecationWarning -W default::PendingDeprecationWarning -W default::FutureWarning
test-oldest:  ## the same tests with the oldest versions that fedlit supports, in a venv of their own
	$(MAKE) units VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt PYTHON=python3.11

test-slow: $(VENV)/ready  ## the slow tests; FEDLIT_DATA=folder adds those on full data sets
	$(BIN)/python -m pytest -q -n 2 -m slow

lint: $(VENV)/ready  ## format and fix what can be fixed
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(VENV)/ready  ## time against hand-written PyTorch loops, about ten minutes on a quiet core
	$(BIN)/python -m benchmarks

pages: $(VENV)/ready  ## the pages of the papers and the leaderboard, from the runs in docs/papers/runs
	$(BIN)/python -m tools.paper_pages

$(VENV)/docs-ready: $(VENV)/ready
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[docs]'
	@touch $@

notebooks: $(VENV)/ready  ## execute docs/notebooks and store their outputs
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[notebooks]'
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tools.run_notebooks

docs: $(VENV)/docs-ready  ## the pages, into docs/_build; once installed, without a network
	$(BIN)/python -m sphinx -n -W --keep-going -q docs docs/_build
	@echo "docs/_build/index.html"
