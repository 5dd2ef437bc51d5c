"""Arguments that an option keeps from a class that it no longer has are told."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedlit.cli.holdings import DataCLI
from fedlit.cli.kept import kept_arguments
from fedlit.cli.resolve import typed
from fedlit.partition import IID

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
        (["--data.partition", "Shards", "--data.partition", "Majority"], 500),
        (["--data.partition.samples_per_client", "null", "--data.partition", "Shards"], None),
    ],
)
def test_what_was_given_to_the_class_itself_or_is_not_there_any_more_is_not_told(typed, kept):
    assert kept_arguments(["fit", "--config", "a.yaml", *typed], came_to(samples_per_client=kept)) == []


def optimizer(kind: str, **arguments) -> dict:
    return {
        "model": {
            "class_path": "fedlit.FedAvg",
            "init_args": {"optimizer": {"class_path": kind, "init_args": arguments}},
        }
    }


def test_values_are_the_same_as_a_parser_reads_them_and_defaults_are_nobodys():
    content = optimizer("torch.optim.AdamW", lr="1e-3", betas=[0.8, 0.9], maximize=False, weight_decay=0.2)
    Path("c.yaml").write_text(yaml.safe_dump(content))
    came = optimizer("torch.optim.Adam", lr=1e-3, betas=(0.8, 0.9), maximize=False, weight_decay=0.3)
    told = kept_arguments(["fit", "--config", "c.yaml", "--model.optimizer", "Adam"], came)
    assert [line.split("`")[3] for line in told] == ["betas"]  # 1e-3 and False are Adam's own; 0.3 is another
    came["model"]["init_args"]["optimizer"]["class_path"] = "torch.optim.SGD"
    told = kept_arguments(["fit", "--config", "c.yaml", "--model.optimizer", "SGD", "--model.optimizer.lr=1"], came)
    assert [line.split("`")[3] for line in told] == ["betas"]


def test_a_method_keeps_networks_and_optimisers_in_silence_and_its_numbers_are_told():
    came = {"model": {"class_path": "fedlit.methods.FedDyn", "init_args": RECIPE["model"]["init_args"]}}
    (told,) = kept_arguments(["fit", "--config", "a.yaml", "--model", "FedDyn"], came)
    assert told.startswith("`model` is FedDyn and keeps `alpha`: 0.5, which was given to FML; `--model.alpha` says")


def test_networks_of_clients_are_found_by_their_numbers():
    nets = {"client_networks": {0: {"class_path": "A", "init_args": {"width": 3}}}}
    Path("c.yaml").write_text(yaml.safe_dump({"model": {"class_path": "FedAvg", "init_args": nets}}))
    other = {"client_networks": {0: {"class_path": "B"}}}
    Path("d.yaml").write_text(yaml.safe_dump({"model": {"init_args": other}}))
    came = {"client_networks": {0: {"class_path": "mine.B", "init_args": {"width": 3}}}}
    config = {"model": {"class_path": "fedlit.FedAvg", "init_args": came}}
    (told,) = kept_arguments(["fit", "-c", "c.yaml", "-c", "d.yaml"], config)
    assert told.startswith("`model.client_networks.0` is B and keeps `width`: 3, which was given to A;")


@pytest.mark.parametrize("order", [["--data.partition", "Shards", "--config", "a.yaml"], ["--config", "a.yaml"]])
def test_a_class_that_did_not_hold_is_not_told(order):
    config = came_to(samples_per_client=500)
    config["data"]["init_args"]["partition"]["class_path"] = "fedlit.partition.Majority"
    assert kept_arguments(["fit", *order], config) == []


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


def test_what_is_typed_wins_over_a_recipe_that_stands_behind_it():
    with typed(["fit", "--data.partition", "Shards", "--config", "moe_fashion.yaml", "--data.num_clients=4"]):
        data = DataCLI().datamodule
    assert (type(data.partition).__name__, data.num_clients) == ("Shards", 4)


class Named(IID):
    """A partition that has a name."""

    def __init__(self, name: str = "none", other: str | None = "x") -> None:
        super().__init__()
        self.name = name
        self.other = other


@pytest.mark.parametrize("text", ["None", "a=None"])
def test_text_stays_text(text):
    with typed(["fit", "--data.partition", f"{__name__}.Named", "--data.partition.name", text]):
        assert DataCLI().datamodule.partition.name == text


@pytest.mark.slow
def test_the_command_tells_it_and_takes_what_it_is_told():
    call = [sys.executable, "-m", "fedlit", "partition", "--config", "moe_fashion.yaml", "--data.partition", "Shards"]
    told = subprocess.run(call, capture_output=True, text=True, check=True)
    assert told.stderr == f"fedlit: note: {LINE}\n"
    said = subprocess.run([*call, "--data.partition.samples_per_client=null"], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout != told.stdout
