"""A client that fails is left out: the round ends, bit for bit, as if the client had not been drawn.

The full form tries every kind of failure with every method: `pytest -m slow tests/promises/test_misbehaviour.py`.
"""

import ctypes
import json
import os
import sys
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from every_method import METHODS, SGD, Normalised, data_for
from torch import nn
from toys import fitted, same, states

from fedlit import FederatedModule, methods
from fedlit.aggregation import weighted_mean
from fedlit.cli.methods import methods_of
from fedlit.server_optimizers import FedAdam

BAD = 1  # who fails: one client comes before it, and one after it
ROUNDS = {"FedMD": 4}  # in which round, where not in the second: its first rounds are on public data


class Own(FederatedModule):
    """A method of a user's own: a shared trunk, a personal head, and a rule that it has written itself."""

    shared = ("network.extractor.",)

    def __init__(self) -> None:
        super().__init__(SGD)
        self.network = Normalised()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def aggregate(self, uploads, current):
        return {**weighted_mean(uploads)}


ALL = {**METHODS, "Own": Own, "FedAvg with FedAdam": METHODS["FedAvg"]}
OPTIONS = {"FedAvg with FedAdam": {"server_optimizer": partial(FedAdam, lr=0.1)}}


def raising(error: BaseException):
    def action(module):
        raise error

    return action


def filled(value: float, of: str = "parameters"):
    def action(module):
        with torch.no_grad():
            for tensor in getattr(module, of)():
                if tensor.is_floating_point():
                    tensor.fill_(value)

    return action


def layer(module) -> nn.Linear:
    return next(part for part in module.modules() if isinstance(part, nn.Linear))


def cancel_out(module) -> None:
    """Huge values whose sum is small."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.view(-1)[::2] = 3e38
            parameter.view(-1)[1::2] = -3e38


def reshape(module) -> None:
    layer(module).bias = nn.Parameter(torch.zeros(7))


def add_parameter(module) -> None:
    layer(module).extra = nn.Parameter(torch.zeros(2))


def delete_parameter(module) -> None:
    del layer(module).bias


def leave_behind(module) -> None:
    """What a later client would notice, if it were not restored."""
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(99)
    module.requires_grad_(False)
    raise RuntimeError("and died of it")


@dataclass(frozen=True)
class Kind:
    """A kind of failure: in which hook, what the client does there, and what it needs."""

    where: str
    action: Any
    timeout: float | None = None
    only: tuple[str, ...] = ()


START, STEP, END, WEIGHT = "on_client_start", "training_step", "on_client_end", "client_weight"
COUNTING = ("FD", "FedProto")
KINDS = {
    "raises in configure_client": Kind("configure_client", raising(ValueError("no"))),
    "raises in configure_optimizers": Kind("configure_optimizers", raising(TypeError("no"))),
    "raises in a step": Kind(STEP, raising(ValueError("\udcff\ud800 \x1b[2J"))),
    "raises in on_train_batch_end": Kind("on_train_batch_end", raising(OSError("no"))),
    "raises in on_client_end": Kind(END, raising(AssertionError())),
    "raises in client_weight": Kind(WEIGHT, raising(ZeroDivisionError())),
    "MemoryError": Kind(STEP, raising(MemoryError())),
    "sys.exit": Kind(STEP, lambda module: sys.exit(0)),
    "hangs": Kind(STEP, lambda module: time.sleep(1000), timeout=2.0),
    "segmentation fault": Kind(STEP, lambda module: ctypes.string_at(0), timeout=60.0),
    "is killed": Kind(END, lambda module: os.kill(os.getpid(), 9), timeout=60.0),
    "nan": Kind(END, filled(float("nan"))),
    "inf": Kind(END, filled(float("inf"))),
    "1e25": Kind(END, filled(1e25)),
    "huge values that cancel out": Kind(END, cancel_out),
    "nan in buffers": Kind(END, filled(float("nan"), "buffers")),
    "negative counts": Kind(END, lambda module: module.counts.fill_(-1), only=COUNTING),
    "impossible counts": Kind(END, lambda module: module.counts.fill_(2**62), only=COUNTING),
    "a norm of almost nothing": Kind(END, lambda module: module.norm.fill_(1e-38), only=("FedNova",)),
    "double": Kind(END, lambda module: module.double()),
    "meta": Kind(END, lambda module: module.to("meta")),
    "another shape": Kind(END, reshape),
    "one name more": Kind(END, add_parameter),
    "one name less": Kind(END, delete_parameter),
    "a metric that is no number": Kind(STEP, lambda module: module.log("loss", "not a number")),
    **{f"weight {value}": Kind(WEIGHT, lambda module, v=value: v) for value in (0, -1, float("nan"), 1e300, None)},
    "leaves modes, seeds and frozen weights behind": Kind(START, leave_behind),
}
QUICK = [
    ("raises in a step", "FedAvg"),
    ("sys.exit", "DLAD"),
    ("segmentation fault", "FML"),
    ("huge values that cancel out", "FedAvg"),
    ("nan", "FedAvg with FedAdam"),
    ("negative counts", "FD"),
    ("a norm of almost nothing", "FedNova"),
    ("double", "FML"),
    ("meta", "Own"),
    ("weight 1e+300", "FedProx"),
    ("leaves modes, seeds and frozen weights behind", "Own"),
]


def failing(kind: type, where: str, action, number: int) -> type:
    """A method's class in which client BAD fails in a round."""

    def hook(self, *args):
        due = self.client is not None and (self.client.id, self.client.round) == (BAD, number)
        if due and where == WEIGHT:
            return action(self)
        if due and where != END:
            action(self)
        result = getattr(kind, where)(self, *args)
        if due and where == END:
            action(self)
        return result

    return type(f"Failing{kind.__name__}", (kind,), {where: hook})


