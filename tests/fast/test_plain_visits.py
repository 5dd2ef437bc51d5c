"""A visit in closed form is an ordinary one, to the bit; whatever is not plain is visited in the ordinary way."""

import json
import os
import sys
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.profilers import PassThroughProfiler
from perceptron_runs import (
    DEALS,
    NOT_PLAIN,
    REASONS,
    SEEN,
    SGD,
    SMALL,
    WATCHED,
    Others,
    OwnNetwork,
    Profiling,
    Watched,
    alone,
    run,
)
from torch import nn
from torchmetrics.classification import MulticlassAccuracy
from toys import equal, rows, toy_data, toy_datasets

from fedlit import FedAvg
from fedlit.aggregation import Median, weighted_mean
from fedlit.augment import Flip
from fedlit.data import FederatedData
from fedlit.data.batches import Batches
from fedlit.data.batching import Batching
from fedlit.data.client import Client
from fedlit.data.inputs import Inputs
from fedlit.encoders import Float16
from fedlit.engine.module.means import Means
from fedlit.engine.plan import Interrupted, Memory, Plan
from fedlit.fast.all_ours import is_undisturbed
from fedlit.fast.begun_visit import Beginnings, perceptron_names
from fedlit.fast.perceptron import Layers
from fedlit.fast.plain_visits import PlainVisits
from fedlit.methods.stage import Stage
from fedlit.partition import IID, OverTime
from fedlit.privacy import ClientLevelDP


@pytest.fixture
def short(monkeypatch):
    """The ids of the clients whose visits are shortened."""
    seen, outcome = [], PlainVisits.outcome

    def watched(self, k, memory):
        found = outcome(self, k, memory)
        if found is not None:
            seen.append(k)
        return found

    monkeypatch.setattr(PlainVisits, "outcome", watched)
    return seen


def exact(*args, **options):
    return run(*args, **{"fast": False, "num_rounds": 2, **options})


def records(federation) -> str:
    return (Path(federation.log_dir) / "metrics.csv").read_text()


@pytest.mark.parametrize("options", DEALS.values(), ids=DEALS)
def test_a_short_visit_is_an_ordinary_one_to_the_bit(options, short, monkeypatch, tmp_path):
    shortened = exact(**options, default_root_dir=str(tmp_path / "short"))
    num_clients = shortened.state.data.num_clients
    assert short == list(range(num_clients)) * 2
    alone(monkeypatch)
    visited = exact(**options, default_root_dir=str(tmp_path / "visited"))
    assert len(short) == 2 * num_clients
    assert equal(shortened.global_state, visited.global_state)
    assert not equal(shortened.global_state, shortened.state.initial)
    assert records(shortened) == records(visited)


def test_a_user_s_own_network_is_shortened_too(short, monkeypatch):
    def state():
        return exact(lambda: FedAvg(OwnNetwork, SGD)).global_state

    shortened = state()
    assert short == [0, 1, 2, 3, 4] * 2
    alone(monkeypatch)
    assert equal(shortened, state())


