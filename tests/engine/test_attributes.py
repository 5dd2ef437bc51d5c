"""A method's Python attributes: what a client leaves there reaches nobody; what the server's side changes is saved."""

from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from toys import SGD, Diary, equal, fitted, linear, seeded

from fedlit import FedAvg
from fedlit.aggregation import weighted_mean
from fedlit.callbacks import FederationCallback


class Tracker:
    def __init__(self):
        self.seen = {"clients": []}


class Untidy(FedAvg):
    """Every client leaves something in attributes of the method and of its network."""

    found = Diary()
    left = Diary()

    def __init__(self):
        super().__init__(linear, SGD)
        self.number = 0
        self.names = ["a"]
        self.table = {"a": 1}
        self.ids = {1}
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def on_client_start(self, client):
        self.found.append(self.summary())

    def on_client_end(self, client):
        self.number += 1
        self.names.append("b")
        self.table["b"] = client.id
        self.ids.add(client.id + 7)
        self.passing += 1
        self.network.register_forward_hook(lambda *given: given[-1] * 2)
        self.new = [client.id]
        self.left.append(self.summary())

    def summary(self):
        hooks = len(self.network._forward_hooks)
        plain = [self.number, self.names, self.table, sorted(self.ids), self.passing.tolist(), hooks]
        return [repr(value) for value in (*plain, hasattr(self, "new"))]


def test_no_client_finds_what_another_has_left_in_any_attribute():
    method = Untidy()
    fitted(method, num_rounds=2)
    assert len(method.found) == 6
    assert all(found == method.found[0] for found in method.found)
    together = zip(method.found[0], method.left[0], strict=True)
    assert [before == after for before, after in together] == [False] * len(method.found[0])  # each had changed
    assert method.summary() == method.found[0]


class Ties(FedAvg):
    """Client 1 lets two layers share their weights, after it has trained."""

    def client_weight(self, client):
        if client.id == 1:
            self.network[3].weight.data = self.network[1].weight.data
        return super().client_weight(client)


def square():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 3))


def test_parameters_that_one_client_ties_are_apart_for_the_next():
    states = [fitted(seeded(kind, square, SGD), num_rounds=2).global_state for kind in (FedAvg, Ties)]
    assert equal(*states)


class Remembers(FedAvg):
    """A server with momentum, which it keeps in attributes of every plain kind."""

    def __init__(self):
        super().__init__(linear, SGD)
        self.save_hyperparameters()
        self.momentum = None
        self.rounds = 0
        self.history = []
        self.limits = {"all": (0.0, 1)}

    def aggregate(self, uploads, current):
        mean = weighted_mean(uploads)
        if self.momentum is None:
            self.momentum = {name: torch.zeros_like(value) for name, value in current.items()}
        self.rounds += 1
        for name in mean:
            self.momentum[name] = self.momentum[name] * 0.9 + (mean[name] - current[name])
        self.history.append(float(self.momentum["network.1.bias"].sum()))
        self.limits["all"] = (self.history[-1], self.rounds)
        factor = 0.1 * self.rounds + len(self.history)
        return {name: current[name] + factor * self.momentum[name] / 10 for name in mean}

    def plain(self):
        return [self.rounds, self.history, self.limits]


class Ramps(FederationCallback):
    def on_round_end(self, federation, method, round, rows):
        method.ramp = getattr(method, "ramp", 0.0) + 0.25


def grown(rounds, folder, ckpt_path=None):
    torch.manual_seed(0)
    method = Remembers()
    options = {"num_rounds": rounds, "default_root_dir": folder, "callbacks": [Ramps()]}
    federation = fitted(method, ckpt_path=ckpt_path, **options)
    return method, federation


def test_what_the_servers_side_changes_in_attributes_goes_on_from_a_checkpoint(tmp_path):
    whole, straight = grown(4, tmp_path / "whole")
    grown(2, tmp_path / "halves")
    resumed, later = grown(4, tmp_path / "halves", "last")
    assert equal(straight.global_state, later.global_state)
    assert whole.plain() == resumed.plain()
    assert equal(whole.momentum, resumed.momentum)
    assert whole.ramp == resumed.ramp == 1.0


@pytest.mark.parametrize("old", [("fedlit:", "tuple", [0, 1.0], None), [("fedlit:", "tuple", [0, 1.0], None)]])
def test_containers_that_version_0_2_wrote_are_refused_also_in_a_list(old, tmp_path):
    grown(2, tmp_path)
    [path] = tmp_path.rglob("last.ckpt")
    content = torch.load(path, weights_only=True)
    content["attributes"][""]["history"] = old
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"`self\.history` is an array or container that only 0\.2 can read"):
        grown(4, tmp_path, "last")


class Refused(FedAvg):
    """Keeps what no checkpoint can hold."""

    def __init__(self, keep):
        super().__init__(linear, SGD)
        self.keep = keep
        self.kept = Tracker()

    def aggregate(self, uploads, current):
        self.keep(self)
        return super().aggregate(uploads, current)


@pytest.mark.parametrize(
    ("keep", "holds"),
    [
        (lambda method: method.kept.seen["clients"].append(1), "a Tracker"),
        (lambda method: setattr(method, "kept", deque([1])), "a deque"),
        (lambda method: setattr(method, "kept", {"norms": np.ones(2)}), "a ndarray|an ndarray"),
        (lambda method: setattr(method, "kept", [print]), "a builtin_function_or_method"),
        (lambda method: setattr(method, "kept", list(method.parameters())), "a parameter or buffer of the method"),
    ],
)
def test_what_no_checkpoint_can_hold_is_refused_by_name_and_its_round_is_not_saved(keep, holds, tmp_path):
    with pytest.raises(ValueError, match=rf"`self\.kept` of Refused was changed, .* it holds ({holds}), which no"):
        fitted(Refused(keep), num_rounds=2, default_root_dir=tmp_path)
    [checkpoint] = tmp_path.rglob("last.ckpt")
    assert torch.load(checkpoint, weights_only=True)["round"] == 0


def test_extra_state_is_refused_before_the_first_round():
    class Extra(FedAvg):
        def get_extra_state(self):
            return torch.zeros(1)

    with pytest.raises(ValueError, match=r"Extra has '_extra_state', .* leave out `get_extra_state`"):
        fitted(Extra(linear, SGD))


class Counting(FedAvg):
    """A client's own count of one number, set anew in every step; client 0 has nothing to count."""

    shared = ("network.",)

    def __init__(self):
        super().__init__(linear, SGD)
        self.register_buffer("count", torch.zeros(()))

    def training_step(self, batch, batch_idx):
        self.count = self.count + min(1, self.client.id)
        return super().training_step(batch, batch_idx)


def test_a_tensor_that_a_client_replaces_by_an_equal_one_is_not_the_next_clients():
    """Two numbers are equal where larger tensors are refused to be compared."""
    states = fitted(Counting(), local_steps=2, num_rounds=3).personal_states
    assert [float(states[k]["count"]) for k in range(3)] == [0, 6, 6]
