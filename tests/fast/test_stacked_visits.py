"""A stack of perceptrons trains as visits would, but for rounding; whatever is not plain is visited by itself."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
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
    Watched,
    alone,
    note,
    run,
    spoilt_data,
)
from torch import nn
from toys import equal, rows, toy_data, toy_datasets

from fedlit import FedAvg
from fedlit.callbacks import FederationCallback
from fedlit.data import FederatedData
from fedlit.engine.plan import Memory, Plan
from fedlit.fast.begun_visit import Beginnings, perceptron_names
from fedlit.fast.permission import for_visit, trains_all
from fedlit.fast.stack import Stack
from fedlit.fast.stacked_visits import Cohort
from fedlit.methods.stage import Stage


@pytest.fixture
def stacks(monkeypatch):
    """The ids of the clients of every stack that is trained."""
    seen, train = [], Stack.train

    def watched(self, *args):
        seen.append([member.client.id for member in self.members])
        return train(self, *args)

    monkeypatch.setattr(Stack, "train", watched)
    return seen


def near(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


@pytest.mark.parametrize("options", DEALS.values(), ids=DEALS)
def test_a_stack_trains_as_visits_do(options, stacks, monkeypatch, tmp_path):
    stacked = run(**options, default_root_dir=str(tmp_path / "stacked"))
    assert stacks
    before = len(stacks)
    alone(monkeypatch)
    visited = run(**options, default_root_dir=str(tmp_path / "visited"))
    assert len(stacks) == before
    assert near(stacked.global_state, visited.global_state)
    assert not near(stacked.global_state, stacked.state.initial)
    ours, theirs = rows(stacked), rows(visited)
    assert [(r["client"], r["metric"]) for r in ours] == [(r["client"], r["metric"]) for r in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert float(a["value"]) == pytest.approx(float(b["value"]), abs=2e-5)


@pytest.mark.parametrize("declared", ["download_only", "upload_only"])
def test_who_sends_a_part_one_way_only_is_visited_alone(declared, stacks):
    """A stack would upload all of the perceptron, and nothing else."""
    own = type("Own", (FedAvg,), {declared: ("network.head.bias",)})
    run(lambda: own(SMALL, SGD), num_rounds=1)
    assert stacks == []


def test_who_chooses_clients_is_stacked_as_ever(stacks):
    own = type("Own", (FedAvg,), {"select_clients": lambda self, round, candidates: candidates[:4]})
    run(lambda: own(SMALL, SGD), num_rounds=1)
    assert stacks == [[0, 1, 2, 3]]


@pytest.mark.parametrize(("name", "value", "largest"), [("AT_ONCE", 1, 1), ("AT_ONCE", 2, 2), ("ROOM", 9_000, 2)])
def test_nor_on_how_many_are_stacked_at_once(name, value, largest, stacks, monkeypatch):
    many = {"data": lambda: toy_data(size=100, num_clients=7)}
    state = run(**many).global_state
    assert max(map(len, stacks)) > 2
    monkeypatch.setattr(f"fedlit.fast.stacked_visits.{name}", value)
    stacks.clear()
    assert equal(state, run(**many).global_state)
    assert max(map(len, stacks)) == largest


def test_the_same_clients_are_stacked_on_one_process_and_on_many(monkeypatch):
    data, method = toy_data(size=150, num_clients=12, client_batch_sizes={0: 3, 5: 3}), FedAvg(SMALL, SGD)
    data.setup()
    method.fast = True
    stage = method.configure_stages()[0]

    def stacked(rank, processes):
        fabric = Fabric(accelerator="cpu")
        for name, value in (("global_rank", rank), ("world_size", processes)):
            monkeypatch.setattr(Fabric, name, value)
        plans = lambda k: Plan(stage, 0)  # noqa: E731
        server = method.state_dict()
        beginnings = Beginnings(fabric, method, is_undisturbed=False)
        names = perceptron_names(method, beginnings.perceptron(plans(0)), server)
        mine = list(range(12))[rank::processes]
        return Cohort(beginnings, list(range(12)), mine, plans, data.client, None, server, names).mine

    one = stacked(0, 1)
    assert one
    assert 0 not in one  # of a kind with client 5 alone
    assert sorted(stacked(0, 3) + stacked(1, 3) + stacked(2, 3)) == one
    monkeypatch.setattr("fedlit.fast.stacked_visits.MANY", 1)
    monkeypatch.setattr("fedlit.fast.stacked_visits.SHARE", 0.1)
    assert 0 in stacked(0, 1)


def test_what_another_optimiser_left_with_a_client_is_passed_on_by_a_visit(stacks):
    method = FedAvg(SMALL, SGD)
    method.fast = True
    data = toy_data(size=60, num_clients=5)
    data.setup()
    fabric = Fabric(accelerator="cpu")
    stage = method.configure_stages()[0]
    server = method.state_dict()
    beginnings = Beginnings(fabric, method, is_undisturbed=False)
    names = perceptron_names(method, beginnings.perceptron(Plan(stage, 0)), server)

    def entered(k):
        method.client = data.client(k)

    cohort = Cohort(
        beginnings, list(range(5)), list(range(5)), lambda k: Plan(stage, 0), data.client, entered, server, names
    )
    assert cohort.outcome(0, Memory(optimizer={"federate": {names[0]: {"momentum_buffer": None}}})) is None
    assert cohort.outcome(1, Memory()).upload.client == 1
    assert stacks == [[1, 2, 3, 4]]


NOT_STACKED = {
    **NOT_PLAIN,
    "few clients": {"data": lambda: toy_data(size=36)},
    "exact mode": {"fast": False},
    "many samples": {"data": lambda: toy_data(size=6000, num_clients=5, batch_size=1000), "local_epochs": 1},
}


@pytest.mark.parametrize("options", NOT_STACKED.values(), ids=NOT_STACKED)
def test_what_is_not_plain_is_visited(options, stacks):
    run(**{"num_rounds": 1, **options})
    assert stacks == []


def test_a_rule_of_its_own_gets_every_upload(stacks):
    seen = []

    class Median(FedAvg):
        def aggregate(self, uploads, current):
            seen.extend(uploads)
            return seen[0].state

    federation = run(lambda: Median(SMALL, SGD), num_rounds=1)
    assert [upload.client for upload in seen] == [0, 1, 2, 3, 4]
    assert equal(federation.global_state, seen[0].state)
    assert stacks == [[0, 1, 2, 3, 4]]


class Slower(FedAvg):
    """Lowers the rate while uploads come."""

    def aggregate(self, uploads, current):
        def slower():
            for i, upload in enumerate(uploads):
                self.optimizer = partial(torch.optim.SGD, lr=0.1 / (i + 2))
                yield upload

        try:
            return super().aggregate(slower(), current)
        finally:
            self.optimizer = SGD


def test_a_rate_that_is_changed_between_uploads_holds_for_the_next_client(stacks, monkeypatch):
    stacked = run(lambda: Slower(SMALL, SGD), num_rounds=1).global_state
    assert stacks
    alone(monkeypatch)
    assert near(stacked, run(lambda: Slower(SMALL, SGD), num_rounds=1).global_state)
    assert not near(stacked, run(num_rounds=1).global_state)


@pytest.mark.parametrize("how", REASONS)
def test_a_bad_client_spoils_nothing(how, stacks, tmp_path):
    bad = run(None, lambda: spoilt_data(how), num_rounds=1, default_root_dir=str(tmp_path))
    events = [json.loads(line) for line in (Path(bad.log_dir) / "events.jsonl").read_text().splitlines()]
    (left_out,) = [event for event in events if event["event"] == "left_out"]
    assert left_out["client"] == 1
    assert REASONS[how] in left_out["reason"]
    assert {r["client"] for r in rows(bad) if r["metric"] == "train_loss"} == {"0", "2", "3", "4"}
    assert stacks
    others = run(lambda: Others(SMALL, SGD), lambda: spoilt_data(None), num_rounds=1)
    assert equal(bad.global_state, others.global_state)


def test_a_stack_that_fails_is_visited(stacks, monkeypatch):
    def failing(self, batch):
        raise MemoryError("too large")

    monkeypatch.setattr(Stack, "_step", failing)
    state = run().global_state
    assert stacks
    alone(monkeypatch)
    assert equal(state, run().global_state)


class Thaw(FederationCallback):
    """After the first round."""

    def on_round_start(self, federation, module, round, clients):
        module.network.extractor.requires_grad_(round > 1)


def test_a_frozen_layer_stays_frozen(stacks):
    def method():
        method = FedAvg(SMALL, SGD)
        method.network.extractor.requires_grad_(False)
        return method

    federation = run(method)
    name = "network.extractor.1.weight"
    assert torch.equal(federation.global_state[name], federation.state.initial[name])
    assert stacks == []
    thawed = run(lambda: FedAvg(SMALL, SGD), callbacks=Thaw())
    assert stacks
    assert not torch.equal(thawed.global_state[name], thawed.state.initial[name])


def test_the_next_random_number_is_the_same(stacks, monkeypatch):
    run()
    after = torch.rand(3)
    alone(monkeypatch)
    run()
    assert torch.equal(after, torch.rand(3))
    assert stacks


def test_a_user_s_own_network_is_stacked_too(stacks, monkeypatch):
    def state():
        return run(lambda: FedAvg(OwnNetwork, SGD)).global_state

    stacked = state()
    assert stacks == [[0, 1, 2, 3, 4]] * 3
    alone(monkeypatch)
    assert near(stacked, state())


class Watch(FederationCallback):
    """Hangs a hook on a layer, a network or everything, at the start of a round."""

    def __init__(self, hang):
        self.hang = hang
        self.handle = None

    def on_round_start(self, federation, module, round, clients):
        if round == 2:
            self.handle = self.hang(module)


HANGERS = {
    "a layer": lambda module: module.network.head.register_forward_hook(note),
    "the method": lambda module: module.register_forward_hook(note),
    "all modules": lambda module: nn.modules.module.register_module_forward_hook(note),
}


@pytest.mark.parametrize("hang", HANGERS.values(), ids=HANGERS)
def test_a_hook_that_a_callback_hangs_up_runs_for_every_client(hang, stacks):
    seen = {}
    for fast in (True, False):
        SEEN.clear()
        watch = Watch(hang)
        run(callbacks=watch, num_rounds=2, fast=fast)
        watch.handle.remove()
        seen[fast] = len(SEEN)
    assert seen[True] == seen[False] > 0
    assert stacks == [[0, 1, 2, 3, 4]]  # the round before


@pytest.mark.parametrize("moment", WATCHED)
def test_a_hook_that_is_hung_up_beside_a_visit_is_seen_at_once(moment, stacks):
    """From whatever a user's code is asked for in the middle of a round."""
    SEEN.clear()
    watched = Watched(moment)
    watched.run()
    assert len(SEEN) == WATCHED[moment]


