"""Arguments that an option keeps from a class that it no longer has are told."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedlit.cli.holdings import DataCLI
from fedlit.cli.kept import kept_arguments
from fedlit.cli.resolve import typed

RECIPE = {
    "model": {"class_path": "fedlit.methods.FML", "init_args": {"alpha": 0.5, "optimizer": {"class_path": "SGD"}}},
    "data": {
        "class_path": "fedlit.data.FederatedData",
        "init_args": {
            "augmentation": [{"class_path": "Crop", "init_args": {"pad": 2}}, {"class_path": "Flip"}],
            "partition": {
                "class_path": "fedlit.partition.Majority",
                "init_args": {"p": 0.9, "samples_per_client": 500},
            },
        },
    },
}


@pytest.fixture(autouse=True)
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(yaml.safe_dump(RECIPE))


def came_to(**partition) -> dict:
    """The config that a parser made."""
    given = {"class_path": "fedlit.partition.Shards", "init_args": {"per_client": 2, **partition}}
    return {"data": {"class_path": "fedlit.data.FederatedData", "init_args": {"partition": given}}}


LINE = (
    "`data.partition` is Shards and keeps `samples_per_client`: 500, which was given to Majority; "
    "`--data.partition.samples_per_client` says otherwise."
)


@pytest.mark.parametrize(
    "typed",
    [
        ["--data.partition", "Shards"],
        ["--data.partition=fedlit.partition.Shards"],
        ["--data.init_args.partition", "Shards"],
        ["--data.partition.class_path", "Shards"],
        ["--data.partition", "{class_path: Shards, init_args: {per_client: 2}}"],
        ["--data.partition", "Shards", "--data.partition.per_client", "2"],
    ],
)
def test_an_argument_of_another_class_is_told_however_the_new_one_was_typed(typed):
    assert kept_arguments(["fit", "--config", "a.yaml", *typed], came_to(samples_per_client=500)) == [LINE]


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ([], 500),
        (["--data.partition", "Majority"], 500),
        (["--data.partition", "Shards", "--data.partition.samples_per_client", "500"], 500),
        (["--data.partition", "{class_path: Shards, init_args: {samples_per_client: 500}}"], 500),
        (["--data.partition", "Shards", "--data.partition.samples_per_client", "null"], None),
        (["--data.partition", "Dirichlet"], None),  # which has no such argument
        (["--model", "FedAvg"], 500),  # a method is to keep what a recipe gave another
    ],
)
def test_what_was_given_to_the_class_itself_or_is_not_there_any_more_is_not_told(typed, kept):
    assert kept_arguments(["fit", "--config", "a.yaml", *typed], came_to(samples_per_client=kept)) == []


def test_a_second_recipe_keeps_what_the_first_gave():
    second = {"data": {"init_args": {"partition": {"class_path": "Shards"}}}}
    Path("b.yaml").write_text(yaml.safe_dump(second))
    config = came_to(samples_per_client=500)
    assert kept_arguments(["fit", "-c", "a.yaml", "--config=b.yaml"], config) == [LINE]
    assert kept_arguments(["fit", "-c", "b.yaml", "--config=a.yaml"], config) == []


@pytest.mark.parametrize(("text", "value"), [("null", None), ("5", 5)])
def test_an_option_two_classes_deep_takes_null(text, value):
    with typed(["fit", "--data.partition", "Shards", "--data.partition.samples_per_client", text]):
        data = DataCLI().datamodule
    assert data.partition.samples_per_client == value


@pytest.mark.slow
def test_the_command_tells_it_and_takes_what_it_is_told():
    call = [sys.executable, "-m", "fedlit", "partition", "--config", "moe_fashion.yaml", "--data.partition", "Shards"]
    told = subprocess.run(call, capture_output=True, text=True, check=True)
    assert told.stderr == f"fedlit: note: {LINE}\n"
    said = subprocess.run([*call, "--data.partition.samples_per_client=null"], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout != told.stdout
