"""What docs/methods_of_your_own.md shows runs as printed, and keeps its invariants."""

from functools import partial

import printed
import pytest
import torch
from torch import nn
from toys import equal, fitted, same, states

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
    return fitted(method(perceptron, SGD, **(given or {})), ckpt_path=ckpt_path, **{"num_rounds": 2, **options})


CASES = {"FedFomo": {"num_sent": 1}, "HeteroFL": {"client_networks": {1: partial(perceptron, 2)}}}


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


@pytest.mark.parametrize("name", CASES)
def test_resumed_each_ends_in_the_same_bits(name, tmp_path):
    made = partial(run, NAMES[name], given=CASES[name])
    whole = made()
    made(num_rounds=1, default_root_dir=str(tmp_path))
    resumed = made(ckpt_path="last", default_root_dir=str(tmp_path))
    assert same(states(resumed), states(whole))