@pytest.mark.parametrize("options", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_is_visited(options, short):
    exact(**{"num_rounds": 1, **options})
    assert short == []


def test_a_visit_that_may_be_killed_is_in_a_process_of_its_own(short):
    exact(num_rounds=1, client_timeout=60.0)
    assert short == []


def spoilt_samples(how=None):
    """Client 1 has a sample that spoils its visit."""
    data = toy_data(size=75, num_clients=5)
    data.setup()
    first = data.assignment.train[1][0]
    if how == "samples":
        data.splits.train.x[first] = float("nan")
    if how == "targets":
        data.splits.train.y[first] = 3
    return data


@pytest.mark.parametrize("how", ["samples", "targets"])
def test_a_bad_client_spoils_nothing(how, short, tmp_path):
    bad = exact(None, lambda: spoilt_samples(how), num_rounds=1, default_root_dir=str(tmp_path))
    events = [json.loads(line) for line in (Path(bad.log_dir) / "events.jsonl").read_text().splitlines()]
    (left_out,) = [event for event in events if event["event"] == "left_out"]
    assert left_out["client"] == 1
    assert REASONS[how] in left_out["reason"]
    assert {r["client"] for r in rows(bad) if r["metric"] == "train_loss"} == {"0", "2", "3", "4"}
    assert set(short) >= {0, 2, 3, 4}
    others = exact(lambda: Others(SMALL, SGD), spoilt_samples, num_rounds=1)
    assert equal(bad.global_state, others.global_state)


def patched():
    data = toy_data(size=60, num_clients=5)
    data.val_batches = data.val_batches
    return data


class OwnData(FederatedData):
    """The same under another name."""


class OwnPartition(IID):
    """The same under another name."""


class OwnFlip(Flip):
    """Nothing random about it."""

    random = False


class OwnEncoder(Float16):
    """The same under another name."""


class OwnAccuracy(MulticlassAccuracy):
    """The same under another name."""


class Checks(FedAvg):
    def check_upload(self, client, upload, most_steps):
        pass


class Measures(FedAvg):
    def metrics(self):
        return super().metrics()


class Weighs(FedAvg):
    """By what the live network holds."""

    @property
    def weighting(self):
        return "uniform"

    @weighting.setter
    def weighting(self, value):
        pass


def own_data():
    train, test = toy_datasets(60)
    return OwnData(train_dataset=train, test_dataset=test, num_clients=5, batch_size=8)


A_USER_S = {
    "data": {"data": own_data},
    "a function of data": {"data": patched},
    "a partition": {"data": lambda: toy_data(size=60, num_clients=5, partition=OwnPartition())},
    "a partition in another": {"data": lambda: toy_data(size=60, num_clients=5, partition=OverTime(2, OwnPartition()))},
    "an augmentation": {"data": lambda: toy_data(size=60, num_clients=5, augmentation=[OwnFlip()])},
    "an encoder": {"upload_encoder": OwnEncoder()},
    "a metric": {"metrics": {"own": OwnAccuracy(num_classes=3)}},
    "a check of uploads": {"method": lambda: Checks(SMALL, SGD)},
    "what is measured": {"method": lambda: Measures(SMALL, SGD)},
    "a weight that is computed": {"method": lambda: Weighs(SMALL, SGD)},
    "samples that are read one by one": {"data": lambda: toy_data(size=60, num_clients=5, in_memory=False)},
}
OURS = {
    "a partition": {"data": lambda: toy_data(size=60, num_clients=5, partition=OverTime(2, IID()))},
    "an encoder": {"upload_encoder": Float16()},
    "a metric": {"metrics": {"own": MulticlassAccuracy(num_classes=3)}},
}


@pytest.mark.parametrize("options", A_USER_S.values(), ids=A_USER_S)
def test_where_code_of_a_user_s_may_run_a_visit_is_guarded(options, short):
    exact(**{"num_rounds": 1, **options})
    assert short == []


@pytest.mark.parametrize("options", OURS.values(), ids=OURS)
def test_where_all_is_ours_it_is_short(options, short):
    exact(**{"num_rounds": 1, **options})
    assert short == [0, 1, 2, 3, 4]


def test_what_replaces_a_function_of_data_is_called(short, monkeypatch):
    monkeypatch.setattr(Client, "val_batches", Client.val_batches)
    exact(num_rounds=1)
    assert short
    monkeypatch.setattr(Client, "val_batches", lambda self: self.data.val_batches([self.id], self.round)[0])
    short.clear()
    exact(num_rounds=1)
    assert short == []


class Parameters(FedAvg):
    def aggregate(self, uploads, current):
        return {name: nn.Parameter(tensor) for name, tensor in super().aggregate(uploads, current).items()}


class Columns(FedAvg):
    def aggregate(self, uploads, current):
        agreed = super().aggregate(uploads, current)
        return {name: tensor.t().contiguous().t() if tensor.ndim == 2 else tensor for name, tensor in agreed.items()}


@pytest.mark.parametrize("kind", [Parameters, Columns])
def test_in_whatever_form_a_rule_leaves_the_state(kind, short, monkeypatch, tmp_path):
    shortened = exact(lambda: kind(SMALL, SGD), num_rounds=3, default_root_dir=str(tmp_path / "short"))
    assert len(short) == 15
    alone(monkeypatch)
    visited = exact(lambda: kind(SMALL, SGD), num_rounds=3, default_root_dir=str(tmp_path / "visited"))
    assert equal(shortened.global_state, visited.global_state)
    assert records(shortened) == records(visited)


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [lambda: sys.exit(0), lambda: os._exit(0), interrupt], ids=["exit", "_exit", "Ctrl-C"])
@pytest.mark.parametrize("fast", [False, True])
def test_a_client_whose_samples_end_the_run_is_left_out(end, fast, tmp_path):
    data = toy_data(size=60, num_clients=5)
    plain = data.train_batches

    def ending(client, *args, **options):
        return end() if client == 1 else plain(client, *args, **options)

    data.train_batches = ending
    federation = run(None, lambda: data, num_rounds=1, fast=fast, default_root_dir=str(tmp_path))
    events = [json.loads(line) for line in (Path(federation.log_dir) / "events.jsonl").read_text().splitlines()]
    assert [event["client"] for event in events if event["event"] == "left_out"] == [1]
    assert {r["client"] for r in rows(federation) if r["metric"] == "train_loss"} == {"0", "2", "3", "4"}