@pytest.mark.parametrize("fast", [True, False])
def test_where_nobody_else_s_code_runs_a_network_is_looked_at_once_a_round(fast, monkeypatch):
    looks = []
    monkeypatch.setattr("fedlit.fast.begun_visit.for_visit", lambda *args: looks.append(args) or for_visit(*args))
    run(num_rounds=2, fast=fast)
    assert len(looks) == 2
    run(lambda: Others(SMALL, SGD), num_rounds=1, fast=fast)
    assert len(looks) >= 2 + 5


def test_an_optimiser_is_built_once_a_round_for_all_that_share_it(stacks, monkeypatch):
    built = []
    monkeypatch.setattr("fedlit.fast.begun_visit.trains_all", lambda *args: built.append(1) or trains_all(*args))
    slower = {2: partial(torch.optim.SGD, lr=0.3)}
    run(lambda: FedAvg(SMALL, SGD, client_optimizers=slower), num_rounds=1)
    assert len(built) == 2
    assert stacks == [[0, 1, 2, 3, 4]]


class HomeFirst(FedAvg):
    def configure_stages(self):
        return [Stage("home", upload="none", rounds=1), Stage("federate", rounds=1)]


def test_what_a_client_has_from_an_earlier_stage_stays(stacks, monkeypatch):
    def personal():
        return run(lambda: HomeFirst(SMALL, SGD)).personal_states

    stacked = personal()
    assert stacks == [[0, 1, 2, 3, 4]]
    alone(monkeypatch)
    visited = personal()
    assert all(stacked[k] and equal(stacked[k], visited[k]) for k in range(5))


