"""Scores of many clients in one pass are those of each by itself."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import nn
from torchmetrics.classification import MulticlassF1Score
from toys import SGD, SmallCNN, TrunkAndHead, equal, fitted, linear, rows, toy_data

from fedlit import FedAvg, FederatedModule, LocalOnly
from fedlit.engine.evaluation import Scorer
from fedlit.engine.metrics import evaluate, scores_by_group
from fedlit.notices import Notice
from fedlit.partition import Dirichlet
from fedlit.tasks import Accuracy, Classification


def clients(*sizes):
    n = sum(sizes)
    return torch.randn(n, 3), torch.arange(n) % 3, sizes


@pytest.mark.parametrize("sizes", [(4, 1, 7), (0, 4, 0, 0, 5, 0), (3,), (0,), ()])
def test_every_group_has_the_scores_that_it_has_alone(sizes):
    logits, target, sizes = clients(*sizes)
    together = scores_by_group(logits, target, sizes)
    alone = []
    for z, y in zip(logits.split(list(sizes)), target.split(list(sizes)), strict=True) if sizes else ():
        alone += scores_by_group(z, y, [len(y)])
    assert [scores.keys() for scores in together] == [scores.keys() for scores in alone]
    assert [list(scores.values()) for scores in together] == [pytest.approx(list(s.values())) for s in alone]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_client_s_bad_sample_is_its_own_affair(bad):
    logits, target, sizes = clients(2, 3, 4)
    clean = scores_by_group(logits, target, sizes)
    logits[2] = bad
    spoilt = scores_by_group(logits, target, sizes)
    assert [spoilt[0], spoilt[2]] == [clean[0], clean[2]]
    assert not math.isfinite(spoilt[1]["loss"])


class Draws(nn.Module):
    """Dropout that never sleeps."""

    def __init__(self):
        super().__init__()
        self.head = linear()

    def forward(self, x):
        return self.head(F.dropout(x, 0.5, training=True))


class Centred(nn.Module):
    """Compares a sample with those beside it."""

    def __init__(self):
        super().__init__()
        self.head = linear()

    def forward(self, x):
        return self.head(x - x.mean(0, keepdim=True))


def unaware():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 3))


def groups(network, processes, **of_data):
    federation = fitted(FedAvg(network, SGD), toy_data(num_clients=4, val_size=0.3, **of_data), num_rounds=1)
    scorer = Scorer(federation.state)
    federation.state.fabric = SimpleNamespace(world_size=processes, **FABRIC)
    return scorer._groups([0, 1, 2, 3], 1)


REAL = Fabric(accelerator="cpu")
FABRIC = {"strategy": REAL.strategy, "device": REAL.device}


@pytest.mark.parametrize("network", [unaware, Draws, Centred])
@pytest.mark.parametrize("processes", [1, 2])
def test_clients_whose_samples_would_change_each_other_s_scores_share_no_batch(network, processes):
    assert groups(network, processes) == [[0], [1], [2], [3]]


@pytest.mark.parametrize("network", [linear, SmallCNN])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_any_others_share_batches_with_the_same_whatever_the_number_of_processes(network, processes):
    assert groups(network, processes) == [[0, 1, 2, 3]]
    assert groups(network, processes, eval_batch_size=2) == [[0, 1], [2, 3]]  # of four or five samples each


def test_a_client_has_the_score_that_it_has_alone():
    federation = fitted(FedAvg(unaware, SGD), toy_data(num_clients=4, val_size=0.3), num_rounds=1)
    state = federation.state
    rows = Scorer(state).evaluate(1)
    state.load_global()
    for k in range(4):
        alone = evaluate(state.fabric, state.module.network, state.data.client(k, 1).val_batches())
        (loss,) = [row.value for row in rows if (row.client, row.metric, row.data) == (k, "loss", "own")]
        assert loss == alone["loss"]


class Fails(nn.Module):
    """Cannot say anything from `broken` on."""

    broken = None

    def __init__(self):
        super().__init__()
        self.head = linear()

    def forward(self, x):
        weight = self.head[1].weight
        if Fails.broken is not None and torch.equal(weight, Fails.broken):
            raise OSError("no model")
        return self.head(x)


@pytest.mark.parametrize("command", ["test", "validate"])
def test_a_client_that_cannot_be_evaluated_is_named(command, capsys, monkeypatch):
    method = LocalOnly(Fails, SGD)
    data = toy_data()
    federation = fitted(method, data, num_rounds=1)
    rows = getattr(federation, command)(method, data)
    assert "without" not in capsys.readouterr().out
    assert {row.client for row in rows} == {0, 1, 2}
    monkeypatch.setattr(Fails, "broken", federation.personal_states[1]["network.head.1.weight"])
    rows = getattr(federation, command)(method, data)
    assert "without client 1: could not be evaluated: OSError: no model" in capsys.readouterr().out
    assert {row.client for row in rows} == {0, 2}


class Split(FedAvg):
    """A trunk that travels, and a head that stays."""

    shared = ("network.extractor.",)


class SplitWithForward(Split):
    """The same, with a `forward` of its own."""

    def forward(self, x):
        return self.network.head(self.network.extractor(x))


class SplitWithAPeer(Split):
    """What a client uses itself is another network."""

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.own = network()

    def forward(self, x):
        return self.own(x)


class InParts(FederatedModule):
    """A trunk and a head, and no `network`; all of it travels."""

    def __init__(self, network, optimizer):
        super().__init__(optimizer)
        whole = network()
        self.extractor, self.head = whole.extractor, whole.head

    def forward(self, x):
        return self.head(self.extractor(x))


class SplitInParts(InParts):
    """The same, with a head that stays."""

    shared = ("extractor.",)


def models_on_own(method, **options):
    federation = fitted(method, toy_data(unseen_clients=1), num_rounds=1, **options)
    return {(row["model"], row["data"]) for row in rows(federation) if row["model"] != "trained"}


@pytest.mark.parametrize("method", [Split, SplitWithForward, SplitWithAPeer, SplitInParts])
def test_a_model_that_is_partly_a_clients_own_is_personal_and_not_global(method):
    with pytest.warns(Notice, match=rf"^`data.unseen_clients`: {method.__name__} has no global model"):
        assert models_on_own(method(TrunkAndHead, SGD)) == {("personal", "own")}


@pytest.mark.parametrize("method", [FedAvg, InParts])
def test_a_model_that_the_server_holds_is_global(method):
    of_the_server = {("global", "own"), ("global", "pooled"), ("global", "unseen")}
    assert models_on_own(method(TrunkAndHead, SGD)) == of_the_server


def test_a_method_of_parts_is_fedavg_with_a_network_of_them():
    found = []
    for method in (FedAvg, InParts):
        torch.manual_seed(0)
        state = fitted(method(TrunkAndHead, SGD), num_rounds=2).global_state
        found.append({name.removeprefix("network."): tensor for name, tensor in state.items()})
    assert equal(*found)


def test_a_method_without_network_and_forward_is_told_what_it_lacks():
    class Bare(InParts):
        forward = FederatedModule.forward

    with pytest.raises(ValueError, match=r"Bare must build `self\.network`, or override `forward`$"):
        fitted(Bare(TrunkAndHead, SGD))


def test_a_metric_that_is_added_to_a_task_is_recorded_of_every_model(tmp_path, monkeypatch):
    """As if it stood in fedlit/tasks.py: not in a subclass, of which everything is asked anyway."""
    monkeypatch.setattr(Classification, "metrics", lambda self: {"acc": Accuracy(), "f1": MulticlassF1Score(3)})
    federation = fitted(FedAvg(linear, SGD), num_rounds=1, default_root_dir=str(tmp_path))
    found = {}
    for row in rows(federation):
        found.setdefault((row["client"], row["model"], row["data"]), []).append(row["metric"])
    measured = {what: names for what, names in found.items() if what[2] != "train"}
    assert len(measured) == 7  # of three clients the global model and the trained copy, and the pooled test set
    assert all(names == ["acc", "f1", "loss"] for names in measured.values())
    logits = federation.state.module.network(federation.state.data.splits.test.x)
    expected = MulticlassF1Score(3)(logits, federation.state.data.splits.test.y)
    (pooled,) = [row["value"] for row in rows(federation) if (row["data"], row["metric"]) == ("pooled", "f1")]
    assert float(pooled) == pytest.approx(float(expected))


def test_it_is_told_who_has_no_validation_samples_and_what_unseen_clients_lack():
    with pytest.warns(Notice, match=r"^\d+ of 20 clients have no validation samples \(see `data.val_size`\)"):
        fitted(FedAvg(linear, SGD), toy_data(num_clients=20, partition=Dirichlet(alpha=0.5)), num_rounds=1)
    with pytest.warns(Notice, match=r"^`data.unseen_clients`: LocalOnly has no global model"):
        fitted(LocalOnly(linear, SGD), toy_data(unseen_clients=1), num_rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        fitted(FedAvg(linear, SGD), toy_data(unseen_clients=1), num_rounds=1)
