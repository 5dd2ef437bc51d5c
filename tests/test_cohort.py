"""A stack of perceptrons trains as visits would, but for rounding; whatever is not plain is visited by itself."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import equal, fitted, rows, toy_data
from torch import nn

from fedlit import FedAvg, LocalOnly
from fedlit.augment import Flip
from fedlit.cohort import Cohort, Member, Stack, is_worth_it
from fedlit.methods import FML, FedProx
from fedlit.networks import MLP
from fedlit.partition import Dirichlet
from fedlit.visit import Interrupted

SGD = partial(torch.optim.SGD, lr=0.1)
SMALL = partial(MLP, image_size=8, num_classes=3, hidden=(7, 5))


@pytest.fixture
def stacks(monkeypatch):
    """The ids of the clients of every stack that is trained."""
    seen, train = [], Stack.train

    def watched(self, should_stop):
        seen.append([member.client.id for member in self.members])
        return train(self, should_stop)

    monkeypatch.setattr(Stack, "train", watched)
    return seen


def run(method=None, data=None, **options):
    torch.manual_seed(5)
    method = method() if method else FedAvg(SMALL, SGD)
    data = data() if data else toy_data(size=45)
    return fitted(method, data, **{"num_rounds": 3, "local_epochs": 2, "fast": True, **options})


def alone(monkeypatch):
    monkeypatch.setattr(Cohort, "of", classmethod(lambda cls, *_: None))


def near(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


DEALS = {
    "equal clients": {},
    "a smaller last batch": {"data": lambda: toy_data(size=45, batch_size=4)},
    "no smaller batch": {"data": lambda: toy_data(size=45, batch_size=4, drop_last=True)},
    "clients of different sizes": {"data": lambda: toy_data(size=45, partition=Dirichlet(1.0), num_clients=4)},
    "batches of different sizes": {"data": lambda: toy_data(size=45, client_batch_sizes={1: 3})},
    "epochs of different numbers": {"client_epochs": {0: 3}},
    "a number of steps": {"local_epochs": None, "local_steps": 5},
    "rates of different clients": {
        "method": lambda: FedAvg(SMALL, SGD, client_optimizers={2: partial(torch.optim.SGD, lr=0.3)})
    },
    "a schedule": {"lr_schedule": partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)},
    "no hidden layer": {"method": lambda: FedAvg(partial(MLP, image_size=8, num_classes=3, hidden=()), SGD)},
    "weights that are all the same": {"method": lambda: FedAvg(SMALL, SGD, weighting="uniform")},
    "samples that are not shared": {"data": lambda: toy_data(size=45, opt_out_samples=0.3)},
}


@pytest.mark.parametrize("options", DEALS.values(), ids=DEALS)
def test_a_stack_trains_as_visits_do(options, stacks, monkeypatch, tmp_path):
    stacked = run(**options, default_root_dir=str(tmp_path / "stacked"))
    assert stacks
    before = len(stacks)
    alone(monkeypatch)
    visited = run(**options, default_root_dir=str(tmp_path / "visited"))
    assert len(stacks) == before
    assert near(stacked.global_state, visited.global_state)
    assert not near(stacked.global_state, stacked.run.initial)
    ours, theirs = rows(stacked), rows(visited)
    assert [(r["client"], r["metric"]) for r in ours] == [(r["client"], r["metric"]) for r in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert float(a["value"]) == pytest.approx(float(b["value"]), abs=2e-5)


def member(x, y, steps, rate=1.0):
    return Member(None, torch.tensor(x), torch.tensor(y), [torch.tensor(step) for step in steps], rate)


def test_two_steps_by_hand():
    # One sample x = 2 of class 0, W = b = 0: z = (0, 0), p = (1/2, 1/2), delta = (-1/2, 1/2). Then W x + b is
    # (1/2, -1/2) (2 * 2 + 1) = (5/2, -5/2) and p_1 = 1 / (1 + e^5) = 0.0066929: delta = (-0.0066929, 0.0066929).
    stack = Stack([torch.zeros(2, 1)], [torch.zeros(2)], [member([[2.0]], [0], [[0], [0]])])
    stack.train(bool)
    (weight, bias), loss = stack.trained(0)
    assert weight.tolist() == [pytest.approx([1 + 2 * 0.0066929]), pytest.approx([-1 - 2 * 0.0066929])]
    assert bias.tolist() == pytest.approx([0.5066929, -0.5066929])
    assert loss == pytest.approx((0.6931472 + 0.0067153) / 2)  # -log(1/2), -log(1 - p_1)


def random_members(count, size=6, seed=0):
    torch.manual_seed(seed)
    found = []
    for _ in range(count):
        steps = [part for _ in range(2) for part in torch.randperm(size).split(4)]
        found.append(Member(None, torch.randn(size, 30), torch.randint(0, 3, (size,)), steps, 0.1))
    return found


def trained(members, spoil=lambda stack: None):
    torch.manual_seed(1)
    weights = [torch.randn(8, 30), torch.randn(5, 8), torch.randn(3, 5)]
    stack = Stack(weights, [torch.randn(8), torch.randn(5), torch.randn(3)], members)
    spoil(stack)
    stack.train(bool)
    return [stack.trained(place) for place in range(len(members))]


def by_autograd(member):
    torch.manual_seed(1)
    parameters = [torch.randn(shape) for shape in ((8, 30), (5, 8), (3, 5), 8, 5, 3)]
    weights, biases = parameters[:3], parameters[3:]
    optimizer = torch.optim.SGD([parameter.requires_grad_() for parameter in parameters], lr=member.rate)
    for step in member.steps:
        a = member.x[step]
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            a = nn.functional.linear(a.relu() if i else a, weight, bias)
        optimizer.zero_grad()
        nn.functional.cross_entropy(a, member.y[step]).backward()
        optimizer.step()
    return [tensor.detach() for pair in zip(weights, biases, strict=True) for tensor in pair]


def close(ours, theirs):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


def test_a_stack_is_autograd_but_for_rounding():
    members = random_members(5)
    for (layers, _), one in zip(trained(members), members, strict=True):
        assert close(layers, by_autograd(one))
        assert not close(layers, by_autograd(members[0])) or one is members[0]


def test_without_the_bias_in_the_products_it_would_be_wrong():
    members = random_members(2)
    layers, _ = trained(members, lambda stack: stack.products.sub_(1))[0]
    assert not close(layers, by_autograd(members[0]))


@pytest.mark.parametrize("beside", [1, 2, 5, 16])
def test_a_client_s_bits_do_not_depend_on_who_stands_beside_it(beside):
    members = random_members(17)
    together = trained(members)
    apart = [each for i in range(0, 17, beside) for each in trained(members[i : i + beside])]
    for (ours, loss), (theirs, same_loss) in zip(together, apart, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        assert loss == same_loss


@pytest.mark.parametrize(("name", "value", "largest"), [("AT_ONCE", 1, 1), ("AT_ONCE", 2, 2), ("ROOM", 9_000, 2)])
def test_nor_on_how_many_are_stacked_at_once(name, value, largest, stacks, monkeypatch):
    many = {"data": lambda: toy_data(size=100, num_clients=7)}
    state = run(**many).global_state
    assert max(map(len, stacks)) > 2
    monkeypatch.setattr(f"fedlit.cohort.{name}", value)
    stacks.clear()
    assert equal(state, run(**many).global_state)
    assert max(map(len, stacks)) == largest


def test_what_a_stack_is_worth_by_hand():
    # 10 samples of 20 features, width 5, each seen twice. Products: 10 * 20 * (2 * 5 + 10) + 20 * 10 * 5 = 5,000;
    # as itself: 2 * 20 * 20 * 5 = 4,000.
    for faster, visit, worth in ((1, 0, False), (1, 1000, True), (1, 999, False), (1.25, 0, True), (1.2, 0, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedlit.cohort.FASTER", faster)
            patch.setattr("fedlit.cohort.VISIT", visit)
            assert is_worth_it(10, 20, 5, seen=20, batch_size=64) is worth
            assert is_worth_it(10, 20, 5, seen=20, batch_size=65) is (visit == 1000)
    one = Member(None, torch.zeros(10, 20), torch.zeros(10), [torch.arange(10)] * 2, 0.1)
    assert one.num_bytes(5) == 4 * 10 * (20 + 10 + 2 * 5)


def test_an_upload_is_no_view_of_the_stack():
    for layers, _ in trained(random_members(3)):
        assert all(layer.untyped_storage().nbytes() == layer.numel() * 4 for layer in layers)


def test_a_stack_stops_when_asked():
    stack = Stack([torch.zeros(2, 1)], [torch.zeros(2)], [member([[2.0]], [0], [[0], [0]])])
    with pytest.raises(Interrupted):
        stack.train(lambda: len(stack.losses) == 1)
    assert len(stack.losses) == 1


class OwnStart(FedAvg):
    def on_client_start(self, client):
        pass


class OwnNetworks(FedAvg):
    def configure_client(self, client):
        pass


class OwnOptimizer(FedAvg):
    def configure_optimizers(self):
        return super().configure_optimizers()


class OwnStep(FedAvg):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)


class PersonalHead(FedAvg):
    shared = ("network.extractor",)


class WithBuffer(FedAvg):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_buffer("count", torch.zeros(1))


def with_own_train():
    network = SMALL()
    network.__class__ = type("Own", (MLP,), {"train": lambda self, mode=True: nn.Module.train(self, mode)})
    return network


def of(kind, network=SMALL, optimizer=SGD):
    return {"method": lambda: kind(network, optimizer)}


NOT_PLAIN = {
    "exact mode": {"fast": False},
    "a start of its own": of(OwnStart),
    "networks of its own": of(OwnNetworks),
    "an optimiser of its own": of(OwnOptimizer),
    "a step of its own": of(OwnStep),
    "a personal head": of(PersonalHead),
    "a buffer": of(WithBuffer),
    "a network with a `train` of its own": of(FedAvg, with_own_train),
    "another loss": {"method": lambda: FedProx(SMALL, SGD, mu=0.1)},
    "two networks": {"method": lambda: FML(SMALL, SMALL, SGD)},
    "nothing exchanged": of(LocalOnly),
    "momentum": of(FedAvg, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "Adam": of(FedAvg, optimizer=partial(torch.optim.Adam, lr=0.1)),
    "a clipped gradient": {"gradient_clip_val": 1.0},
    "random inputs": {"data": lambda: toy_data(size=45, augmentation=[Flip()])},
    "many samples": {"data": lambda: toy_data(size=6000, batch_size=1000), "local_epochs": 1},
    "double precision": {"precision": "64-true"},
}


@pytest.mark.parametrize("options", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_is_visited(options, stacks):
    run(**{"num_rounds": 1, **options})
    assert stacks == []


def test_a_rule_of_its_own_gets_every_upload(stacks):
    class Median(FedAvg):
        def aggregate(self, uploads, current):
            self.seen = list(uploads)
            return self.seen[0].state

    method = Median(SMALL, SGD)
    federation = run(lambda: method, num_rounds=1)
    assert [upload.client for upload in method.seen] == [0, 1, 2]
    assert equal(federation.global_state, method.seen[0].state)
    assert stacks == [[0, 1, 2]]


class BadWeight(FedAvg):
    spoil = None

    def client_weight(self, client):
        if client.id == 1 and self.spoil == "weight":
            raise OSError("no scales")
        return super().client_weight(client)


def spoilt_data(how):
    """Client 1 has what would stop or spoil its visit."""
    data = toy_data(size=48, num_clients=4)
    plain = data.train_batches

    def spoilt(client, *args):
        batches = plain(client, *args)
        if client == 1 and how == "batches":
            raise OSError("no disk")
        if client == 1 and how == "samples":
            batches.x[0] = float("nan")
        if client == 1 and how == "targets":
            batches.y[0] = 3
        return batches

    data.train_batches = spoilt
    return data


class Others(FedAvg):
    """The same without client 1."""

    def aggregate(self, uploads, current):
        return super().aggregate((upload for upload in uploads if upload.client != 1), current)


REASONS = {"samples": "not finite", "targets": "Target 3", "batches": "no disk", "weight": "no scales"}


@pytest.mark.parametrize("how", ["samples", "targets", "batches", "weight"])
def test_a_bad_client_spoils_nothing(how, stacks, tmp_path):
    class Spoilt(BadWeight):
        spoil = how

    bad = run(lambda: Spoilt(SMALL, SGD), lambda: spoilt_data(how), num_rounds=1, default_root_dir=str(tmp_path))
    events = [json.loads(line) for line in (Path(bad.log_dir) / "events.jsonl").read_text().splitlines()]
    (left_out,) = [event for event in events if event["event"] == "left_out"]
    assert left_out["client"] == 1
    assert REASONS[how] in left_out["reason"]
    assert {r["client"] for r in rows(bad) if r["metric"] == "train_loss"} == {"0", "2", "3"}
    assert stacks
    others = run(lambda: Others(SMALL, SGD), lambda: spoilt_data(None), num_rounds=1)
    assert equal(bad.global_state, others.global_state)


def test_a_run_that_was_cut_goes_on_with_the_same_bits(stacks, tmp_path):
    whole = run(num_rounds=4, default_root_dir=str(tmp_path / "a")).global_state
    run(num_rounds=2, default_root_dir=str(tmp_path / "b"))
    cut = run(num_rounds=4, default_root_dir=str(tmp_path / "b"), ckpt_path="last").global_state
    assert equal(whole, cut)
    assert len(stacks) == 8
