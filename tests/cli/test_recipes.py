"""Every recipe that comes with fedlit builds and runs a round."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from fedlit.cli.app import main

CONFIGS = Path(__file__).parents[2] / "configs"
SAMPLE = [
    "fml_v1_table2_mnist_mlp_fml.yaml",
    "fml_v2_table1_mnist_lenet5_niid1_fedprox.yaml",
    "fml_v2_fig5_fml.yaml",
    "fedmmd_fig4d_l2_0001.yaml",
    "fedfusion_table1_c_multi.yaml",
    "fedfusion_fig6_conv.yaml",
    "moe_table2_p09.yaml",
    "moe_fig4b.yaml",
]
GREY, COLOUR = (28, 28), (32, 32, 3)
SHAPES = {"mnist": GREY, "fashion_mnist": GREY, "cifar10": COLOUR, "cifar100": COLOUR, "cinic10": COLOUR}
FEWER = ["--data.batch_size", "8", "--data.partition.samples_per_client", "60"]  # or DLAD takes minutes a recipe
SIZES = {"cifar100": {"train": 30000, "test": 1000}, "cinic10": {"train": 6000, "test": 20, "valid": 500}}


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    """Noise in the shape of each data set, with as few samples as the recipes' partitions allow."""
    root = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        classes, arrays = (100 if name == "cifar100" else 10), {}
        for split, size in SIZES.get(name, {"train": 6000, "test": 1000}).items():
            arrays[f"{split}_images"] = draw.integers(0, 256, (size, *shape), dtype=np.uint8)
            arrays[f"{split}_labels"] = (np.arange(size) % classes).astype(np.uint8)
        np.savez(root / f"{name}.npz", **arrays)
    return root


def marked(recipe: str):
    """Each kind of paper recipe once here, all of them in the slow tests, and ten ResNets."""
    swift = recipe != "dlad_cifar10.yaml" if "papers/" not in recipe else recipe.removeprefix("papers/") in SAMPLE
    return pytest.param(recipe, marks=() if swift else pytest.mark.slow)


RECIPES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("recipe", [marked(recipe) for recipe in RECIPES])
def test_the_recipe_runs(recipe, data_root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedlit"])
    fewer = FEWER if "dlad" in recipe else []
    main(["fit", "--config", recipe, "--data.root", str(data_root), "--trainer.fast_dev_run", "true", *fewer])
    assert "round 1/" in capsys.readouterr().out
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_recipe_says_how_to_run_it(recipe):
    assert (CONFIGS / recipe).read_text().startswith(f"# fedlit fit --config {recipe}")


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe.startswith("papers/")])
def test_a_paper_recipe_tells_what_the_paper_says(recipe):
    text = (CONFIGS / recipe).read_text()
    assert re.search(r"^# (Federated Mutual Learning v[12]|(Yao|Zec|Ma) et al\.), (table|figure) ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("recipe", "without"),
    [("fml_catfish_fashion.yaml", "client_networks"), ("fml_weak_client_fashion.yaml", "untrained_clients")],
)
def test_a_recipe_with_an_odd_client_runs_without_it_as_its_head_says(recipe, without, monkeypatch, capsys):
    option = f"--model.{without} null"
    assert option in (CONFIGS / recipe).read_text()
    monkeypatch.setattr("sys.argv", ["fedlit"])
    main(["fit", "--config", recipe, "--trainer.fast_dev_run", "true", *option.split()])
    assert "round 1/" in capsys.readouterr().out
