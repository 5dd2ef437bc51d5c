"""DLAD: its invariants, the optimal density classifier as an oracle, and what the server may see."""

from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn, tensor
from toys import Diary, SmallCNN, equal, fitted, linear, rows, toy_data

from fedlit import FederatedData
from fedlit.losses import density_loss, soft_cross_entropy, teacher_weights
from fedlit.methods import DLAD
from fedlit.methods.dlad import optimal_confidence
from fedlit.partition import IID, ClassSets, Shards

ADAM = partial(torch.optim.Adam, lr=0.01)
SHORT = {"client_epochs": 2, "density_epochs": 1, "distil_epochs": 2}


def seeded(network=SmallCNN, **options):
    torch.manual_seed(7)
    return DLAD(network, ADAM, **{**SHORT, **options})


def pooled_data(**options) -> FederatedData:
    return toy_data(150, **{"public": 0.5, "num_clients": 3, **options})


def test_equal_confidences_are_the_mean_of_all_teachers_and_unequal_ones_are_not():
    assert torch.equal(teacher_weights(torch.full((4, 2), 0.3)), torch.full((4, 2), 0.25))
    weights = teacher_weights(tensor([[0.9], [0.1]]), temperature=0.5)
    torch.testing.assert_close(weights, tensor([[1.6], [0.0]]).softmax(dim=0))


def test_the_temperature_divides_the_confidence_by_hand():
    # ratio of weights: exp((0.484 - 0) / 0.05) is about 16,000, the odds of the paper's first setting
    own, other = teacher_weights(tensor([[0.484], [0.0]])).flatten().double()
    assert float(own / other) == pytest.approx(15994, rel=1e-3)


def test_the_density_loss_by_hand():
    z, own = tensor([0.0, 2.0, -1.0]), tensor([True, False, True])
    parts = [1.5 * torch.log(tensor(2.0)), F.softplus(tensor(2.0)), 1.5 * F.softplus(tensor(1.0))]
    torch.testing.assert_close(density_loss(z, own, 1.5), sum(parts) / 3)


@pytest.mark.parametrize(
    ("p", "optimum"),
    [(1 / 2, 0.484), (1 / 6, 0.238), (1 / 4, 0.319), (1 / 10, 0.158)],
    ids=["niid1", "niid2", "niid3", "iid"],
)
def test_the_optimum_of_the_density_loss_is_the_oracles(p, optimum):
    """A table over ten classes, trained to the end on 5,000 own and 40,000 public samples (by their counts)."""
    own, public = 5000 * p, 40000 / 10
    z = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([z], max_iter=50)

    def closure():
        optimizer.zero_grad()
        loss = (own * density_loss(z[None], tensor([True])) + public * density_loss(z[None], tensor([False]))) / 45000
        loss.backward()
        return loss

    optimizer.step(closure)
    assert float(z.detach().sigmoid()) == pytest.approx(optimum, abs=1e-3)


def test_the_optimal_classifier_of_the_upper_bound_by_hand():
    shares, public = tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), tensor([0.1, 0.1, 0.8])
    expected = tensor([[5 / 6, 5 / 6, 0.0], [0.0, 0.0, 1 / 1.8]])
    torch.testing.assert_close(optimal_confidence(shares, public), expected)
    assert optimal_confidence(tensor([[0.0]]), tensor([0.0])).item() == 0


def test_soft_cross_entropy_is_cross_entropy_where_targets_are_sure():
    z, y = torch.randn(5, 3), tensor([0, 2, 1, 1, 0])
    torch.testing.assert_close(soft_cross_entropy(z, F.one_hot(y, 3).float()), F.cross_entropy(z, y))
    sharp, soft = tensor([[0.9, 0.1]]), tensor([[0.5, 0.5]])
    assert soft_cross_entropy(tensor([[3.0, 0.0]]), sharp) < soft_cross_entropy(tensor([[3.0, 0.0]]), soft)


def test_every_client_uploads_exactly_once_and_never_its_optimiser_or_the_student():
    federation = fitted(seeded(), pooled_data())
    lines = rows(federation, "ledger.csv")
    assert [(line["client"], line["kind"]) for line in lines if line["direction"] == "up"] == [
        (str(k), "model") for k in range(3)
    ]
    assert {line["kind"] for line in lines if line["direction"] == "down"} == {"public pool"}
    for upload in federation.state.collected.values():
        assert {name.split(".")[0] for name in upload} == {"classifier", "density"}
    assert {name.split(".")[0] for name in federation.global_state} == {"student"}


