"""Clients whose networks have other shapes than the server's: what they are sent, hold and upload, by HeteroFL."""

import json
import signal
from pathlib import Path

import pytest
import torch
from conftest import SGD, equal, fitted, rows
from test_laws import KillAt, in_a_child
from torch import nn

from fedlit import FedAvg
from fedlit.methods import Stage


def first(full, like):
    """The first entries of a tensor, as many as another has."""
    return full[tuple(slice(size) for size in like.shape)]


class HeteroFL(FedAvg):
    """Clients of less width hold the first channels of every layer. Diao et al., 2021."""

    widths = (5, 3, 2)

    def configure_stages(self):
        return [Stage("federate", own_models=True)]

    def configure_client(self, client):
        self.network = perceptron(self.widths[client.id])

    def download(self, client, current, uploads):
        own = perceptron(self.widths[client.id]).state_dict(prefix="network.")
        return {name: first(tensor, own[name]) for name, tensor in current.items()}

    def aggregate(self, uploads, current):
        sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in current.items()}
        weights = {name: torch.zeros_like(tensor) for name, tensor in sums.items()}
        unit = None
        for upload in uploads:
            unit = unit or upload.weight
            for name, tensor in upload.state.items():
                first(sums[name], tensor).add_(tensor, alpha=upload.weight / unit)
                first(weights[name], tensor).add_(upload.weight / unit)
        means = {name: (sums[name] / weights[name]).to(current[name]) for name in sums}
        return {name: torch.where(weights[name] > 0, means[name], current[name]) for name in means}


class EqualWidths(HeteroFL):
    widths = (5, 5, 5)


def perceptron(width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))


def seeded(method=None):
    torch.manual_seed(7)
    return (method or HeteroFL)(perceptron, SGD)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return fitted(seeded(), num_rounds=2, default_root_dir=str(tmp_path_factory.mktemp("narrow")))


def test_sub_networks_of_full_width_are_fedavg_and_of_others_are_not(narrow):
    fedavg = fitted(seeded(FedAvg), num_rounds=2).global_state
    assert equal(fitted(seeded(EqualWidths), num_rounds=2).global_state, fedavg)
    assert not equal(narrow.global_state, fedavg)


def test_a_sub_network_is_sent_uploaded_and_told_of_as_it_is(narrow):
    lines = rows(narrow, "ledger.csv")
    sizes = [4 * (64 * width + width + 3 * width + 3) for width in HeteroFL.widths]
    assert [int(row["bytes"]) for row in lines if row["direction"] == "down"] == sizes * 2
    assert [int(row["bytes"]) for row in lines if row["direction"] == "up"] == sizes * 2
    weight = narrow.global_state["network.1.weight"]
    assert all(torch.equal(narrow.network(client=k)[1].weight, weight[:size]) for k, size in enumerate((5, 3, 2)))
    assert {row["client"] for row in rows(narrow) if row["model"] == "personal"} == {"0", "1", "2"}


def test_what_no_client_holds_stays_as_it_was_and_what_one_holds_is_its_own():
    class Narrow(HeteroFL):
        widths = (2, 3, 2)

    federation = fitted(seeded(Narrow), num_rounds=1)
    initial = seeded(Narrow).state_dict()["network.1.weight"]
    found = federation.global_state["network.1.weight"]
    assert torch.equal(found[3:], initial[3:])
    assert not torch.equal(found[2], initial[2])


def test_sub_networks_end_in_the_same_bits_in_processes_of_their_own(narrow):
    assert equal(fitted(seeded(), num_rounds=2, client_timeout=60.0).global_state, narrow.global_state)


def test_sub_networks_may_be_fast(narrow):
    fast = fitted(seeded(), num_rounds=2, fast=True).global_state
    assert all(torch.allclose(fast[name], narrow.global_state[name], atol=1e-5) for name in fast)


def test_sub_networks_killed_and_resumed(narrow, tmp_path):
    options = {"num_rounds": 2, "default_root_dir": str(tmp_path)}
    killed = in_a_child(lambda: fitted(seeded(), callbacks=KillAt(1, "end"), **options))
    assert killed == -signal.SIGKILL
    assert equal(fitted(seeded(), ckpt_path="last", **options).global_state, narrow.global_state)


def test_who_builds_another_shape_than_it_was_sent_is_left_out():
    class Wrong(HeteroFL):
        def configure_client(self, client):
            self.network = perceptron(4 if client.id == 1 else self.widths[client.id])

    federation = fitted(seeded(Wrong), num_rounds=1)
    events = [json.loads(line) for line in Path(federation.log_dir, "events.jsonl").read_text().splitlines()]
    reasons = [event["reason"] for event in events if event["event"] == "left_out"]
    assert reasons == ["ValueError: 'network.1.weight' is (4, 64), but its state is (3, 64)."]


def test_norms_are_not_compared_where_shapes_differ():
    with pytest.raises(ValueError, match=r"`trainer.max_norm_ratio` .* is \(5, 64\) there and \(3, 64\) in an"):
        fitted(seeded(), num_rounds=1, max_norm_ratio=5.0)


def test_a_mean_of_other_shapes_is_refused_by_name():
    class NoAggregate(HeteroFL):
        aggregate = FedAvg.aggregate

    with pytest.raises(
        ValueError, match=r"of client 0 and .* of client 1, which have no mean"
    ):
        fitted(seeded(NoAggregate), num_rounds=1)
