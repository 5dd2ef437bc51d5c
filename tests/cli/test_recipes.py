"""Every recipe that comes with fedlit builds and runs a round."""

import inspect
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import fedlit.methods
from fedlit import Federation
from fedlit.cli.app import main
from fedlit.cli.methods import methods_of
from fedlit.cli.study_call import resolve
from fedlit.studies.study import Cell, read_study

CONFIGS = Path(__file__).parents[2] / "configs"
SWIFT = ["papers/fml_v2_mnist.yaml", "papers/fedfusion_mnist.yaml", "fedavg_cifar10.yaml"]
VARIANTS = ["fedavgm_fashion.yaml", "fedyogi_fashion.yaml", "fml_ramp_fashion.yaml"]  # an option or two of another
VARIANTS += ["fml_catfish_fashion.yaml", "fml_weak_client_fashion.yaml"]  # run without their odd clients, below
FEWER = ["--data.batch_size", "8", "--data.partition.samples_per_client", "60"]  # or DLAD takes minutes a recipe
FEW_IMAGES = ["--data.dataset", "few_cifar10.npz"]
NEED_ALL = ("papers/", "dlad", "moe")  # whose partitions want thousands of images
FILES = {path.relative_to(CONFIGS).as_posix(): path.read_text() for path in sorted(CONFIGS.rglob("*.yaml"))}
STUDIES = [name for name, text in FILES.items() if "\nrows:" in text]  # those of papers are tested in test_papers.py
RECIPES = [name for name in FILES if name not in STUDIES]


def marked(recipe: str):
    """One of each method on the embedded data here, with some of the others, which are all run by the slow tests."""
    is_embedded = "papers/" not in recipe and not recipe.endswith("cifar10.yaml")
    is_swift = recipe in SWIFT or (is_embedded and recipe not in VARIANTS)
    return pytest.param(recipe, marks=() if is_swift else pytest.mark.slow)


def fewer(recipe: str) -> list[str]:
    """What makes a recipe's one round short."""
    if "dlad" in recipe:
        return FEWER
    if recipe.endswith("cifar10.yaml") and not recipe.startswith(NEED_ALL):
        return FEW_IMAGES
    return []


@pytest.mark.parametrize("recipe", [marked(recipe) for recipe in RECIPES])
def test_the_recipe_runs(recipe, data_root, tmp_path, capsys):
    main(["fit", "--config", recipe, "--data.root", str(data_root), "--trainer.fast_dev_run", "true", *fewer(recipe)])
    assert "round 1/" in capsys.readouterr().out
    assert os.listdir(tmp_path) == []


def specs(part) -> Iterator[dict]:
    """Everything in a recipe that names a class."""
    if isinstance(part, dict):
        if "class_path" in part:
            yield part
        for inner in part.values():
            yield from specs(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from specs(inner)


def strange_options(spec: dict) -> set[str]:
    """Those that the class does not take, nor those whose options it hands on."""
    module, _, name = spec["class_path"].rpartition(".")
    kind = getattr(import_module(module), name)
    known: set[str] = set()
    for part in kind.__mro__:
        taken = inspect.signature(part.__init__).parameters
        known |= taken.keys()
        if not any(option.kind is option.VAR_KEYWORD for option in taken.values()):
            break
    return spec.get("init_args", {}).keys() - known


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_recipe_names_classes_that_there_are_and_options_that_they_take(recipe):
    config = yaml.safe_load(FILES[recipe])
    found = list(specs(config))
    assert config["model"] in found
    assert config.get("trainer", {}).keys() <= inspect.signature(Federation).parameters.keys()
    for spec in found:
        assert strange_options(spec) == set()


def test_an_option_that_a_class_does_not_take_would_be_noticed():
    spec = {"class_path": "fedlit.methods.FedProx", "init_args": {"network": {}, "weighting": "uniform", "nu": 1}}
    assert strange_options(spec) == {"nu"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_recipe_says_how_to_run_it(recipe):
    assert (CONFIGS / recipe).read_text().startswith(f"# fedlit fit --config {recipe}")


OURS = [study for study in STUDIES if not study.startswith("papers/")]


def changed_rows(study: str) -> list[Cell]:
    """A cell of every row that has options."""
    cells = {cell.row: cell for cell in read_study(CONFIGS / study).cells if any(cell.options)}
    return list(cells.values())


@pytest.mark.parametrize("study", OURS)
def test_a_study_says_how_to_run_it_and_is_of_recipes_that_there_are(study):
    assert FILES[study].startswith(f"# fedlit compare {study}\n")
    cells = read_study(CONFIGS / study).cells
    assert {cell.recipe for cell in cells} <= set(RECIPES)  # which run a round, above


@pytest.mark.slow
@pytest.mark.parametrize("study", OURS)
def test_every_row_of_a_study_is_built(study):
    for cell in changed_rows(study):
        resolve(cell, [])


def methods_in(study: str) -> set[str]:
    recipes = {cell.recipe for cell in read_study(CONFIGS / study).cells}
    return {yaml.safe_load(FILES[recipe])["model"]["class_path"].rpartition(".")[2] for recipe in recipes}


def test_the_comparison_of_methods_has_every_method_but_those_for_other_data():
    every = {method.__name__ for method in methods_of(fedlit.methods)}
    assert methods_in("studies/methods_fashion.yaml") == every - {"MixtureOfExperts", "DLAD"}
    assert methods_in("studies/leaderboard.yaml") == every


@pytest.mark.parametrize(
    ("recipe", "without"),
    [("fml_catfish_fashion.yaml", "client_networks"), ("fml_weak_client_fashion.yaml", "untrained_clients")],
)
def test_a_recipe_with_an_odd_client_runs_without_it_as_its_head_says(recipe, without, capsys):
    option = f"--model.{without} null"
    assert option in (CONFIGS / recipe).read_text()
    main(["fit", "--config", recipe, "--trainer.fast_dev_run", "true", *option.split()])
    assert "round 1/" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fml", "fedavg", "ditto", "scaffold"])
def test_a_recipe_that_takes_hours_says_so_and_names_a_small_one(name):
    head = FILES[f"{name}_cifar10.yaml"].partition("\nseed_everything")[0]
    assert re.search(rf"# About \d+ minutes a round and \d+ hours .*; {name}_fashion\.yaml is small", head)
