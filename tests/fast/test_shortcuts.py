"""Shortcuts agree with what they replace; no test here looks at a clock."""

import os
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn
from toys import equal, fitted

from benchmarks import tight
from benchmarks.workloads import WORKLOADS, quiet_federation
from fedlit import FedAvg, FederatedModule, Federation, LocalOnly
from fedlit.callbacks import FederationCallback
from fedlit.engine.logged_values import Means
from fedlit.engine.run_setup import set_fast
from fedlit.methods import MixtureOfExperts
from fedlit.networks import MLP, LeNet5, McMahanCNN
from fedlit.records import checkpoint
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
BENCHMARKS = sorted(path.stem for path in Path(tight.__file__).parent.glob("[a-z]*.py"))


class Drawn(FederationCallback):
    """Notes the clients of each round."""

    def __init__(self) -> None:
        self.clients: list[list[int]] = []

    def on_round_start(self, federation, module, round, clients) -> None:
        self.clients.append(clients)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_finds_what_it_imports(name):
    import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", WORK)
def test_exact_mode_has_the_bits_of_a_hand_written_loop(name, tmp_path):
    drawn = Drawn()
    federation = after_rounds(WORK[name], False, tmp_path, callbacks=drawn)
    plain = replace(WORK[name], network=WORKLOADS[name].network)  # of PyTorch's own layers
    loop = by_hand(plain, federation, drawn.clients)
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


@pytest.mark.parametrize("fast", [False, True])
def test_the_switch_does_what_it_says(fast, tmp_path):
    """Not seen in the bits: whether another order of adding rounds otherwise is the processor's business."""
    module = after_rounds(WORK["W1"], fast, tmp_path, num_rounds=1).state.module
    first = next(part for part in module.modules() if isinstance(part, nn.Conv2d))
    assert first(torch.zeros(2, 1, 28, 28)).is_contiguous() is not fast


def test_fast_mode_is_recorded(tmp_path):
    federation = after_rounds(WORK["W2"], True, tmp_path, num_rounds=1)
    folder = next((tmp_path / "lightning_logs").iterdir())
    assert '"fast": true' in (folder / "events.jsonl").read_text()
    assert federation.fast


class FrozenNorm(nn.Sequential):
    """Keeps its statistics, as many fine-tuning recipes do."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3))

    def train(self, mode=True):
        super().train(mode)
        self[2].eval()
        return self


@pytest.mark.parametrize("method", [FedAvg, LocalOnly])
def test_a_network_s_own_train_is_called(method):
    federation = fitted(method(FrozenNorm, SGD), num_rounds=2)
    states = [federation.global_state, *federation.personal_states.values()]
    found = [state["network.2.running_mean"] for state in states if "network.2.running_mean" in state]
    assert found
    assert not any(mean.any() for mean in found)


def test_a_network_that_draws_numbers_on_images_draws_the_same_every_time_in_fast_mode():
    def network():
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 3))

    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(7)
        states.append(fitted(FedAvg(network, SGD), num_rounds=1, fast=True, seed=seed).global_state)
    assert equal(states[0], states[1])
    assert not equal(states[0], states[2])


def test_a_mean_is_of_values_as_they_were():
    means, value = Means(), torch.zeros(())
    for _ in range(4):
        means("a", value)
        means("b", 2)
        value += 1
    assert means.result() == {"a": 1.5, "b": 2.0}
    means("vector", torch.zeros(2))
    with pytest.raises((ValueError, RuntimeError)):
        means.result()


def test_means_of_many_values_are_added_up_in_parts(monkeypatch):
    monkeypatch.setattr("fedlit.engine.logged_values.MANY", 3)
    means = Means()
    for value in range(8):
        means("a", torch.tensor(float(value)))
    assert means.result() == {"a": 3.5}


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam])
def test_an_exact_run_goes_on_in_fast_mode(optimizer, tmp_path):
    def run(folder, **options):
        torch.manual_seed(3)
        network = partial(LeNet5, in_channels=1, image_size=28)
        method = LocalOnly(network, partial(optimizer, lr=0.01))
        data = WORK["W1"].federated_data()
        return fitted(method, data, default_root_dir=str(tmp_path / folder), **options)

    run("a", num_rounds=1)
    changed = run("a", num_rounds=2, ckpt_path="last", fast=True)
    exact = run("b", num_rounds=2)
    assert sorted(exact.personal_states) == [0, 1]
    for k in exact.personal_states:
        for name, tensor in exact.personal_states[k].items():
            assert torch.allclose(tensor, changed.personal_states[k][name], atol=1e-4)


def test_fast_mode_can_be_left_again(tmp_path):
    method = FedAvg(partial(LeNet5, in_channels=1, image_size=28), SGD)
    data = WORK["W1"].federated_data()
    for fast in (True, False):
        fitted(method, data, num_rounds=1, default_root_dir=str(tmp_path), fast=fast)
        assert method.network.extractor[0](torch.zeros(2, 1, 28, 28)).is_contiguous() is not fast
        assert method.fast is fast


def test_images_of_one_channel_make_an_output_channels_last_too():
    method = FedAvg(McMahanCNN, SGD)
    set_fast(method, True)
    features = method.network.extractor[0](torch.randn(2, 1, 28, 28))
    assert features.is_contiguous(memory_format=torch.channels_last)
    assert not features.is_contiguous()


def test_parts_of_a_method_are_fast_too():
    method = MixtureOfExperts(LeNet5, SGD)
    set_fast(method, True)
    assert all(part.fast for part in method.modules() if isinstance(part, FederatedModule))
    set_fast(nn_with_three_dimensions := FedAvg(partial(nn.Conv3d, 1, 2, 3), SGD), True)
    assert nn_with_three_dimensions.network.weight.is_contiguous()


def test_a_file_left_by_a_kill_is_not_written_through(tmp_path):
    best, last = tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    checkpoint.save({"a": torch.ones(3)}, best)
    os.link(best, tmp_path / ".last.ckpt.tmp")  # killed between the two steps of `keep`
    checkpoint.save({"a": torch.zeros(9)}, last)
    assert torch.load(best, weights_only=True)["a"].tolist() == [1, 1, 1]
