"""Numbers that options may be, and slips of Python code that the command line would have noticed."""

from functools import partial

import pytest
import torch
from toys import SGD, fitted, linear, toy_data

from fedlit import FedAvg, Federation
from fedlit.augment import Flip
from fedlit.methods import FML, FedProx
from fedlit.partition import IID


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "a finite number, got nan"),
        (10**400, "a finite number"),
        (1e300, r"at most 1e\+10, got 1e\+300"),
        (-1, "at least 0, got -1"),
        ("1", "a number, got '1'"),
        (True, "a number, got True"),
        (None, "a number, got None"),
    ],
)
def test_what_is_no_number_or_beyond_its_bounds_is_refused(value, message):
    with pytest.raises(ValueError, match=f"`model.mu` must be {message}"):
        FedProx(linear, SGD, mu=value)


@pytest.mark.parametrize(
    ("slip", "message"),
    [
        (lambda: Federation(num_rounds="3"), "`trainer.num_rounds` must be a whole number, got '3'"),
        (lambda: Federation(num_rounds=None), "`trainer.num_rounds` must be a whole number, got None"),
        (lambda: Federation(batch_norm="mine"), "`trainer.batch_norm` must be one of average, local, got 'mine'"),
        (lambda: Federation(client_epochs=[1]), "`trainer.client_epochs` must be a mapping from client id"),
        (lambda: Federation(seed="x"), "`trainer.seed` must be a whole number"),
        (lambda: toy_data(partition=IID), "`data.partition` must be a partition"),
        (lambda: toy_data(augmentation=Flip()), "`data.augmentation` must be a list"),
        (lambda: toy_data(augmentation=[Flip]), "`data.augmentation` must hold augmentations"),
        (lambda: toy_data(validation="tset"), "`data.validation` must be one of train, test, reserve, got 'tset'"),
        (lambda: toy_data(client_batch_sizes={"a": 2}), "`data.client_batch_sizes` names client 'a'"),
        (lambda: FML(linear, linear, SGD, share="x"), "`model.share` must be one of all, extractor, got 'x'"),
        (lambda: FML(linear, linear, SGD, alpha_ramp=0.3), "`model.alpha_ramp` must be a Ramp, got 0.3"),
        (lambda: fitted(FedAvg(linear, SGD, weighting="x")), "`model.weighting` must be one of examples, uniform"),
        (lambda: fitted(FedAvg(linear, SGD), data=(1, 2)), "`data` must be a FederatedData"),
    ],
)
def test_a_slip_of_python_code_is_refused_by_its_option(slip, message):
    with pytest.raises(ValueError, match=message):
        slip()


class Own(torch.optim.SGD):
    """A user's own, with a setting that nobody checks."""

    def __init__(self, params, lr=0.1, warmth=1.0):
        super().__init__(params, lr)
        self.param_groups[0]["warmth"] = warmth


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (partial(torch.optim.Adam, betas=(0.9, float("nan"))), "`lr`|Invalid beta"),
        (partial(torch.optim.SGD, lr=float("nan")), "`lr` must be a finite number, got nan"),
        (partial(Own, warmth=float("inf")), "`warmth` must be a finite number, got inf"),
        (partial(torch.optim.SGD, lr=0.1, differentiable=True), "in-place operation"),
        (partial(torch.optim.SparseAdam, lr=0.1), "SparseAdam does not support dense gradients"),
    ],
)
def test_whatever_an_optimiser_is_given_is_looked_at_before_the_first_round(optimizer, message):
    with pytest.raises(ValueError, match=f"^`model.optimizer` of client 0: .*({message})"):
        fitted(FedAvg(linear, optimizer))


def test_an_optimiser_of_ones_own_with_numbers_that_can_be_right_trains():
    assert fitted(FedAvg(linear, Own), num_rounds=1).state.round == 1