@pytest.mark.parametrize("aggregator", ["average", "labeled"])
def test_density_classifiers_are_trained_only_where_they_are_used(aggregator):
    federation = fitted(seeded(aggregator=aggregator), pooled_data())
    assert {name.split(".")[0] for upload in federation.state.collected.values() for name in upload} == {"classifier"}


@pytest.mark.parametrize(
    ("options", "same"), [({}, [True] * 4 + [False] * 2), ({"density_from": "scratch"}, [False] * 6)]
)
def test_the_density_classifier_starts_from_the_trained_classifier_but_for_its_head_or_from_scratch(options, same):
    class Watched(DLAD):
        same = Diary()

        def on_client_start(self, client):
            super().on_client_start(client)
            if self.stage.name == "density":
                pairs = zip(self.classifier.network.parameters(), self.density.network.parameters(), strict=True)
                self.same = [a.shape == b.shape and torch.equal(a, b) for a, b in pairs]

    torch.manual_seed(7)
    method = Watched(SmallCNN, ADAM, **SHORT, **options)
    fitted(method, pooled_data())
    assert method.same == same


def test_the_global_model_learns_from_clients_that_know_two_classes_each():
    data = pooled_data(partition=ClassSets([[0, 1], [1, 2], [2, 0]], 60), validation="test")
    long = {"client_epochs": 15, "density_epochs": 15, "distil_epochs": 15}
    federation = fitted(seeded(linear, **long), data)
    last = {key: parts["mean"] for key, parts in federation.state.scores.last.items()}
    assert last["acc/global_on_pooled"] > last["acc/personal_on_pooled"] + 0.1


def students_of_average_and_labeled(partition):
    """Trained on what the partition draws."""
    states = []
    for aggregator in ("average", "labeled"):
        data = pooled_data(partition=partition)
        states.append(fitted(seeded(aggregator=aggregator), data).global_state)
    return states


SETTINGS = [(IID(), True), (IID(20), True), (ClassSets("iid", 40), True)]
SETTINGS += [(ClassSets([[0, 1], [1, 2], [2, 0]], 40), False)]


@pytest.mark.parametrize(("partition", "holds"), SETTINGS)
def test_labeled_is_average_where_and_only_where_clients_have_the_same_class_probabilities(partition, holds):
    assert equal(*students_of_average_and_labeled(partition)) is holds


def test_where_a_partition_knows_none_the_samples_are_counted():
    data = pooled_data(partition=Shards(1))
    data.setup()
    client = data.client(1)
    assert torch.equal(client.class_probabilities(), client.class_shares())


@pytest.mark.parametrize(("aggregator", "sees"), [("adaptive", False), ("average", False), ("labeled", True)])
def test_only_labeled_can_see_the_labels_of_the_pool(aggregator, sees):
    def student(spoil):
        data = pooled_data(partition=ClassSets([[0], [1], [2]], 40))
        data.setup()
        if spoil:
            labels = data.public_pool.part.y
            labels.copy_((labels + 1) % 3)
        return fitted(seeded(aggregator=aggregator), data).global_state

    assert equal(student(False), student(True)) is not sees


def test_recorded_answers_of_teachers_give_the_same_student():
    states = [fitted(seeded(linear, record=record), pooled_data()).global_state for record in (True, False)]
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


def test_clients_and_server_may_have_different_networks():
    wide = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 3))  # noqa: E731
    method = seeded(SmallCNN, student=wide, client_networks={1: wide})
    federation = fitted(method, pooled_data())
    assert federation.state.collected[1]["classifier.network.1.weight"].shape == (9, 64)
    assert federation.state.collected[1]["density.network.3.weight"].shape == (1, 9)
    assert federation.global_state["student.network.3.weight"].shape == (3, 9)


def test_clients_with_heads_for_their_own_classes():
    small = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2))  # noqa: E731
    sets = [[0, 1], [1, 2], [2, 0]]
    data = pooled_data(partition=ClassSets(sets, 60), validation="test")
    method = seeded(linear, client_networks=[small] * 3, client_classes=dict(enumerate(sets)), distil_epochs=6)
    federation = fitted(method, data)
    assert federation.state.collected[2]["classifier.network.classes"].tolist() == [2, 0]
    assert federation.state.scores.last["acc/global_on_pooled"]["mean"] > 0.5


def test_a_client_with_a_sample_of_an_undeclared_class_is_left_out():
    small = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2))  # noqa: E731
    federation = fitted(seeded(linear, client_networks={0: small}, client_classes={0: [0, 1]}), pooled_data())
    assert sorted(federation.state.collected) == [1, 2]


