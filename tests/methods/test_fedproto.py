"""FedProto: a plain loop bit for bit, invariants, prototypes by hand, networks that differ."""

import pytest
import torch
import torch.nn.functional as F
from plain_loops import PLAIN, RATE, batches, first_networks, gradients, samples, taking_part
from torch import nn, tensor
from torch.testing import assert_close
from toys import SGD, SmallCNN, equal, fitted, linear, part, rows, toy_data, uneven

from fedlit import LocalOnly, Stage
from fedlit.aggregation import Upload
from fedlit.losses import prototype_distance
from fedlit.methods import FedProto
from fedlit.partition import Shards

COHORTS = [[0, 1], [1, 2], [0, 1, 2]]


def narrow() -> nn.Module:
    """Features of 6; dropout before them, BatchNorm below."""
    convolution = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*convolution, nn.Dropout(0.3), nn.Linear(72, 6), nn.ReLU(), nn.Linear(6, 3))


class Wide(nn.Module):
    """Another network whose last layer takes 6 features; its parts are no sequence."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 20)
        self.second = nn.Linear(20, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.relu(self.first(x.flatten(1))))))


class Alone(LocalOnly):
    """Local-only training on the batches of a federated stage."""

    def configure_stages(self):
        return [Stage("federate", upload="none")]


# --- a plain loop


def plain_pull(f, y, cbar, known, distance):
    if distance == "mean":
        return ((f - cbar[y]).square() * known[y][:, None]).mean()
    members = F.one_hot(y, 3)
    means = (members.T.float() @ f) / members.sum(dim=0).clamp_min(1)[:, None]
    there = known & (members.sum(dim=0) > 0)
    return ((means - cbar).square().sum(dim=1) * there).sum()


def plain_fedproto(data, networks, lam, distance):
    """Algorithm 1, written out."""
    cbar, known = torch.zeros(3, 6), torch.zeros(3, dtype=torch.bool)
    for number, cohort in enumerate(COHORTS, start=1):
        total, weight = torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
        for k in cohort:
            network = networks[k]
            body, last = network[:-1], network[-1]
            for x, y in batches(data, number, k):
                f = body(x)
                pull = plain_pull(f, y, cbar, known, distance)
                directions = gradients(network, F.cross_entropy(last(f), y) + lam * pull)
                with torch.no_grad():
                    for p, g in zip(network.parameters(), directions, strict=True):
                        p.add_(g, alpha=-RATE)
            x, y = samples(data, k)
            network.eval()
            with torch.no_grad():
                parts = [F.one_hot(b, 3).T.float() @ body(a) for a, b in zip(x.split(8), y.split(8), strict=True)]
            network.train()
            counts = F.one_hot(y, 3).sum(dim=0)
            own = torch.stack(parts).sum(dim=0) / counts.clamp_min(1)[:, None]
            total = total + counts[:, None] * own.double()
            weight = weight + counts
        held = weight > 0
        cbar = torch.where(held[:, None], (total / weight.clamp_min(1)[:, None]).float(), cbar)
        known = known | held
    return cbar, known


@pytest.mark.parametrize(("given", "distance"), [({}, "mean"), ({"distance": "sum"}, "sum")])
def test_three_rounds_are_algorithm_1_by_a_plain_loop_bit_for_bit(given, distance):
    method = taking_part(FedProto, COHORTS)(narrow, PLAIN, lam=0.5, **given)
    networks = first_networks(method)
    federation = fitted(method, uneven())
    cbar, known = plain_fedproto(uneven(), networks, lam=0.5, distance=distance)
    assert torch.equal(federation.global_state["prototypes"], cbar)
    assert torch.equal(federation.global_state["known"], known)
    for k, state in federation.personal_states.items():
        assert equal(part(state, "network."), networks[k].state_dict())


# --- invariants


@pytest.mark.parametrize(("lam", "holds"), [(0.0, True), (0.5, False)])
def test_with_lam_0_and_only_then_it_is_local_training(lam, holds):
    alone = fitted(Alone(SmallCNN, SGD), uneven()).personal_states
    proto = fitted(FedProto(SmallCNN, SGD, lam=lam), uneven()).personal_states
    assert all(equal(alone[k], proto[k]) for k in range(3)) is holds


def test_a_class_that_nobody_holds_has_no_prototype_and_no_term():
    data = toy_data(num_clients=2, partition=Shards(per_client=1))
    data.setup()
    held = {int(y) for k in range(2) for y in samples(data, k)[1].unique()}
    federation = fitted(taking_part(FedProto, [[0]] * 3)(narrow, PLAIN), data)
    first = {int(y) for y in samples(data, 0)[1].unique()}
    assert first < held  # else there is nothing to see
    known = federation.global_state["known"]
    assert {j for j in range(3) if known[j]} == first
    assert not federation.global_state["prototypes"][~known].any()
    features = torch.randn(4, 6, requires_grad=True)
    nothing = prototype_distance(features, tensor([0, 1, 0, 1]), torch.randn(3, 6), tensor([False, False, True]))
    assert nothing.item() == 0.0


def test_a_class_that_a_round_misses_keeps_its_prototype():
    method = FedProto(linear, PLAIN)
    current = {"prototypes": torch.full((3, 64), 7.0), "known": tensor([True, False, False])}
    means = torch.ones(3, 64)
    agreed = method.aggregate([Upload(0, {"means": means, "counts": tensor([0, 2, 0])})], current)
    assert agreed["known"].tolist() == [True, True, False]
    assert agreed["prototypes"][:, 0].tolist() == [7.0, 1.0, 7.0]


# --- numbers


@pytest.mark.parametrize(("weighting", "expected"), [("examples", 2.5), ("uniform", 2.0)])
def test_prototypes_are_weighted_by_hand(weighting, expected):
    """Means 1 and 3 of one and three samples: (1 + 9) / 4, or 4 / 2; of class 1 one client has all."""
    method = FedProto(lambda: nn.Linear(1, 2), PLAIN, weighting=weighting)
    current = {"prototypes": torch.zeros(2, 1), "known": torch.zeros(2, dtype=torch.bool)}
    uploads = [
        Upload(0, {"means": tensor([[1.0], [5.0]]), "counts": tensor([1, 2])}),
        Upload(1, {"means": tensor([[3.0], [0.0]]), "counts": tensor([3, 0])}),
    ]
    assert method.aggregate(iter(uploads), current)["prototypes"].tolist() == [[expected], [5.0]]


@pytest.mark.parametrize(
    ("given", "expected", "gradient"),
    [
        # Samples (1, 0) and (4, 0) of class 0 less its prototype (1, 1): 0 + 1 + 9 + 1, over 3 samples of 2 features
        ({}, 11 / 6, [[0, -1 / 3], [1, -1 / 3], [0, 0]]),
        # Their mean (2.5, 0) less (1, 1): 2.25 + 1; each of the two samples moves the mean by a half
        ({"reduction": "sum"}, 3.25, [[1.5, -1], [1.5, -1], [0, 0]]),
    ],
)
def test_the_distance_and_its_gradient_by_hand(given, expected, gradient):
    features = tensor([[1.0, 0.0], [4.0, 0.0], [9.0, 9.0]], requires_grad=True)
    known, prototypes = tensor([True, False]), tensor([[1.0, 1.0], [0.0, 0.0]])
    distance = prototype_distance(features, tensor([0, 0, 1]), prototypes, known, **given)
    distance.backward()
    assert distance.item() == pytest.approx(expected)
    assert_close(features.grad, tensor(gradient, dtype=torch.float32))


def test_the_nearest_prototype_is_predicted_and_an_unknown_class_never():
    method = FedProto(lambda: nn.Linear(2, 3), PLAIN, predict="prototype")
    method.prototypes.copy_(tensor([[0.0, 0.0], [2.0, 0.0], [9.0, 9.0]]))
    x = tensor([[0.5, 0.0], [1.5, 0.0], [9.0, 9.0]])
    assert_close(method(x), method.network(x))  # before the first round there is none
    method.known.copy_(tensor([True, True, False]))
    assert method(x).argmax(dim=1).tolist() == [0, 1, 1]
    assert method(x)[0].tolist() == [-0.25, -2.25, -torch.inf]
    method.predict = "classifier"
    assert_close(method(x), method.network(x))


# --- networks that differ


def test_networks_may_differ_in_all_but_the_width_of_features(tmp_path):
    method = FedProto(narrow, SGD, client_networks={1: Wide})
    federation = fitted(method, default_root_dir=str(tmp_path))
    assert "network.second.weight" in federation.personal_states[1]
    assert "network.0.weight" in federation.personal_states[0]
    assert federation.global_state["known"].all()
    kinds = {(row["direction"], row["kind"], int(row["bytes"])) for row in rows(federation, "ledger.csv")}
    assert kinds == {("down", "one-way", 4 * 18 + 3), ("up", "one-way", 4 * 18 + 8 * 3)}
    assert {row["model"] for row in rows(federation)} == {"personal", "trained"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_networks": {2: linear}}, r"the last linear layer of client 2 must take 6 features, got 64"),
        ({"client_networks": {7: Wide}}, r"`model.client_networks` names client 7"),
        ({"lam": -1}, r"`model.lam` must be at least 0"),
        ({"predict": "both"}, r"`model.predict` must be one of classifier, prototype"),
        ({"distance": "max"}, r"`model.distance` must be one of mean, sum"),
        ({"network": nn.Flatten}, r"Flatten must hold a linear layer as its last"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fitted(FedProto(**{"network": narrow, "optimizer": PLAIN, **options}))


def test_a_rule_or_a_server_optimizer_would_never_be_asked():
    from fedlit.aggregation import Median

    with pytest.raises(ValueError, match=r"`trainer.aggregator` Median would be ignored: `aggregate` of FedProto"):
        fitted(FedProto(narrow, PLAIN), aggregator=Median())
    with pytest.raises(ValueError, match=r"`trainer.server_optimizer` would never be asked: FedProto averages nothing"):
        fitted(FedProto(narrow, PLAIN), server_optimizer=PLAIN)
