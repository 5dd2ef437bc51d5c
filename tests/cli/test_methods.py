"""`fedlit methods` says what the methods declare, and what they declare is so."""

import inspect
import re
import sys
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import pytest
import torch
import yaml

from fedlit import methods
from fedlit.cli.methods import card_of, main, methods_of, own_cards
from fedlit.methods import FML, FedBN
from fedlit.networks import LeNet5, McMahanCNN

ROOT = Path(__file__).parents[2]
SGD = partial(torch.optim.SGD, lr=0.1)
OWN = methods_of(methods)


def made(method):
    if method is FML:
        return FML(McMahanCNN, McMahanCNN, SGD)
    if method is FedBN:  # which keeps something only of a network that has such layers
        return FedBN(partial(LeNet5, in_channels=1, batch_norm=True), SGD)
    return method(McMahanCNN, SGD)


def test_every_method_has_a_card():
    exported = [getattr(methods, name) for name in methods.__all__]
    kinds = {thing for thing in exported if inspect.isclass(thing) and issubclass(thing, methods.FederatedModule)}
    assert set(OWN) == kinds - {methods.FederatedModule}
    assert len(OWN) == 25
    assert [method.__name__ for method in OWN if not card_of(method).use] == []


@cache
def methods_of_recipes() -> dict[str, str]:
    found = {}
    for path in (ROOT / "configs").glob("*.yaml"):
        found[path.name] = yaml.safe_load(path.read_text())["model"]["class_path"].rpartition(".")[2]
    return found


@pytest.mark.parametrize("method", OWN)
def test_the_recipes_of_a_card_are_those_of_the_method(method):
    of_method = {recipe for recipe, name in methods_of_recipes().items() if name == method.__name__}
    assert set(card_of(method).recipes) == of_method


@pytest.mark.parametrize("method", OWN)
def test_a_card_names_the_stages_and_whether_anything_travels_or_stays(method):
    module = made(method)
    card = card_of(method)
    stages = module.configure_stages()
    assert card.stages == tuple(stage.name for stage in stages)
    travels = any(stage.upload != "none" for stage in stages if stage.side == "clients")
    assert (card.travels != "nothing") == travels
    elsewhere = (*module.server_only, *module.collected, *module.download_only, *module.upload_only)
    kept = [name for name in module.state_dict() if not module.is_shared(name) and not name.startswith(elsewhere)]
    local = [stage for stage in stages if stage.upload == "none" and stage.side == "clients"]
    assert (card.stays != "nothing") == bool(kept or (local and not module.collected))


def test_the_table_has_a_row_for_every_method(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    main([])
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["method", "paper", "travels", "stays", "stages", "recipes", "invariant"]
    assert [row.split()[0] for row in rows] == [method.__name__ for method in OWN]
    assert "mu = 0 is FedAvg" in next(row for row in rows if row.startswith("FedProx"))


def test_the_table_is_read_from_files_and_is_what_the_classes_declare():
    assert own_cards() == {method.__name__: asdict(card_of(method)) for method in OWN}
    assert [*own_cards()] == [method.__name__ for method in OWN]


@pytest.mark.parametrize("name", ["FML", "fml", "fedlit.methods.FML"])
def test_one_method_is_shown_with_its_equations_and_options(name, capsys):
    main([name])
    said = capsys.readouterr().out
    assert "L_meme     = beta  * CE(p_meme, y)" in said
    assert "travels    the meme" in said
    assert "use        Clients want a network of their own" in said
    assert "--model.alpha = 0.5\n      Weight in [0, 1] of the labels in the personal loss" in said


MINE = """
from fedlit import FedAvg
from fedlit.methods import Card, DLAD

class Mine(FedAvg):
    \"\"\"My own.\"\"\"
    card = Card(invariant="x = 0 is FedAvg", travels="half")

class Quiet(FedAvg):
    pass
"""


def test_a_users_own_method_is_shown_where_it_declares_a_card(capsys, monkeypatch):
    Path("looked_at.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "looked_at", raising=False)
    main(["looked_at"])
    said = capsys.readouterr().out
    assert "x = 0 is FedAvg" in said
    assert "Quiet" not in said  # its parent's card is not its own
    main(["looked_at.Quiet"])
    assert "travels" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FMML", r"there is no method 'FMML'. Did you mean FML\?$"),
        ("nowhere.Mine", r"there is no method 'nowhere.Mine'. There are .*; one of yours is given as module.Class.$"),
        ("torch.nn.Linear", r"'torch.nn.Linear' is no method, nor a module with one that declares a `card`.$"),
    ],
)
def test_what_is_no_method_is_refused_in_one_line(name, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([name])
    assert re.search(message, capsys.readouterr().err.rstrip())