def test_a_run_that_was_cut_goes_on_with_the_same_bits(stacks, tmp_path):
    whole = run(num_rounds=4, default_root_dir=str(tmp_path / "a")).global_state
    run(num_rounds=2, default_root_dir=str(tmp_path / "b"))
    cut = run(num_rounds=4, default_root_dir=str(tmp_path / "b"), ckpt_path="last").global_state
    assert equal(whole, cut)
    assert len(stacks) == 8


class Untidy(FederatedData):
    """A user's data, which change what others find whenever batches are made."""

    def train_batches(self, *args, **options):
        batches = super().train_batches(*args, **options)
        torch.set_default_dtype(torch.float64)
        return batches


def test_what_a_user_s_data_change_ends_with_the_visit(stacks):
    train, test = toy_datasets()
    data = Untidy(train_dataset=train, test_dataset=test, num_clients=5, batch_size=8, val_size=0.1)
    found = []

    class Asks(FedAvg):
        def aggregate(self, uploads, current):
            result = super().aggregate(uploads, current)
            found.append(torch.get_default_dtype())
            return result

    try:
        run(lambda: Asks(SMALL, SGD), lambda: data, num_rounds=2)
    finally:
        torch.set_default_dtype(torch.float32)
    assert stacks
    assert found == [torch.float32] * 2
