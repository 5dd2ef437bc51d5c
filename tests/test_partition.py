"""The settings of the papers: sizes, class counts, seeds; what a client gets does not depend on the labels."""

import numpy as np
import pytest

from fedlit.partition import (
    IID,
    BinarySeparated,
    ClassSets,
    Dirichlet,
    FeatureSkew,
    Majority,
    OverTime,
    PermutedPixels,
    Quantity,
    Shards,
)

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def shuffled(counts):
    """Labels with `counts[c]` samples of class c, in a file order of their own."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))


CIFAR, CIFAR_TEST, CIFAR100 = shuffled([5000] * 10), shuffled([1000] * 10), shuffled([500] * 100)


def table(parts, labels, num_classes=10):
    """Samples of each class at each client, [K, C]."""
    return np.stack([np.bincount(labels[part], minlength=num_classes) for part in parts])


def class_sets(parts, labels):
    return [set(labels[part].tolist()) for part in parts]


def all_equal(left, right):
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def is_disjoint(parts):
    together = np.concatenate(parts)
    return len(np.unique(together)) == len(together)


EVERY = [
    IID(),
    IID(300),
    Shards(2),
    Shards(2, samples_per_client=20),
    Shards(4, "per_class"),
    Shards(4, "distinct"),
    BinarySeparated(),
    BinarySeparated("random"),
    ClassSets("niid3", 300),
    Majority(0.9, 300),
    Dirichlet(0.5),
    PermutedPixels(),
    Quantity(0.5),
    Quantity(power=1.0),
    FeatureSkew([0, 90]),
    OverTime(4, Dirichlet(0.5)),
]
DISJOINT = [partition for partition in EVERY if not isinstance(partition, ClassSets)]
every = pytest.mark.parametrize("partition", EVERY, ids=lambda partition: type(partition).__name__)
disjoint = pytest.mark.parametrize("partition", DISJOINT, ids=lambda partition: type(partition).__name__)


# All settings


@every
def test_a_partition_is_one_int64_array_per_client_that_its_seed_fixes(partition):
    parts = partition.assign(CIFAR_TEST, 5, 10, seed=1)
    assert [part.dtype for part in parts] == [np.dtype(np.int64)] * 5
    assert all_equal(parts, partition.assign(CIFAR_TEST, 5, 10, seed=1))
    assert not all_equal(parts, partition.assign(CIFAR_TEST, 5, 10, seed=2))


@disjoint
def test_no_two_clients_hold_the_same_sample(partition):
    assert is_disjoint(partition.assign(CIFAR_TEST, 5, 10, seed=1))


@pytest.mark.parametrize(
    "partition",
    [IID(), Shards(2), Shards(4, "per_class"), BinarySeparated(), Dirichlet(0.1), Quantity(0.1), Quantity(power=2)],
)
def test_no_sample_is_left_over(partition):
    assert sorted(np.concatenate(partition.assign(CIFAR_TEST, 5, 10, seed=3)).tolist()) == list(range(10_000))


@every
def test_labels_beyond_the_classes_and_empty_federations_are_refused(partition):
    with pytest.raises(ValueError, match=r"`labels` must lie in \[0, 9\), got 0 to 9"):
        partition.assign(CIFAR_TEST, 5, 9, seed=0)
    with pytest.raises(ValueError, match="`num_clients` must be at least 1, got 0"):
        partition.assign(CIFAR_TEST, 0, 10, seed=0)


def test_scaled_scales_samples_per_client_and_nothing_else():
    majority = Majority(0.7, 500, majority_classes=3)
    smaller = majority.scaled(0.2)
    assert (smaller.samples_per_client, smaller.p, smaller.majority_classes) == (100, 0.7, 3)
    assert majority.samples_per_client == 500
    assert IID(3).scaled(0.01).samples_per_client == 1
    assert PermutedPixels(IID(50)).scaled(0.5).base.samples_per_client == 25


KNOWING = [partition for partition in EVERY if not isinstance(partition, Shards)]


@pytest.mark.parametrize("partition", KNOWING, ids=lambda partition: type(partition).__name__)
def test_what_a_client_holds_is_near_the_class_probabilities_that_its_partition_states(partition):
    labels = shuffled(MNIST_TEST)
    p = partition.class_probabilities(np.bincount(labels), 5, seed=4)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    held = table(partition.assign(labels, 5, 10, seed=4), labels)
    assert np.abs(held / held.sum(axis=1, keepdims=True) - p).max() < 0.1


def test_class_probabilities_by_hand():
    sizes = np.array([30, 10])
    assert IID().class_probabilities(sizes, 2, seed=0).tolist() == [[0.75, 0.25]] * 2
    assert ClassSets([[0], [0, 1]]).class_probabilities(sizes, 3, seed=0).tolist() == [[1, 0], [0.5, 0.5], [1, 0]]
    majority = Majority(0.8, 10, 1).class_probabilities(np.array([10] * 5), 1, seed=0)
    np.testing.assert_allclose(sorted(majority[0]), [0.05] * 4 + [0.8])


# Invariant: what a client gets is the same on training and test labels


@pytest.mark.parametrize("per_client", [6, 4, 2])
@pytest.mark.parametrize("mode", ["equal_size", "per_class", "distinct"])
def test_shards_of_balanced_test_labels_have_the_classes_and_shares_of_training(per_client, mode):
    train = table(Shards(per_client, mode).assign(CIFAR, 5, 10, seed=4), CIFAR)
    test = table(Shards(per_client, mode).assign(CIFAR_TEST, 5, 10, seed=4), CIFAR_TEST)
    assert np.abs(train / 5 - test).max() <= 1
    other = table(Shards(per_client, mode).assign(CIFAR_TEST, 5, 10, seed=5), CIFAR_TEST)
    assert np.abs(train / 5 - other).max() > 1


@pytest.mark.parametrize(("alpha", "tolerance"), [(0.05, 0.2), (0.5, 0.002), (100.0, 0.002)])  # top-ups; rounding
def test_dirichlet_proportions_are_the_same_on_any_labels_even_when_some_client_is_short(alpha, tolerance):
    partition, test = Dirichlet(alpha, min_samples=20), shuffled(MNIST_TEST)
    q = np.exp(partition.log_proportions(20, 10, seed=0)).T  # [K, C]
    np.testing.assert_allclose(q.sum(axis=0), 1)
    for labels in (CIFAR, test):
        counts = table(partition.assign(labels, 20, 10, seed=0), labels)
        shares = counts / counts.sum(axis=0)
        assert np.abs(shares - q).max() < tolerance
    other = np.exp(partition.log_proportions(20, 10, seed=1)).T
    assert np.abs(other - q).max() > tolerance


# IID


@pytest.mark.parametrize(("n", "sizes"), [(50_000, [10_000] * 5), (60_000, [12_000] * 5), (13, [3, 3, 3, 2, 2])])
def test_iid_parts_differ_by_at_most_one(n, sizes):
    assert [len(part) for part in IID().assign(np.zeros(n, dtype=int), 5, 1, seed=0)] == sizes


def test_iid_refuses_more_than_there_is():
    with pytest.raises(ValueError, match=r"`samples_per_client`: 5 clients with 20 or more each need 100 sam.* 99"):
        IID(20).assign(np.zeros(99, dtype=int), 5, 1, seed=0)
    with pytest.raises(ValueError, match=r"`num_clients`: 5 clients .* there are 4"):
        IID().assign(np.zeros(4, dtype=int), 5, 1, seed=0)
    with pytest.raises(ValueError, match="`samples_per_client` must be at least 1, got 0"):
        IID(0)


# Shards: FML, section 2.12; FedMMD's hundred clients, section 3.5


def shards_of(labels, num_shards, num_classes, mode="equal_size"):
    """One shard per client: the shards themselves, [S, C], in no order."""
    return table(Shards(1, mode).assign(labels, num_shards, num_classes, seed=0), labels, num_classes)


@pytest.mark.parametrize(("p", "sizes"), [(6, {1666, 1667}), (4, {2500}), (2, {5000})])
def test_cifar10_shards_stop_exactly_at_the_class_borders(p, sizes):
    shards = shards_of(CIFAR, 5 * p, 10)
    assert set(shards.sum(axis=1).tolist()) == sizes
    assert ((shards > 0).sum(axis=1) == 1).all()
    assert ((shards > 0).sum(axis=0) == p // 2).all()  # 3, 2, 1 shards per class


def test_mnist_shards_of_equal_size_straddle_the_unequal_classes():
    shards = shards_of(shuffled(MNIST), 10, 10)
    assert (shards.sum(axis=1) == 6000).all()
    held = (shards > 0).sum(axis=1)
    assert ((held >= 2) & (held <= 3)).sum() == 8


def test_per_class_shards_of_mnist_hold_one_class_and_clients_at_most_p():
    labels = shuffled(MNIST)
    assert ((shards_of(labels, 10, 10, "per_class") > 0).sum(axis=1) == 1).all()
    assert (table(Shards(2, "per_class").assign(labels, 5, 10, seed=0), labels) > 0).sum(axis=1).max() <= 2


@pytest.mark.parametrize("p", [2, 4, 6])
@pytest.mark.parametrize("seed", range(5))
def test_distinct_shards_of_mnist_give_every_client_exactly_p_digits_and_every_digit_to_as_many(p, seed):
    labels = shuffled(MNIST)
    held = table(Shards(p, "distinct").assign(labels, 5, 10, seed), labels) > 0
    assert (held.sum(axis=1) == p).all()
    assert (held.sum(axis=0) == p // 2).all()  # 5 p shards of 10 digits; one client each where p = 2: no overlap


def test_shards_refuse_what_they_cannot_cut():
    with pytest.raises(ValueError, match=r"`per_client`=3 for 5 clients makes 15 shards, 15 of them .* 14 samples"):
        Shards(3).assign(np.zeros(14, dtype=int), 5, 1, seed=0)
    with pytest.raises(ValueError, match="15 shards; `mode`='per_class' needs a multiple of the 10 classes"):
        Shards(3, "per_class").assign(CIFAR, 5, 10, seed=0)
    with pytest.raises(ValueError, match="20 shards, 2 of them to be cut from 1 samples"):
        Shards(4, "per_class").assign(shuffled([9] * 9 + [1]), 5, 10, seed=0)
    with pytest.raises(ValueError, match="15 shards; `mode`='distinct' needs a multiple of the 10 classes"):
        Shards(3, "distinct").assign(CIFAR, 5, 10, seed=0)
    with pytest.raises(ValueError, match=r"`per_client`=4 different classes .*='distinct' has only 2"):
        Shards(4, "distinct").assign(shuffled([50] * 2), 3, 2, seed=0)
    with pytest.raises(ValueError, match="`mode` must be one of equal_size, per_class, distinct, got 'equal'"):
        Shards(mode="equal")
    with pytest.raises(ValueError, match="`per_client` must be at least 1, got 0"):
        Shards(0)


# BinarySeparated: FedMMD, section 3.5


@pytest.mark.parametrize(
    ("split", "first"), [("halves", {0, 1, 2, 3, 4}), ("even_odd", {0, 2, 4, 6, 8})], ids=["halves", "even_odd"]
)
def test_binary_separated_gives_each_of_two_clients_25000_images_of_five_classes(split, first):
    parts = BinarySeparated(split).assign(CIFAR, 2, 10, seed=0)
    assert [len(part) for part in parts] == [25_000, 25_000]
    assert class_sets(parts, CIFAR) == [first, set(range(10)) - first]


def test_binary_separated_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match="`resplit_every_round` draws new halves and needs `split`='random', got 'hal"):
        BinarySeparated("halves", resplit_every_round=True)
    with pytest.raises(ValueError, match="`num_clients` must be at least 2, one for each half, got 1"):
        BinarySeparated().assign(CIFAR, 1, 10, seed=0)
    with pytest.raises(ValueError, match=r"`num_clients`: 2 clients .* there are 1"):
        BinarySeparated().assign(np.array([0, 1, 1]), 4, 2, seed=0)


def test_only_what_asks_for_it_is_split_again_every_round():
    again = BinarySeparated("random", resplit_every_round=True)
    assert again.resplit_every_round
    assert PermutedPixels(again).resplit_every_round
    assert not any(partition.resplit_every_round for partition in EVERY)


# ClassSets: DLAD, section 6.7


def test_niid1_draws_with_replacement_about_half_of_each_class():
    pool = shuffled([1000] * 10)
    parts = ClassSets("niid1", 5000).assign(pool, 10, 10, seed=0)
    counts = table(parts, pool)
    assert (counts.sum(axis=1) == 5000).all()
    for k, row in enumerate(counts):
        own = [2 * (k % 5), 2 * (k % 5) + 1]
        assert row[own].sum() == 5000
        assert np.abs(row[own] - 2500).max() < 200  # more than five standard deviations
    assert all(len(np.unique(part)) < len(part) for part in parts)


def test_niid2_and_niid3_are_the_sets_of_the_paper():
    niid2 = class_sets(ClassSets("niid2", 500).assign(CIFAR, 6, 10, seed=0), CIFAR)
    assert niid2 == [{0, 1, 2, 3, 4, own} for own in (5, 6, 7, 8, 9, 5)]
    niid3 = class_sets(ClassSets("niid3", 500).assign(CIFAR, 5, 10, seed=0), CIFAR)
    assert all(len(a & b) == 1 for i, a in enumerate(niid3) for b in niid3[:i])
    assert [sum(c in held for held in niid3) for c in range(10)] == [2] * 10


def test_class_sets_refuse_unknown_names_empty_lists_and_absent_classes():
    with pytest.raises(ValueError, match="`sets` must be one of iid, niid1, niid2, niid3, got 'niid4'"):
        ClassSets("niid4")
    with pytest.raises(ValueError, match="`sets` must hold class lists, none of them empty"):
        ClassSets([[0], []])
    with pytest.raises(ValueError, match=r"`sets`=niid1 names classes without samples here: \[8, 9\]"):
        ClassSets("niid1").assign(shuffled([10] * 8), 2, 8, seed=0)


# Majority: the mixture of experts, section 5.6


@pytest.mark.parametrize("p", [0.0, 0.2, 0.29, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [500, 100, 7])
def test_majority_and_rest_are_exactly_n(p, n):
    counts = table(Majority(p, n, pairs="fixed").assign(CIFAR, 5, 10, seed=0), CIFAR)
    assert (counts.sum(axis=1) == n).all()
    assert [row[2 * k : 2 * k + 2].sum() for k, row in enumerate(counts)] == [round(p * n)] * 5


@pytest.mark.parametrize("seed", range(3))
def test_drawn_majorities_are_the_fixed_ones_of_classes_in_another_order(seed):
    drawn = class_sets(Majority(1.0, 10).assign(CIFAR, 6, 10, seed), CIFAR)
    assert [len(pair) for pair in drawn] == [2] * 6
    assert set().union(*drawn[:5]) == set(range(10))  # disjoint while they last
    assert drawn[5] == drawn[0]


def test_majority_refuses_what_the_data_cannot_give():
    with pytest.raises(ValueError, match=r"`samples_per_client`=400 for 50 clients needs 200 .* class 0, there are"):
        Majority(1.0, 400, pairs="fixed").assign(shuffled([100] * 100), 50, 100, seed=0)
    with pytest.raises(ValueError, match=r"`p` must lie in \[0, 1\], got 90"):
        Majority(p=90)
    with pytest.raises(ValueError, match="`pairs` must be one of drawn, fixed, got 'random'"):
        Majority(pairs="random")
    with pytest.raises(ValueError, match="`majority_classes` must be below the number of classes, 2, got 2"):
        Majority().assign(np.array([0, 1]), 1, 2, seed=0)


# Dirichlet


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_shares_have_the_mean_and_the_variance_of_a_dirichlet(alpha):
    num_clients = 4
    q = np.exp(Dirichlet(alpha).log_proportions(num_clients, 20_000, seed=0))
    variance = (1 / num_clients) * (1 - 1 / num_clients) / (num_clients * alpha + 1)
    np.testing.assert_allclose(q.mean(axis=0), 1 / num_clients, atol=0.01)
    np.testing.assert_allclose(q.var(axis=0), variance, rtol=0.05)


@pytest.mark.parametrize("alpha", [1e-2, 1e-5, 1e-12, 1e-200])
@pytest.mark.parametrize("min_samples", [1, 37])
def test_every_client_has_min_samples_for_the_smallest_alpha(alpha, min_samples):
    parts = Dirichlet(alpha, min_samples).assign(CIFAR_TEST, 100, 10, seed=0)
    assert min(map(len, parts)) == min_samples
    assert is_disjoint(parts)
    assert sum(map(len, parts)) == 10_000


def test_dirichlet_refuses_bad_numbers_and_too_little_data():
    with pytest.raises(ValueError, match="`min_samples`: 100 clients with 101 or more each need 10100 samples"):
        Dirichlet(min_samples=101).assign(CIFAR_TEST, 100, 10, seed=0)
    for alpha in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"`alpha` must be (a finite number|above 0|at least 1e-300)"):
            Dirichlet(alpha)
    with pytest.raises(ValueError, match="`min_samples` must be at least 0, got -1"):
        Dirichlet(min_samples=-1)


# PermutedPixels: FedFusion, section 4.6


def test_each_client_has_one_fixed_order_of_pixels():
    partition = PermutedPixels()
    orders = [partition.pixel_permutation(client, 784, seed=0).tolist() for client in range(10)]
    assert all(sorted(order) == list(range(784)) for order in orders)
    assert len({tuple(order) for order in orders}) == 10
    assert orders[3] == partition.pixel_permutation(3, 784, seed=0).tolist()
    assert orders[3] != partition.pixel_permutation(3, 784, seed=1).tolist()


def test_a_client_keeps_so_many_of_its_shards_samples_and_of_every_class():
    whole = Shards(2, "per_class").assign(CIFAR, 5, 10, seed=4)
    some = Shards(2, "per_class", samples_per_client=20).assign(CIFAR, 5, 10, seed=4)
    for kept, held in zip(some, whole, strict=True):
        assert len(kept) == 20
        assert set(kept) < set(held)
        assert set(CIFAR[kept]) == set(CIFAR[held])
    with pytest.raises(ValueError, match="`samples_per_client`=9000000, but the shards of client 0 hold"):
        Shards(2, samples_per_client=9_000_000).assign(CIFAR, 5, 10, seed=4)


def test_min_samples_that_take_everything_leave_everyone_alike():
    assert {len(part) for part in Dirichlet(0.1, min_samples=100).assign(CIFAR_TEST, 100, 10, seed=0)} == {100}
