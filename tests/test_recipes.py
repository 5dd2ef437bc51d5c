"""Every recipe that comes with fedlit builds and runs a round."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedlit.cli import main

CONFIGS = Path(__file__).parents[1] / "configs"
SHAPES = {"mnist": (28, 28), "fashion_mnist": (28, 28), "cifar10": (32, 32, 3), "cifar100": (32, 32, 3)}


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    """Noise in the shape of each data set, with as few samples as the recipes' partitions allow."""
    root = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        classes, arrays = (100 if name == "cifar100" else 10), {}
        for split, size in (("train", 3000), ("test", 1000)):
            arrays[f"{split}_images"] = draw.integers(0, 256, (size, *shape), dtype=np.uint8)
            arrays[f"{split}_labels"] = np.arange(size, dtype=np.uint8) % classes
        np.savez(root / f"{name}.npz", **arrays)
    return root


@pytest.mark.parametrize("recipe", sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml")))
def test_the_recipe_runs(recipe, data_root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedlit"])
    main(["fit", "--config", recipe, "--data.root", str(data_root), "--trainer.fast_dev_run", "true"])
    assert "round 1/" in capsys.readouterr().out
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.name)
def test_the_recipe_says_how_to_run_it(path):
    assert path.read_text().startswith(f"# fedlit fit --config {path.relative_to(CONFIGS)}")
