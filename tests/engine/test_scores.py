"""Scores of many clients in one pass are those of each by itself."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import SGD, SmallCNN, TrunkAndHead, fitted, linear, rows, toy_data

from fedlit import FedAvg, FederatedModule, LocalOnly
from fedlit.notices import Notice
from fedlit.partition import Dirichlet


def batch_statistics():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 3))


@pytest.mark.parametrize("network", [linear, SmallCNN, batch_statistics])
def test_a_client_has_the_score_that_it_has_alone(network):
    data = toy_data(num_clients=4, val_size=0.3)
    federation = fitted(FedAvg(network, SGD), data, num_rounds=1)
    for k in range(4):
        batches = data.client(k).val_batches()
        with torch.no_grad():
            alone = F.cross_entropy(federation.network()(batches.x), batches.y)
        wanted = (str(k), "global", "own", "loss")
        found = [row for row in rows(federation) if (row["client"], row["model"], row["data"], row["metric"]) == wanted]
        assert float(found[0]["value"]) == pytest.approx(float(alone), rel=1e-5)


class Fails(nn.Module):
    broken = None

    def __init__(self):
        super().__init__()
        self.head = linear()

    def forward(self, x):
        weight = self.head[1].weight
        if Fails.broken is not None and torch.equal(weight, Fails.broken):
            raise OSError("no model")
        return self.head(x)


def test_a_client_that_cannot_be_evaluated_is_named(capsys, monkeypatch):
    method = LocalOnly(Fails, SGD)
    data = toy_data()
    federation = fitted(method, data, num_rounds=1)
    rows = federation.test(method, data)
    assert "without" not in capsys.readouterr().out
    assert {row.client for row in rows} == {0, 1, 2}
    monkeypatch.setattr(Fails, "broken", federation.personal_states[1]["network.head.1.weight"])
    rows = federation.test(method, data)
    assert "without client 1: could not be evaluated: OSError: no model" in capsys.readouterr().out
    assert {row.client for row in rows} == {0, 2}


class Split(FedAvg):
    shared = ("network.extractor.",)


class InParts(FederatedModule):
    def __init__(self, network, optimizer):
        super().__init__(optimizer)
        whole = network()
        self.extractor, self.head = whole.extractor, whole.head

    def forward(self, x):
        return self.head(self.extractor(x))


class SplitInParts(InParts):
    shared = ("extractor.",)


def models_on_own(method):
    federation = fitted(method, toy_data(unseen_clients=1), num_rounds=1)
    return {(row["model"], row["data"]) for row in rows(federation) if row["model"] != "trained"}


@pytest.mark.parametrize("method", [Split, SplitInParts])
def test_a_model_that_is_partly_a_clients_own_is_personal_and_not_global(method):
    with pytest.warns(Notice, match=rf"^`data.unseen_clients`: {method.__name__} has no global model"):
        assert models_on_own(method(TrunkAndHead, SGD)) == {("personal", "own")}


@pytest.mark.parametrize("method", [FedAvg, InParts])
def test_a_model_that_the_server_holds_is_global(method):
    of_the_server = {("global", "own"), ("global", "pooled"), ("global", "unseen")}
    assert models_on_own(method(TrunkAndHead, SGD)) == of_the_server


def test_a_method_without_network_and_forward_is_refused():
    class Bare(InParts):
        forward = FederatedModule.forward

    with pytest.raises(ValueError, match=r"Bare must build `self\.network`, or override `forward`$"):
        fitted(Bare(TrunkAndHead, SGD))


def test_a_notice_says_how_many_clients_have_no_validation_samples():
    with pytest.warns(Notice, match=r"^\d+ of 20 clients have no validation samples \(see `data.val_size`\)"):
        fitted(FedAvg(linear, SGD), toy_data(num_clients=20, partition=Dirichlet(alpha=0.5)), num_rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        fitted(FedAvg(linear, SGD), toy_data(unseen_clients=1), num_rounds=1)
