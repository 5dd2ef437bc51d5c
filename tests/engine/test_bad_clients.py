"""Whatever a client or a rule does, the others and the next round are as if it had not been."""

import sys

import pytest
import torch
from torch import nn
from toys import SGD, equal, fitted, linear, rows, seeded, toy_data

from fedlit import FedAvg, FineTuned


class InPlace(FedAvg):
    """A running mean that overwrites what it was given."""

    def aggregate(self, uploads, current):
        for n, upload in enumerate(uploads, 1):
            for name, tensor in upload.state.items():
                current[name].add_(tensor - current[name], alpha=1 / n)
        return current


def test_a_rule_that_writes_into_the_current_state_does_not_reach_clients_still_to_come():
    torch.testing.assert_close(
        *(fitted(seeded(kind, linear, SGD), num_rounds=1).global_state for kind in (InPlace, FedAvg))
    )


class Noisy(FedAvg):
    def aggregate(self, uploads, current):
        return {name: t + 0.01 * torch.randn_like(t) for name, t in super().aggregate(uploads, current).items()}


def test_noise_of_the_server_follows_from_the_seed():
    states = []
    for seed in (0, 0, 1):
        method = seeded(Noisy, linear, SGD)
        torch.seed()
        states.append(fitted(method, seed=seed).global_state)
    assert equal(states[0], states[1])
    assert not equal(states[0], states[2])


def test_a_downloaded_model_is_in_the_ledger_even_if_nothing_comes_back():
    federation = fitted(FineTuned(linear, SGD), toy_data(opt_out=[2]), num_rounds=1)
    assert [row["client"] for row in rows(federation, "ledger.csv") if row["round"] == "2"] == ["0", "1", "2"]


def test_every_client_is_tried_where_a_method_of_ones_own_builds_its_network():
    class Builds(FedAvg):
        def configure_client(self, client):
            self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3 + client.id // 2))

    with pytest.raises(ValueError, match="network of client 2 must give 3 outputs"):
        fitted(Builds(linear, SGD))


class EverybodysMistake(FedAvg):
    def probe(self, client):
        return {"acc": 1.0}


def test_a_mistake_of_everybody_s_look_ends_the_run():
    with pytest.raises(ValueError, match="gives 'acc', which the federation measures on the same samples"):
        fitted(EverybodysMistake(linear, SGD))


def leaves(uploads, current):
    raise SystemExit(0)


class LeavesLater(FedAvg):
    def aggregate(self, uploads, current):
        if self.client is not None and self.client.round == 2:
            sys.exit(0)
        return super().aggregate(uploads, current)


def test_a_server_that_exits_does_not_end_a_run_in_silence():
    with pytest.raises(RuntimeError, match=r"^Round 2 was ended by sys\.exit\(0\)"):
        fitted(LeavesLater(linear, SGD))
    with pytest.raises(RuntimeError, match=r"`trainer\.aggregator` leaves could not combine .*: SystemExit"):
        fitted(FedAvg(linear, SGD), aggregator=leaves)


class Looked(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = linear()
        self.register_buffer("passes", torch.zeros(2))

    def forward(self, x):
        self.passes += 1
        return self.network(x)


def test_an_upload_is_what_was_trained_whatever_its_evaluation_changes():
    often, seldom = (fitted(FedAvg(Looked, SGD), local_steps=2, num_rounds=2, eval_every_n_rounds=n) for n in (1, 2))
    for federation in (often, seldom):
        assert federation.global_state["network.passes"].tolist() == [4, 4]


class Scales(FedAvg):
    """An `aggregate` that writes into uploads, and looks at them again."""

    factor = 0.5

    def aggregate(self, uploads, current):
        for upload in uploads:
            for tensor in upload.state.values():
                tensor.mul_(self.factor)
        return self.combine(uploads, current)


@pytest.mark.parametrize("personal_memory", [0, 2])
def test_what_is_written_into_an_upload_is_gone_at_the_next_look(personal_memory):
    plain = type("Plain", (Scales,), {"factor": 1.0})
    options = {"num_rounds": 2, "personal_memory": personal_memory}
    assert equal(*(fitted(seeded(kind, linear, SGD), **options).global_state for kind in (Scales, plain)))


class GivesLive(FedAvg):
    """What it agrees on is loaded, and the module's own tensors are given."""

    def aggregate(self, uploads, current):
        self.load_state_dict(self.combine(uploads, current))
        return self.state_dict()


def test_an_aggregate_may_give_the_tensors_of_the_module():
    assert equal(*(fitted(seeded(kind, linear, SGD)).global_state for kind in (GivesLive, FedAvg)))
