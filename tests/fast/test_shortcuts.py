"""Shortcuts agree with what they replace; no test here looks at a clock."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from test_quorum import Drawn
from torch import nn
from toys import fitted

from benchmarks import tight
from benchmarks.workloads import WORKLOADS, quiet_federation
from fedlit import FedAvg, Federation
from fedlit.networks import MLP, McMahanCNN
from fedlit.rng import derive, generator, isolated

SGD = partial(torch.optim.SGD, lr=0.05)


def after_rounds(work, fast: bool, folder, num_rounds: int = 3, callbacks=None) -> Federation:
    options = {"seed": 7, "fast": fast, "report": False, "callbacks": callbacks, **work.trainer_options}
    federation = quiet_federation(num_rounds, str(folder), **options)
    torch.manual_seed(3)
    federation.fit(work.federated_module(), work.federated_data())
    return federation


def by_hand(work, federation: Federation, clients: list[list[int]]) -> tight.FedAvg:
    """The same rounds in a hand-written loop, with the same first weights, clients and order of batches."""
    shuffle = lambda round, k: generator(7, "batches", "federate", round, k)  # noqa: E731
    loop = work.tight_loop(shuffle=shuffle, mean_dtype=torch.float64)
    first = {n: t for n, t in federation.state.initial.items() if n.startswith(("network.", "meme."))}
    copy_into(loop.network, first.values())
    torch._foreach_copy_(loop.server, loop.live)
    for k, network in enumerate(getattr(loop, "personal", [])):
        with isolated(derive(7, "client", k)):
            copy_into(network, McMahanCNN().parameters())
    for number, drawn in enumerate(clients, start=1):
        loop.round(number, drawn)
    return loop


@torch.no_grad()
def copy_into(network: nn.Module, values) -> None:
    for parameter, value in zip(network.parameters(), values, strict=True):
        parameter.copy_(value)


WORK = {  # with fewer clients and samples, and fedlit's own networks
    "W1": replace(WORKLOADS["W1"], num_clients=2, per_round=2, samples=36, network=McMahanCNN),
    "W2": replace(WORKLOADS["W2"], num_clients=20, per_round=4, network=MLP),
    "W3": replace(WORKLOADS["W3"], num_clients=2, per_round=2, samples=36, network=McMahanCNN),
}


@pytest.mark.parametrize("name", WORK)
def test_exact_mode_has_the_bits_of_a_hand_written_loop(name, tmp_path):
    drawn = Drawn()
    federation = after_rounds(WORK[name], False, tmp_path, callbacks=drawn)
    plain = replace(WORK[name], network=WORKLOADS[name].network)  # of PyTorch's own layers
    loop = by_hand(plain, federation, [clients for _, clients in drawn.clients])
    for ours, theirs in zip(federation.global_state.values(), loop.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for k, network in enumerate(getattr(loop, "personal", [])):
        for ours, theirs in zip(federation.personal_states[k].values(), network.parameters(), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["W2", *[pytest.param(name, marks=pytest.mark.slow) for name in ("W1", "W3")]])
def test_fast_mode_is_near_exact_mode(name, tmp_path):
    exact, fast, again = (after_rounds(WORK[name], mode, tmp_path).global_state for mode in (False, True, True))
    assert all(torch.equal(fast[n], again[n]) for n in fast)  # its own bits, every time
    for n in fast:
        assert torch.allclose(fast[n], exact[n], atol=2e-5)


class FrozenNorm(nn.Sequential):
    """Keeps its statistics, as many fine-tuning recipes do."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3))

    def train(self, mode=True):
        super().train(mode)
        self[2].eval()
        return self


def test_a_network_s_own_train_is_called():
    federation = fitted(FedAvg(FrozenNorm, SGD), num_rounds=2)
    assert not federation.global_state["network.2.running_mean"].any()
