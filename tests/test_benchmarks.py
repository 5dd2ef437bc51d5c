"""The tight loops of `make bench` do the same work as fedlit; no test here reads a clock."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from test_quorum import Drawn
from torch import nn

from benchmarks import __main__ as command
from benchmarks import own
from benchmarks.workloads import WORKLOADS, quiet_federation
from fedlit.rng import derive, generator, isolated

SEED = 7
SMALL = {"num_clients": 5, "per_round": 3, "samples": 24}
ROWS = {name: replace(work, **SMALL) for name, work in WORKLOADS.items() if name.startswith(("W2", "W8", "W9"))}
ROWS |= {
    "W1": replace(WORKLOADS["W1"], num_clients=2, per_round=2, samples=36),
    "W4": replace(WORKLOADS["W4"], samples=8, batch_size=4),
    "W6": replace(WORKLOADS["W6"], **SMALL, network=partial(own.Transformer, dropout=0.0)),
}
TINY = replace(WORKLOADS["W9t"], num_clients=4, per_round=2, rounds=2)
SLOW = ("W4", "W8-CNN")
NAMED = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in ROWS]
EVALUATED = {("trained", "own"): "trained", ("global", "pooled"): "test", ("global", "own"): "own"}
EVALUATED[("personal", "own")] = "personal"


def compared(work, folder, num_rounds: int = 2, lr_factor: float = 1.0, fast: bool = False):
    """A federation, its last rows, and the tight loop with the same first weights, clients and order of batches."""
    drawn = Drawn()
    options = {"seed": SEED, "report": False, "callbacks": drawn, "fast": fast, **work.trainer_options}
    federation = quiet_federation(num_rounds, str(folder), **options)
    module = work.federated_module()
    shared = getattr(module, "meme", None) or module.network
    shuffle = lambda round, k: generator(SEED, "batches", "federate", round, k)  # noqa: E731
    loop = work.tight_loop(fast, shuffle=shuffle, mean_dtype=torch.float64)
    start(loop, work, shared)
    loop.optimizer.lr *= lr_factor
    if work.optimizer == "Adam":  # with its own eps, a gradient that is nothing but rounding moves a weight by lr
        module.optimizer = partial(module.optimizer, eps=1e-3)
        loop.optimizer.eps = 1e-3
    rows = federation.fit(module, work.federated_data()).rows
    for number, clients in drawn.clients:
        loop.round(number, clients, evaluate=number == num_rounds)
    return federation, rows, loop


@torch.no_grad()
def start(loop, work, shared: nn.Module) -> None:
    """Let the loop begin with the first weights of a method."""
    loop.network.load_state_dict(shared.state_dict())
    torch._foreach_copy_(loop.server, loop.live)
    if work.method == "FedRep":
        torch._foreach_copy_(loop.initial, loop.head)
    for k, network in enumerate(getattr(loop, "personal", [])):
        first = shared
        if work.method == "FML":
            with isolated(derive(SEED, "client", k)):
                first = work.network()
        network.load_state_dict(first.state_dict())


def shared_of(loop) -> dict[str, torch.Tensor]:
    """What the loop's server holds, by name."""
    tensors = [*loop.network.named_parameters(), *loop.network.named_buffers()]
    names = [name for name, tensor in tensors if loop.is_shared(name, tensor)]
    return dict(zip(names, loop.server, strict=True))


def own_of(loop, k: int) -> list[torch.Tensor]:
    """What stays with a client of the loop."""
    if hasattr(loop, "personal"):
        return list(loop.personal[k].parameters())
    held = getattr(loop, "heads", None) or getattr(loop, "c_i", {})
    return held.get(k, [])


@pytest.mark.parametrize("name", NAMED)
def test_a_tight_loop_ends_with_the_weights_and_scores_of_fedlit(name, tmp_path, monkeypatch):
    noise = own.Noise
    # Random transforms are drawn otherwise: without them, samples are still read one by one in the loop.
    monkeypatch.setattr(own, "Noise", lambda size, shape, augment=False: noise(size, shape))
    work = ROWS[name]
    federation, rows, loop = compared(work, tmp_path)
    ours = {key.partition(".")[2]: value for key, value in federation.global_state.items()}
    for key, tensor in shared_of(loop).items():
        torch.testing.assert_close(ours[key], tensor.detach(), atol=1e-5, rtol=0)
    for k, state in federation.personal_states.items():
        found = list(state.values())
        for mine, tensor in zip(found, own_of(loop, k), strict=bool(found)):
            torch.testing.assert_close(mine, tensor.detach(), atol=1e-5, rtol=0)
    check_scores(rows, loop)


@pytest.mark.parametrize("name", ["W1", "W2-momentum", "W2-Adam"])
def test_the_loop_of_fast_mode_ends_with_its_weights(name, tmp_path):
    federation, rows, loop = compared(ROWS[name], tmp_path, fast=True)
    for key, tensor in shared_of(loop).items():
        torch.testing.assert_close(federation.global_state[f"network.{key}"], tensor.detach(), atol=1e-5, rtol=0)
    check_scores(rows, loop)


def check_scores(rows, loop) -> None:
    """The same models were evaluated on the same samples."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.metric in ("loss", "acc"):
            found.setdefault((EVALUATED[row.model, row.data], row.metric), []).append(row.value)
    assert {key for key, _ in found} == loop.scores.keys()
    for (key, metric), values in found.items():
        scores = loop.scores[key][int(metric == "acc")].reshape(-1)
        assert scores.tolist() == pytest.approx(values, abs=1e-4)


def test_a_loop_with_another_learning_rate_ends_elsewhere(tmp_path):
    federation, _, loop = compared(ROWS["W2"], tmp_path, lr_factor=1.1)
    ours = list(federation.global_state.values())
    assert not any(torch.allclose(a, b, atol=1e-4, rtol=0) for a, b in zip(ours, loop.server, strict=True))


def test_a_row_is_measured_and_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(WORKLOADS, "W9t", TINY)
    results = {"W9t": command.compare("W9t", ["exact"], turns=2)}
    figures = results["W9t"]["exact"]
    assert figures["ratio"] == pytest.approx((figures["low"] + figures["high"]) / 2)
    assert figures["ms_per_client"] == pytest.approx((figures["fedlit_ms"] - figures["tight_ms"]) / 2)
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"processor": "?", "torch": "?", "turns": 2, "rows": results}))
    monkeypatch.setattr("sys.argv", ["benchmarks", "--show", str(path), "--markdown"])
    command.main()
    head, rule, line, *_, beyond, _, _ = capsys.readouterr().out.splitlines()
    assert len(head.split("|")) == len(rule.split("|")) == len(line.split("|"))
    assert f"| exact | 1.90 | {figures['ratio']:.2f} |" in line
    assert "ms beyond its steps" in beyond
