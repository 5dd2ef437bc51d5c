"""What a plain Trainer trains of each method is what docs/lightning.md says."""

import re
from pathlib import Path

import pytest
import torch
from every_method import METHODS
from lightning.pytorch import Callback, Trainer
from toys import seeded, toy_data

from fedlit import FedAvg

PAGE = (Path(__file__).parents[2] / "docs" / "lightning.md").read_text()


def names(cell):
    return re.findall(r"`([\w.]+)`", cell)


def table():
    """Of each method the parts that are trained, those that are not, and whether it trains as FedAvg does."""
    lines = PAGE.partition("## Under a plain Trainer\n")[2].splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| `")]
    return {names(name)[0]: (names(trains), names(leaves), fedavg.strip()) for name, trains, leaves, fedavg, _ in rows}


TABLE = table()


class First(Callback):
    """The parameters before the first step."""

    def on_train_start(self, trainer, module):
        self.parameters = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def after_training(method):
    """The parameters before the first step, and the method after two epochs."""
    first = First()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, callbacks=[first], **quiet)
    trainer.fit(method, toy_data(num_clients=1))
    return first.parameters, method


def test_the_table_has_every_method():
    assert TABLE.keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_what_the_table_says(name):
    trains, leaves, _ = TABLE[name]
    before, method = after_training(seeded(METHODS[name]))
    moved = {path for path, parameter in method.named_parameters() if not torch.equal(parameter, before[path])}
    assert moved == {path for path in before if path.startswith(tuple(f"{part}." for part in trains))}
    for part in [*trains, *leaves]:
        assert any(path.startswith(f"{part}.") for path in before)
    assert all(path.startswith(tuple(f"{part}." for part in [*trains, *leaves])) for path in before)


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"FML"}))  # which is given two networks
def test_it_trains_as_fedavg_where_the_table_says(name):
    network, optimizer = METHODS[name].args[:2]
    _, method = after_training(seeded(METHODS[name]))
    _, fedavg = after_training(seeded(FedAvg, network, optimizer))
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        is_same = torch.equal(method.eval()(x), fedavg.eval()(x))
    assert is_same == (TABLE[name][2] == "yes")
