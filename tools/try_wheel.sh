#!/bin/bash
# Builds the wheel and tries it as a user has it: installed into an empty environment, run from an empty folder, without
# the checkout. Takes some minutes, most of them to install torch; WORK=folder keeps what was made.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
constraints=$root/constraints.txt
if [ -z "${WORK:-}" ]; then
  WORK=$(mktemp -d)
  trap 'rm -rf "$WORK"' EXIT
fi
mkdir -p "$WORK/source" "$WORK/empty"
export OMP_NUM_THREADS=1

echo "== build and check"
git -C "$root" archive HEAD | tar -x -C "$WORK/source"  # what is committed, and nothing that lies beside it
"$python" -m venv "$WORK/tools"
"$WORK/tools/bin/pip" install --quiet build twine
"$WORK/tools/bin/python" -m build --outdir "$WORK/dist" "$WORK/source" > "$WORK/build.log"
"$WORK/tools/bin/twine" check --strict "$WORK"/dist/*
wheel=$(ls "$WORK"/dist/*.whl)

echo "== install into an empty environment"
"$python" -m venv "$WORK/venv"
"$WORK/venv/bin/pip" install --quiet -c "$constraints" torch torchvision
"$WORK/venv/bin/pip" install --quiet -c "$constraints" "$wheel"

echo "== a recipe, from an empty folder"
cd "$WORK/empty"
"$WORK/venv/bin/fedlit" --version
"$WORK/venv/bin/fedlit" fit --config fml_fashion.yaml --trainer.num_rounds 1
test -s lightning_logs/version_0/metrics.csv
test -s lightning_logs/version_0/checkpoints/last.ckpt

echo "== extras"
"$WORK/venv/bin/pip" install --quiet --dry-run -c "$constraints" "$wheel[report,dp,docs,onnx]"
"$WORK/venv/bin/pip" install --quiet --dry-run "$wheel[flower]"  # pins what others need newer

echo "== tests of what is installed"
"$WORK/venv/bin/pip" install --quiet -c "$constraints" "$wheel[report]" pytest
mkdir tests
cp "$WORK"/source/tests/*.py tests
cp "$WORK"/source/pyproject.toml .
"$WORK/venv/bin/python" -m pytest -q -m "not slow" --import-mode=importlib tests/test_aggregation.py tests/test_partition.py tests/test_tasks.py
cd "$WORK"
"$WORK/venv/bin/python" -m pytest -q --doctest-modules --doctest-ignore-import-errors -p no:cacheprovider --pyargs fedlit.losses fedlit.aggregation fedlit.encoders
