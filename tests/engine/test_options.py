"""Options live in one place, fixed; and what is said of a stage cannot contradict itself."""

import inspect
from dataclasses import FrozenInstanceError, fields

import pytest
from conftest import SGD, fitted, linear, toy_data

from fedlit import FedAvg, Federation, Stage
from fedlit.engine.options import Options
from fedlit.methods import EarlyStopping


def test_an_option_that_is_set_later_is_refused_by_name():
    federation = Federation(logger=False)
    with pytest.raises(AttributeError, match=r"`seed` is an option and fixed: make another Federation\(seed=99\)"):
        federation.seed = 99
    assert federation.seed == federation.options.seed == 0
    federation.should_stop = True  # what is no option may be set


def test_options_are_what_the_federation_was_given_and_cannot_be_changed():
    federation = Federation(num_rounds=3, seed=7, logger=False)
    assert (federation.options.num_rounds, federation.options.seed) == (3, 7)
    with pytest.raises(FrozenInstanceError):
        federation.options.seed = 8


def test_an_option_is_declared_once_and_listed_once():
    given = set(inspect.signature(Federation).parameters)
    assert {option.name for option in fields(Options)} == given


def test_a_name_that_is_no_option_is_unknown():
    with pytest.raises(AttributeError, match=r"^`trainer.max_epochs`: a federation has none; here it is `num_rounds`"):
        _ = Federation(logger=False).max_epochs


def test_before_its_first_fit_a_federation_has_no_state():
    with pytest.raises(RuntimeError, match="no state before its first `fit`"):
        _ = Federation(logger=False).global_state
    assert fitted(FedAvg(linear, SGD), toy_data(), num_rounds=1).global_state


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"side": "server"}, "a server trains on the public pool and uploads nothing"),
        ({"side": "server", "upload": "collect", "public": "inputs"}, "uploads nothing"),
        ({"public": "labels"}, "clients never see the labels"),
    ],
)
def test_a_stage_that_contradicts_itself_is_refused(options, told):
    with pytest.raises(ValueError, match=told):
        Stage("stage", **options)


@pytest.mark.parametrize("options", [{"patience": 0}, {"check_every": 0}])
def test_early_stopping_looks_at_least_once(options):
    with pytest.raises(ValueError, match="`patience` and `check_every` must be at least 1"):
        EarlyStopping(**options)


def test_early_stopping_cannot_look_before_its_beginning():
    with pytest.raises(ValueError, match="`first_check` must be at least 0, got -1"):
        EarlyStopping(first_check=-1)
