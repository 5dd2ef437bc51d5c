"""What docs/methods_of_your_own.md shows runs as printed, and keeps its laws."""

import signal
from functools import partial

import printed
import pytest
import torch
from test_laws import KillAt, in_a_child
from torch import nn
from toys import equal, fitted

from fedlit import FedAvg, Stage

PAGE = "docs/methods_of_your_own.md"
SGD = partial(torch.optim.SGD, lr=0.1)
NAMES: dict = {}
for block in printed.blocks(PAGE, "python"):
    printed.run(block, PAGE, NAMES)


class Alone(FedAvg):
    shared = ()

    def configure_stages(self):
        return [Stage("federate", upload="none")]


def perceptron(width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))


def run(method, ckpt_path=None, given=None, **options):
    torch.manual_seed(7)
    return fitted(method(perceptron, SGD, **(given or {})), ckpt_path=ckpt_path, num_rounds=2, **options)


def all_states(federation):
    return [federation.global_state, *(federation.network(client=k).state_dict() for k in range(3))]


def same(a, b):
    return all(equal(x, y) for x, y in zip(all_states(a), all_states(b), strict=True))


CASES = {"FedFomo": {"num_sent": 1}, "HeteroFL": {"client_networks": {1: partial(perceptron, 2)}}}


@pytest.fixture(scope="module", params=CASES)
def found(request, tmp_path_factory):
    made = partial(run, NAMES[request.param], given=CASES[request.param])
    return made, made(default_root_dir=str(tmp_path_factory.mktemp(request.param)))


def test_fedfomo_without_others_is_training_alone_and_with_others_is_not():
    alone = run(Alone)
    for num_sent, is_alone in ((0, True), (2, False)):
        fomo = run(NAMES["FedFomo"], given={"num_sent": num_sent})
        states = [equal(fomo.network(client=k).state_dict(), alone.network(client=k).state_dict()) for k in range(3)]
        assert all(states) == is_alone


def test_fedfomo_goes_on_with_the_weights_that_were_given():
    given = run(NAMES["FedFomo"]).global_state["given"]
    assert given.diagonal().tolist() == [0, 0, 0]
    assert given.sum() > 0


def test_heterofl_with_one_network_is_fedavg_and_with_others_is_not():
    fedavg = run(FedAvg).global_state
    assert equal(run(NAMES["HeteroFL"]).global_state, fedavg)
    assert not equal(run(NAMES["HeteroFL"], given=CASES["HeteroFL"]).global_state, fedavg)


def test_killed_and_resumed_each_ends_in_the_same_bits(found, tmp_path):
    made, undisturbed = found
    killed = in_a_child(lambda: made(callbacks=KillAt(1, "end"), default_root_dir=str(tmp_path)))
    assert killed == -signal.SIGKILL
    assert same(made(ckpt_path="last", default_root_dir=str(tmp_path)), undisturbed)
