# `make fit` and `make test` set everything up by themselves; `make help` lists the rest.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS = 1

.PHONY: help fit test test-slow lint bench
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch torchvision  # torch first: the pinned build, then what builds on it
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

fit: .venv/ready  ## train FML on the embedded data, about a minute
	$(BIN)/fedlit fit --config fml_fashion.yaml

test: .venv/ready  ## lint and all tests but the slow ones
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

test-slow: .venv/ready  ## the slow tests; FEDLIT_DATA=folder adds those on full data sets
	$(BIN)/python -m pytest -q -n 2 -m slow

lint: .venv/ready  ## format and fix what can be fixed
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: .venv/ready  ## time against hand-written PyTorch loops, about ten minutes
	$(BIN)/python -m benchmarks