def run(name: str, kind: Kind | None):
    torch.manual_seed(0)
    method = ALL[name]()
    if kind is not None:
        parts = [part for part in method.modules() if isinstance(part, FederatedModule)]
        if kind.where.startswith("on_train"):  # of a method in stages, those have such hooks
            parts = parts[1:] or parts
        for part in parts:
            part.__class__ = failing(type(part), kind.where, kind.action, ROUNDS.get(name, 2))
    timeout = None if kind is None else kind.timeout
    return fitted(method, data_for(name), client_timeout=timeout, **OPTIONS.get(name, {}))


@cache
def at_once(name: str):
    """A run in which the client raises before it has done anything."""
    return states(run(name, Kind(START, raising(ValueError("no")))))


def check(kind: str, method: str) -> None:
    before = torch.is_grad_enabled(), torch.get_default_dtype()
    federation = run(method, KINDS[kind])
    events = map(json.loads, Path(federation.log_dir, "events.jsonl").read_text().splitlines())
    left_out = [(event["client"], event["round"]) for event in events if event["event"] == "left_out"]
    assert left_out == [(BAD, ROUNDS.get(method, 2))]
    assert same(states(federation), at_once(method))
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == before


@pytest.mark.parametrize(("kind", "method"), QUICK)
def test_a_client_that_fails_in_any_way_is_left_out_alone(kind, method):
    check(kind, method)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ALL)
def test_so_it_is_with_every_kind_and_every_method(method, kind):
    if KINDS[kind].only and method not in KINDS[kind].only:
        pytest.skip("it sends nothing of the kind")
    if kind == "nan in buffers" and method == "PerFedAvg":
        pytest.skip("its network has no buffers")
    if KINDS[kind].where == WEIGHT and method in ("DLAD", "LocalOnly"):
        pytest.skip("nothing is averaged, so nothing has a weight")
    check(kind, method)


@pytest.mark.parametrize("method", ["FedAvg", "FML", "SCAFFOLD"])
def test_one_that_raises_is_as_one_that_was_not_drawn(method):
    def select(self, round, candidates):
        return [k for k in candidates if (k, round) != (BAD, 2)]

    torch.manual_seed(0)
    module = ALL[method]()
    module.__class__ = type("Chosen", (type(module),), {"select_clients": select})
    assert same(states(fitted(module, data_for(method))), at_once(method))
    assert not same(states(run(method, None)), at_once(method))  # the sibling: it does make a difference


def test_every_method_is_tried():
    assert set(METHODS) == {method.__name__ for method in methods_of(methods)}


@pytest.mark.parametrize("where", ["probe", "personalise"])
def test_a_client_that_cannot_be_evaluated_has_trained_all_the_same(where):
    whole = run("PerFedAvg", None)
    federation = run("PerFedAvg", Kind(where, raising(SystemExit(0))))
    events = map(json.loads, Path(federation.log_dir, "events.jsonl").read_text().splitlines())
    assert [event["client"] for event in events if event["event"] == "left_out"] == [BAD]
    assert same(states(federation), states(whole))
