"""Whatever a client or a rule does, the others and the next round are as if it had not been."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from toys import SGD, SmallCNN, equal, fitted, linear, rows, toy_data

from fedlit import FedAvg, FineTuned, LocalOnly, Stage
from fedlit.engine.client_runner import with_own_tensors
from fedlit.engine.plan import UsageError
from fedlit.engine.round import SerialExecutor
from fedlit.partition import BinarySeparated


def events(federation):
    return [json.loads(line) for line in Path(federation.log_dir, "events.jsonl").read_text().splitlines()]


class Damaging(FedAvg):
    """Client 1 spoils the live module at the end of its visit."""

    how = "raise"

    def on_client_end(self, client):
        if client.id == 1:
            getattr(self, self.how)()

    def deleted(self):
        del self.network[1].bias

    def reshaped(self):
        self.network[1].bias = nn.Parameter(torch.zeros(7))

    def added(self):
        self.extra = nn.Parameter(torch.zeros(2))

    def recast(self):
        self.network.double()

    def replaced(self):
        self.network = nn.Linear(5, 7)
        raise RuntimeError("and died of it")

    def frozen_then_dead(self):
        self.network.requires_grad_(False)
        raise RuntimeError("and died of it")


@pytest.mark.parametrize("how", ["deleted", "reshaped", "added", "recast", "replaced", "frozen_then_dead"])
def test_a_client_that_breaks_the_module_is_left_out_alone(how):
    torch.manual_seed(0)
    method = Damaging(linear, SGD)
    method.how = how
    federation = fitted(method)
    torch.manual_seed(0)
    others = fitted(FedAvg(linear, SGD), toy_data(opt_out=[1]))
    assert equal(federation.global_state, others.global_state)


class Programme(FedAvg):
    """Its one stage trains a child; client 1 breaks it in the first round."""

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.child = FedAvg(network, optimizer)
        self.shared = ("child.",)

    def configure_stages(self):
        return [Stage("only", module=self.child)]

    def forward(self, x):
        return super().forward(x) * float("nan")  # the child is to be looked at, not this

    def on_client_end(self, client):
        if (client.id, client.round) == (1, 1):
            self.child.network = nn.Linear(2, 2)
            raise RuntimeError("and died of it")


def test_a_stage_still_trains_and_scores_its_own_module_after_a_client_broke_it():
    federation = fitted(Programme(linear, SGD), toy_data(size=120), num_rounds=4)
    scores = {(row["model"], row["data"]): float(row["value"]) for row in rows(federation) if row["metric"] == "acc"}
    assert scores["global", "pooled"] > 0.5
    losses = [float(row["value"]) for row in rows(federation) if row["metric"] == "train_loss" and row["client"] == "1"]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


class FreezesItself(FedAvg):
    def on_client_end(self, client):
        self.network[1].bias.requires_grad_(client.id != 1)


def test_what_one_client_freezes_thaws_for_the_next():
    states = []
    for method in (FedAvg, FreezesItself):
        torch.manual_seed(0)
        states.append(fitted(method(linear, SGD)).global_state)
    assert equal(*states)


class BlindAtHome(LocalOnly):
    def forward(self, x):
        if self.client is not None and self.client.id == 1 and not self.training:
            raise RuntimeError("cannot see")
        return super().forward(x)


def test_a_client_that_cannot_be_evaluated_does_not_keep_the_others_from_it(monkeypatch):
    import fedlit.federation

    monkeypatch.setattr(fedlit.federation, "check_experiment", lambda _, model, *__: model.configure_stages())
    federation = fitted(BlindAtHome(linear, SGD), num_rounds=1)
    assert {row["client"] for row in rows(federation) if row["model"] == "personal"} == {"0", "2"}


class KeepsCode(LocalOnly):
    def on_client_end(self, client):
        for values in self.trainer.optimizers[0].state.values():
            if client.id == 1:
                values["secret"] = print


def test_a_client_whose_optimiser_keeps_code_is_left_out():
    federation = fitted(KeepsCode(linear, SGD), num_rounds=1)
    assert set(federation.personal_states) == {0, 2}


class InPlace(FedAvg):
    """A running mean that overwrites what it was given."""

    def aggregate(self, uploads, current):
        for n, upload in enumerate(uploads, 1):
            for name, tensor in upload.state.items():
                current[name].add_(tensor - current[name], alpha=1 / n)
        return current


def test_a_rule_that_writes_into_the_current_state_does_not_reach_clients_still_to_come():
    states = []
    for method in (InPlace(linear, SGD), FedAvg(linear, SGD)):
        torch.manual_seed(3)
        method.network.load_state_dict(linear().state_dict())
        states.append(fitted(method, num_rounds=1).global_state)
    torch.testing.assert_close(*states)


class Noisy(FedAvg):
    def aggregate(self, uploads, current):
        return {name: t + 0.01 * torch.randn_like(t) for name, t in super().aggregate(uploads, current).items()}


def test_noise_of_the_server_follows_from_the_seed():
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        method = Noisy(linear, SGD)
        torch.manual_seed(torch.seed())
        states.append(fitted(method, seed=seed).global_state)
    assert equal(states[0], states[1])
    assert not equal(states[0], states[2])


class Momentum(FedAvg):
    """FedAvgM: what the server remembers is state of its own, which never travels."""

    server_only = ("momentum",)

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.register_buffer("momentum", torch.zeros(3, 64))

    def aggregate(self, uploads, current):
        agreed = super().aggregate(uploads, current)
        momentum = 0.9 * current["momentum"] + current["network.1.weight"] - agreed["network.1.weight"]
        return {**agreed, "network.1.weight": current["network.1.weight"] - momentum, "momentum": momentum}


def test_what_the_server_remembers_survives_a_resume_and_never_travels(tmp_path):
    def run(rounds, folder, ckpt_path=None):
        torch.manual_seed(0)
        return fitted(Momentum(linear, SGD), num_rounds=rounds, default_root_dir=str(folder), ckpt_path=ckpt_path)

    straight = run(4, tmp_path / "straight")
    run(2, tmp_path / "cut")
    assert equal(run(4, tmp_path / "cut", "last").global_state, straight.global_state)
    assert straight.global_state["momentum"].abs().sum() > 0
    assert {int(row["bytes"]) for row in rows(straight, "ledger.csv")} == {4 * (64 * 3 + 3)}


def test_clients_that_change_hands_are_scored_on_what_they_hold_now():
    data = toy_data(num_clients=2, partition=BinarySeparated("random", resplit_every_round=True), validation="test")
    data.setup()
    for number in range(1, 6):
        client = data.client(0, number)
        held = set(client.train_batches().y.tolist())
        assert set(client.val_batches().y.tolist()) == held


def test_clipping_and_steps_know_nothing_of_other_clients_gradients(monkeypatch):
    class BiasOnly(FedAvg):
        def parameters_of(self, client):
            return [self.network[6].bias]

    def backwards(executor):
        done = {k: with_own_tensors(executor.round.runner.train(k)) for k in reversed(executor.round.clients)}
        yield from ((k, done[k]) for k in executor.round.clients)

    states = []
    for order in (None, backwards):
        if order is not None:
            monkeypatch.setattr(SerialExecutor, "train", order)
        torch.manual_seed(0)
        states.append(fitted(BiasOnly(SmallCNN, SGD), gradient_clip_val=0.1).global_state)
    assert equal(*states)


def test_a_downloaded_model_is_in_the_ledger_even_if_nothing_comes_back():
    federation = fitted(FineTuned(linear, SGD), toy_data(opt_out=[2]), num_rounds=1)
    assert [row["client"] for row in rows(federation, "ledger.csv") if row["round"] == "2"] == ["0", "1", "2"]


# --- attributes of a method's own that are called as choices per client are


@pytest.mark.parametrize("own", ["a name", 3, [1], ["x"] * 9, {"a": 1}, {1: [2]}, torch.zeros(2), None])
def test_an_attribute_that_is_called_like_a_choice_per_client_may_be_anything(own):
    method = FedAvg(linear, SGD)
    method.client_something = own
    fitted(method, fast_dev_run=True)


@pytest.mark.parametrize("own", [None, {}, "a name"])
def test_every_client_is_tried_where_a_method_of_ones_own_builds_its_network(own):
    class Builds(FedAvg):
        def configure_client(self, client):
            self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3 + client.id // 2))

    method = Builds(linear, SGD)
    method.client_something = own
    with pytest.raises(ValueError, match="network of client 2 must give 3 outputs"):
        fitted(method)


class OddProbe(FedAvg):
    """Client 1 looks at itself in a way that would reach the others."""

    how = "double"

    def probe(self, client):
        if (client.id, client.round) == (1, 2):
            return getattr(self, self.how)()
        return {"looked": 1.0}

    def widened(self):
        self.double()
        return {"looked": 1.0}

    def told(self):
        return {"looked": "well"}

    def named_as_ours(self):
        return {"acc": 1.0}

    def asked_for_nothing_known(self):
        return self.trainer.no_such_thing


@pytest.mark.parametrize("how", ["widened", "told", "named_as_ours", "asked_for_nothing_known"])
def test_a_look_that_changes_dtypes_or_finds_no_number_is_its_own_affair(how):
    federations = []
    for method in (OddProbe(linear, SGD), FedAvg(linear, SGD)):
        torch.manual_seed(0)
        method.network.load_state_dict(linear().state_dict())
        method.how = how
        federations.append(fitted(method))
    assert equal(*(federation.global_state for federation in federations))
    left_out = [event for event in events(federations[0]) if event["event"] == "left_out"]
    told = [(event["client"], event["round"], event["reason"].partition(":")[0]) for event in left_out]
    assert told == ([] if how == "widened" else [(1, 2, "could not be evaluated")])
    assert {row["client"] for row in rows(federations[0]) if row["metric"] == "looked"} == {"0", "1", "2"}


class EverybodysMistake(FedAvg):
    def probe(self, client):
        return {"acc": 1.0}


def test_a_mistake_of_everybody_s_look_ends_the_run():
    with pytest.raises(UsageError, match="gives 'acc', which the federation measures on the same samples"):
        fitted(EverybodysMistake(linear, SGD))


# --- counters


class Counts(FedAvg):
    """Client 1 says that it has counted far."""

    def __init__(self, far, name="num_batches_tracked"):
        super().__init__(SmallCNN, SGD)
        self.far = far
        self.counted = name
        self.register_buffer("samples", torch.zeros(2, dtype=torch.int64))

    def on_client_end(self, client):
        if client.id == 1:
            dict(self.named_buffers())[self.counted].add_(self.far)


BATCHES = "network.1.num_batches_tracked"


@pytest.mark.parametrize(("far", "name"), [(2**62, BATCHES), (10**5, BATCHES), (2**62, "samples")])
def test_a_counter_beyond_what_a_visit_can_count_leaves_its_client_out(far, name):
    torch.manual_seed(0)
    federation = fitted(Counts(far, name), num_rounds=2)
    torch.manual_seed(0)
    others = fitted(Counts(0, name), toy_data(opt_out=[1]), num_rounds=2)
    assert equal(federation.global_state, others.global_state)
    reasons = {event["reason"] for event in events(federation) if event["event"] == "left_out"}
    assert len(reasons) == 1
    assert reasons.pop().startswith(f"unusable state: {name!r} has grown by {far:.4g} in one round")


@pytest.mark.parametrize(("far", "name"), [(100, BATCHES), (2**39, "samples")])
def test_a_counter_that_somebody_may_have_counted_to_is_taken(far, name):
    federation = fitted(Counts(far, name), num_rounds=2)
    assert int(federation.global_state[name].max()) > 2 * far - 1
    assert not [event for event in events(federation) if event["event"] == "left_out"]


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
    with pytest.raises(ValueError, match=r"`trainer\.aggregator` leaves, tried on .*: SystemExit"):
        fitted(FedAvg(linear, SGD), aggregator=leaves)