@pytest.mark.parametrize("moment", WATCHED)
def test_a_hook_that_is_hung_up_beside_a_visit_is_seen_at_once(moment, short):
    SEEN.clear()
    watched = Watched(moment)
    watched.run(fast=False)
    assert len(SEEN) == WATCHED[moment]
    assert short == ([0] if WATCHED[moment] == 8 else [])


class Choices(dict):
    """A user's, whose `get` may do anything."""


def replaced(cls, name):
    """Somebody puts a function of theirs into a class."""
    original = getattr(cls, name)

    def disturb(monkeypatch, round):
        monkeypatch.setattr(cls, name, lambda *args, **options: original(*args, **options))

    return disturb


class Combining(FedAvg):
    def combine(self, uploads, current):
        return super().combine(uploads, current)


DISTURBANCES = {
    "a method that is given uploads": lambda _, round: round.update(module=Combining(SMALL, SGD)),
    "a rule on the method": lambda _, round: setattr(round["module"], "_rule", weighted_mean),
    "a rule": lambda _, round: round.update(rule=Median()),
    "privacy": lambda _, round: round.update(privacy=ClientLevelDP(clip=1.0, noise_multiplier=1.0)),
    "a profiler": lambda _, round: round.update(profiler=Profiling(list)),
    "choices of a user's": lambda _, round: setattr(round["module"], "client_optimizers", Choices()),
    "batch sizes of a user's": lambda _, round: setattr(round["data"], "client_batch_sizes", Choices()),
    "augmentation": lambda _, round: setattr(round["data"], "augmentation", [Flip()]),
    "a function on a partition": lambda _, round: setattr(round["data"].partition, "view", lambda *args: []),
    "another way to make batches": replaced(Batching, "train"),
    "another way to make inputs": replaced(Inputs, "ready"),
    "another order of batches": replaced(Batches, "order"),
    "another SGD": replaced(torch.optim.SGD, "__init__"),
    "another optimiser": replaced(torch.optim.Optimizer, "add_param_group"),
}


def plain_round():
    module, data = FedAvg(SMALL, SGD), toy_data(size=60, num_clients=5)
    return {"module": module, "data": data, "rule": None, "privacy": None, "profiler": PassThroughProfiler()}


def test_no_code_of_a_user_s_runs_in_a_plain_round():
    assert is_undisturbed(**plain_round())


