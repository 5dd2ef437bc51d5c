"""Every recipe that comes with fedlit builds and runs a round."""

import os
import re
from pathlib import Path

import pytest

from fedlit.cli.app import main

CONFIGS = Path(__file__).parents[2] / "configs"
STUDY = re.compile(r"_(table|fig)\d")  # in the names of the papers' studies; their tests are in test_papers.py
SWIFT = ["papers/fml_v2_mnist.yaml", "papers/fedfusion_mnist.yaml", "papers/moe_fashion.yaml"]
FEWER = ["--data.batch_size", "8", "--data.partition.samples_per_client", "60"]  # or DLAD takes minutes a recipe
RECIPES = sorted(
    path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml") if not STUDY.search(path.name)
)


def marked(recipe: str):
    """Some of the papers' recipes here, all of them in the slow tests, and ten ResNets."""
    is_swift = recipe in SWIFT or ("papers/" not in recipe and recipe != "dlad_cifar10.yaml")
    return pytest.param(recipe, marks=() if is_swift else pytest.mark.slow)


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
def test_a_paper_recipe_tells_whose_it_is(recipe):
    text = (CONFIGS / recipe).read_text()
    assert re.search(r"^# (Federated Mutual Learning v[12]|(Yao|Zec|Ma) et al\.), ", text, re.MULTILINE)


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