def test_new_clients_join_without_training_the_others_again(tmp_path):
    first = fitted(seeded(), pooled_data(num_clients=2), default_root_dir=str(tmp_path / "first"))
    earlier = f"{first.log_dir}/checkpoints/last.ckpt"
    both = fitted(seeded(earlier=earlier), pooled_data(num_clients=3), default_root_dir=str(tmp_path / "second"))
    assert {line["client"] for line in rows(both, "ledger.csv")} == {"2"}
    assert all(equal(both.state.collected[k], first.state.collected[k]) for k in range(2))
    assert 2 in both.state.collected
    assert not equal(both.global_state, first.global_state)


def test_another_aggregator_takes_the_same_uploads(tmp_path):
    first = fitted(seeded(), pooled_data(), default_root_dir=str(tmp_path / "first"))
    earlier = f"{first.log_dir}/checkpoints/last.ckpt"
    again = fitted(
        seeded(aggregator="average", earlier=earlier), pooled_data(), default_root_dir=str(tmp_path / "second")
    )
    assert rows(again, "ledger.csv") == []
    wanted = [row["value"] for row in rows(first) if row["model"] == "personal"]
    assert [row["value"] for row in rows(again) if row["model"] == "personal"] == wanted


def test_an_earlier_run_with_another_network_is_refused(tmp_path):
    first = fitted(seeded(SmallCNN), pooled_data(), default_root_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"`model.earlier` holds an upload of client 0 that its network cannot take"):
        fitted(seeded(linear, earlier=f"{first.log_dir}/checkpoints/last.ckpt"), pooled_data())


@cache
def apart(**options):
    """A fit of clients with a class each, which several tests look at."""
    data = pooled_data(partition=ClassSets([[0], [1], [2]], 40))
    return fitted(seeded(**options), data)


def test_adaptive_is_not_average_where_clients_differ():
    assert not equal(apart().global_state, apart(aggregator="average").global_state)


@pytest.mark.parametrize(("temperature", "is_mean"), [(1e6, True), (0.05, False)])
def test_at_a_high_temperature_and_only_then_the_teachers_are_averaged(temperature, is_mean):
    federation, x = apart(temperature=temperature), torch.randn(9, 1, 8, 8)
    with torch.no_grad():
        mean = torch.stack([federation.network(client=k).eval()(x).softmax(dim=1) for k in range(3)]).mean(dim=0)
    assert torch.allclose(federation.state.module.student.teach(x, None), mean, atol=1e-5) is is_mean


def test_labels_of_opted_out_samples_reach_no_upper_bound_either():
    def student(spoil):
        data = pooled_data(opt_out_samples=0.4)
        data.setup()
        for train, shared in zip(data.assignment.train, data.assignment.opted_in, strict=True):
            hidden = train[~shared]
            data.images.train_y[hidden] = (data.images.train_y[hidden] + spoil) % 3
        return fitted(seeded(aggregator="labeled"), data).global_state

    assert equal(student(0), student(1))


def test_a_client_that_opted_out_is_not_counted_among_the_clients():
    federation = fitted(seeded(), pooled_data(opt_out=[1]))
    counted = {row["client"] for row in rows(federation) if row["model"] == "personal"}
    assert counted == {"0", "2"}


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"num_clients": 2}, "holds an upload of client 2, who takes no part here or has opted out"),
        ({"opt_out": [1]}, "holds an upload of client 1, who takes no part"),
    ],
)
def test_an_earlier_upload_of_nobody_is_refused(now, message, tmp_path):
    first = fitted(seeded(linear), pooled_data(), default_root_dir=str(tmp_path))
    with pytest.raises(ValueError, match=message):
        fitted(seeded(linear, earlier=f"{first.log_dir}/checkpoints/last.ckpt"), pooled_data(**now))


def test_an_earlier_run_without_density_classifiers_is_refused_before_anybody_trains(tmp_path):
    first = fitted(seeded(linear, aggregator="average"), pooled_data(), default_root_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"uploaded no 'density.*was its aggregator another"):
        fitted(seeded(linear, earlier=f"{first.log_dir}/checkpoints/last.ckpt"), pooled_data())


def test_a_pool_without_a_whole_batch_is_refused_where_others_are_dropped():
    with pytest.raises(ValueError, match=r"`data.drop_last` leaves no batch of the pool"):
        fitted(seeded(linear), pooled_data(public=0.02, drop_last=True))


def test_a_client_has_the_class_probabilities_of_its_set_by_hand():
    data = pooled_data(partition=ClassSets([[0, 1], [1, 2], [2]], 40))
    data.setup()
    assert data.client(1).class_probabilities().tolist() == [0.0, 0.5, 0.5]
    assert data.client(2).class_probabilities().tolist() == [0.0, 0.0, 1.0]
    assert data.client(1).class_shares().tolist() != [0.0, 0.5, 0.5]