@pytest.mark.parametrize("disturb", DISTURBANCES.values(), ids=DISTURBANCES)
def test_whatever_could_run_a_user_s_code_between_visits_is_seen(disturb, monkeypatch):
    round = plain_round()
    disturb(monkeypatch, round)
    assert not is_undisturbed(**round)


class Rate(float):
    """A rate that falls with every visit."""

    def __mul__(self, factor):
        return float(self) * factor * float(torch.rand(()))


def test_a_rate_that_is_no_plain_number_is_for_an_ordinary_visit(short):
    exact(lambda: FedAvg(SMALL, partial(torch.optim.SGD, lr=Rate(0.1))), num_rounds=1)
    assert short == []


class Growing(FedAvg):
    """Its network has one more layer once the first upload has come."""

    def aggregate(self, uploads, current):
        first = next(uploads)
        self.network.extractor.extend([torch.nn.Linear(5, 5), torch.nn.ReLU()])
        return super().aggregate(chain([first], uploads), current)


def test_a_network_that_changes_in_the_middle_of_a_round_is_seen(short):
    exact(lambda: Growing(SMALL, SGD), num_rounds=1)
    assert short == [0, 2, 3, 4]  # the ordinary visit of client 1 has given it its first structure back


def plain_visits(network=SMALL, **options) -> PlainVisits:
    method = FedAvg(network, SGD)
    data = toy_data(size=60, num_clients=5)
    data.setup()
    fabric = Fabric(accelerator="cpu")
    plan = Plan(method.configure_stages()[0], 0, **options)
    server = method.state_dict()
    beginnings = Beginnings(fabric, method, is_undisturbed=False)
    names = perceptron_names(method, beginnings.perceptron(plan), server)
    return PlainVisits(beginnings, lambda k: plan, data.client, server, names, Means)


def test_what_another_optimiser_left_with_a_client_is_passed_on_by_a_visit():
    visits = plain_visits()
    left = {"federate": {visits.names[0]: {"momentum_buffer": None}}}
    assert visits.outcome(0, Memory(optimizer=left)) is None
    assert visits.outcome(1, Memory()).upload.client == 1


def test_a_network_that_is_not_the_server_s_is_for_an_ordinary_visit():
    renamed = plain_visits(partial(SMALL, hidden=(5, 5, 5)))
    first, second = renamed.names[2:4], renamed.names[4:6]  # of two layers of one shape
    renamed.names = [*renamed.names[:2], *second, *first, *renamed.names[6:]]
    assert renamed.outcome(0, Memory()) is None
    reshaped = plain_visits()
    reshaped.server = {name: tensor[:1] for name, tensor in reshaped.server.items()}  # which could be broadcast
    assert reshaped.outcome(0, Memory()) is None
    assert plain_visits().outcome(0, Memory()) is not None


def test_a_visit_ends_when_the_run_is_to():
    answers = iter([False, True])
    with pytest.raises(Interrupted):
        plain_visits(should_stop=lambda: next(answers)).outcome(0, Memory())


class HomeFirst(FedAvg):
    def configure_stages(self):
        return [Stage("home", upload="none", rounds=1), Stage("federate", rounds=1)]


def test_what_a_client_has_from_an_earlier_stage_stays(short, monkeypatch):
    shortened = exact(lambda: HomeFirst(SMALL, SGD)).personal_states
    assert short == [0, 1, 2, 3, 4]
    alone(monkeypatch)
    visited = exact(lambda: HomeFirst(SMALL, SGD)).personal_states
    assert all(shortened[k] and equal(shortened[k], visited[k]) for k in range(5))


def test_the_next_random_number_is_the_same(short, monkeypatch):
    exact()
    after = torch.rand(3)
    alone(monkeypatch)
    exact()
    assert torch.equal(after, torch.rand(3))
    assert short


def test_layers_are_the_network_that_they_were_taken_from():
    network = SMALL().eval()
    x = torch.randn(9, 1, 8, 8)
    assert torch.equal(Layers(list(network.state_dict().values()))(x), network(x))
    assert not torch.equal(Layers(list(SMALL().state_dict().values()))(x), network(x))
