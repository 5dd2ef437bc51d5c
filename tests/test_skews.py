"""Clients that differ by size, by nature, in what they see, and over time."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from toys import toy_data, toy_datasets

from fedlit import FederatedData
from fedlit.augment import Tint
from fedlit.partition import IID, ByColumn, Dirichlet, FeatureSkew, OverTime, Partition, PermutedPixels, Quantity

NOTHING = np.zeros(1000, dtype=np.int64)  # labels of data without classes


def sizes(partition: Partition, num_clients: int = 10, seed: int = 0) -> list[int]:
    return [len(part) for part in partition.assign(NOTHING, num_clients, 1, seed)]


def ready(data: FederatedData) -> FederatedData:
    data.setup()
    return data


# Quantity


@pytest.mark.parametrize("partition", [Quantity(1e9), Quantity(power=0)])
def test_a_large_alpha_and_power_0_are_parts_of_equal_size(partition):
    assert sizes(partition) == [100] * 10
    assert max(sizes(partition, 7)) - min(sizes(partition, 7)) <= 1


@pytest.mark.parametrize("partition", [Quantity(0.3), Quantity(power=1)])
def test_a_small_alpha_or_a_power_are_parts_of_different_size(partition):
    found = sizes(partition)
    assert sum(found) == 1000
    assert max(found) > 3 * min(found)
    assert found != sizes(partition, seed=1)


def test_zipf_gives_the_second_half_of_what_the_first_has():
    assert sorted(sizes(Quantity(power=1), 4), reverse=True) == [480, 240, 160, 120]  # 1000 / (1 + 1/2 + 1/3 + 1/4)


def test_everybody_has_min_samples_however_uneven():
    assert min(sizes(Quantity(1e-6, min_samples=20))) == 20
    assert min(sizes(Quantity(1e-6, min_samples=0))) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`data.partition`: Quantity takes alpha or power, one of them"),
        ({"alpha": 1.0, "power": 1.0}, "`data.partition`: Quantity takes alpha or power, one of them"),
        ({"alpha": 0.0}, "`alpha` must be above 0, got 0"),
        ({"power": -1.0}, "`power` must be at least 0, got -1"),
        ({"alpha": 1.0, "min_samples": -1}, "`min_samples` must be at least 0"),
    ],
)
def test_quantity_refuses_what_it_cannot_deal(options, message):
    with pytest.raises(ValueError, match=message):
        Quantity(**options)
    with pytest.raises(
        ValueError, match=r"`min_samples`: 10 clients with 200 or more each need 2000 .* there are 1000"
    ):
        sizes(Quantity(1.0, min_samples=200))


# ByColumn


def owned(clients: list, **options) -> FederatedData:
    train, test = toy_datasets(len(clients))
    return FederatedData(
        train_dataset=train,
        test_dataset=test,
        partition=ByColumn(clients=clients, **options.pop("more", {})),
        **options,
    )


def test_every_sample_goes_to_the_client_that_it_names_and_no_other():
    whose = ["ann", "bob", "cid"] * 20
    data = ready(owned(whose, num_clients=3, val_size=0.2))
    assert data.client_names == ["ann", "bob", "cid"]
    for k, name in enumerate(data.client_names):
        held = np.concatenate([data.assignment.train[k], data.assignment.val[k]])
        assert {whose[i] for i in held} == {name}
        assert len(held) == 20
    swapped = ready(owned(["bob", "ann", "cid"] * 20, num_clients=3, val_size=0.2))
    assert set(swapped.assignment.train[0]) != set(data.assignment.train[0])


def test_a_file_has_a_client_in_each_line_or_in_a_column(tmp_path):
    (tmp_path / "who.txt").write_text("a\nb\na\nb\n" * 5)
    (tmp_path / "who.csv").write_text("row,who\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(20)))
    train, test = toy_datasets(20)
    held = []
    for partition in (
        ByColumn(clients="who.txt"),
        ByColumn("who", clients="who.csv"),
        ByColumn(clients=["a", "b"] * 10),
    ):
        data = ready(FederatedData(train_dataset=train, test_dataset=test, num_clients=2, partition=partition))
        held.append([part.tolist() for part in data.assignment.train])
    assert held[0] == held[1] == held[2]


def test_test_samples_are_dealt_out_by_their_own_clients():
    whose = ["a", "b", "c"] * 10
    data = ready(owned(["a", "b", "c"] * 20, num_clients=3, validation="test", more={"test_clients": whose}))
    for k, name in enumerate("abc"):
        assert {whose[i] for i in data.assignment.val[k]} == {name}


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        (
            ["a", "b"] * 30,
            {"num_clients": 3},
            "`data.num_clients` is 3, but training samples are of 2 clients; set it to 2",
        ),
        (
            ["a"] * 60,
            {"num_clients": 1, "validation": "test"},
            "the clients of the test samples are unknown: .* `test_clients` of ByColumn",
        ),
        (
            ["a"] * 60,
            {"num_clients": 1, "validation": "test", "more": {"test_clients": ["b"] * 30}},
            "some test samples are of a client who has no training samples",
        ),
    ],
)
def test_a_natural_partition_that_does_not_fit_is_refused(clients, options, message):
    with pytest.raises(ValueError, match=message) as refusal:
        owned(clients, **options).setup()
    assert "\n" not in str(refusal.value)


def test_a_list_of_another_length_a_missing_file_and_no_word_at_all_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`clients` must name the client of each of 60 samples, got 2"):
        toy_data(partition=ByColumn(clients=["a", "b"])).setup()
    with pytest.raises(
        ValueError, match="`clients` must be a list of clients or a file of them, there is no file gone"
    ):
        toy_data(partition=ByColumn(clients="gone")).setup()
    with pytest.raises(ValueError, match=r"the clients of the training samples are unknown: .* in `data.client`"):
        toy_data(partition=ByColumn()).setup()
    (tmp_path / "who.csv").write_text("row,who\n0,a\n")
    with pytest.raises(ValueError, match=r"`column` must be one of who.csv: row, who; got name"):
        toy_data(partition=ByColumn("name", clients="who.csv")).setup()


# FeatureSkew


def first_batch(data: FederatedData, client: int, evaluated: bool = False) -> torch.Tensor:
    data.setup()
    batches = data.client(client).val_batches() if evaluated else data.client(client).train_batches()
    return next(iter(batches))[0]


@pytest.mark.parametrize("evaluated", [False, True])
def test_turned_by_0_is_iid_and_turned_by_90_is_not(evaluated):
    plain, same, turned = (toy_data(partition=p) for p in (IID(), FeatureSkew([0]), FeatureSkew([0, 90])))
    for k in range(3):
        assert torch.equal(first_batch(plain, k, evaluated), first_batch(same, k, evaluated))
    assert torch.equal(first_batch(turned, 0, evaluated), first_batch(plain, 0, evaluated))
    assert torch.equal(first_batch(turned, 1, evaluated), first_batch(plain, 1, evaluated).rot90(1, (2, 3)))
    assert not torch.equal(first_batch(turned, 1, evaluated), first_batch(plain, 1, evaluated))
    assert torch.equal(first_batch(turned, 2, evaluated), first_batch(plain, 2, evaluated))  # rotations repeat


def test_a_view_of_what_is_no_image_is_refused_and_so_is_one_that_changes_nothing():
    flat = TensorDataset(torch.zeros(20, 5), torch.arange(20) % 2)
    for partition in (FeatureSkew([90]), PermutedPixels()):
        data = FederatedData(train_dataset=flat, test_dataset=flat, num_clients=2, partition=partition)
        with pytest.raises(
            ValueError, match=r"`data.partition` changes how clients see images, but inputs are float32"
        ):
            data.setup()
    with pytest.raises(ValueError, match="`rotations` or `colour` must be given"):
        FeatureSkew()
    with pytest.raises(ValueError, match="`rotations` must be at most 360, got 400"):
        FeatureSkew([400])
    with pytest.raises(ValueError, match="`base` must be a partition, got 3"):
        FeatureSkew([90], base=3)


# OverTime


def held(data: FederatedData, round: int) -> list[list[int]]:
    return [part.tolist() for part in data.at_round(round).train]


def test_one_slice_is_the_wrapped_partition_in_every_round():
    plain = ready(toy_data(partition=Dirichlet(1.0)))
    sliced = ready(toy_data(partition=OverTime(1, Dirichlet(1.0))))
    for round in (0, 1, 2):
        assert held(sliced, round) == held(plain, round)


@pytest.mark.parametrize("validation", ["train", "test", "reserve"])
def test_slices_are_disjoint_in_the_order_of_the_data_set_and_together_everything(validation):
    options = {"validation": validation, "val_size": 0.2, "opt_out_samples": 0.3}
    data = ready(toy_data(partition=OverTime(3), **options))
    whole = held(data, 0)
    slices = [held(data, round) for round in (1, 2, 3)]
    assert held(data, 4) == slices[0] != slices[1]
    for k in range(3):
        parts = [part[k] for part in slices]
        assert sorted(chain(*parts)) == sorted(whole[k])
        assert max(parts[0]) < min(parts[1])
        assert max(parts[1]) < min(parts[2])
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for round in (1, 2):
        now = data.at_round(round)
        assert [part.tolist() for part in now.val] == [part.tolist() for part in data.assignment.val]
        for k in range(3):  # who has opted out stays so
            shared = dict(zip(data.assignment.train[k].tolist(), data.assignment.opted_in[k].tolist(), strict=True))
            assert [shared[i] for i in now.train[k].tolist()] == now.opted_in[k].tolist()


# Data without classes, and partitions of one's own


class Halves(Partition):
    """Of a user: even and odd samples."""

    def assign(self, labels, num_clients, num_classes, seed):
        return [np.arange(k, len(labels), num_clients) for k in range(num_clients)]


def values(**options) -> FederatedData:
    numbers = TensorDataset(torch.randn(60, 2), torch.randn(60))
    return FederatedData(train_dataset=numbers, test_dataset=numbers, num_clients=3, **options)


def test_a_partition_by_class_refuses_data_without_classes_by_name():
    message = (
        r"`data.partition`: Dirichlet deals samples out by their classes, but their targets are float32 \[N\]; take IID"
    )
    for partition in (Dirichlet(1.0), OverTime(2, Dirichlet(1.0))):
        name = type(partition).__name__
        with pytest.raises(ValueError, match=message.replace("Dirichlet", name)):
            values(partition=partition).setup()
    for partition in (IID(), Quantity(1.0), FeatureSkew([0])):
        assert ready(values(partition=partition)).splits.num_classes == 0


def test_a_partition_of_ones_own_is_taken_with_validation_from_anywhere():
    for validation in ("train", "test", "reserve"):
        data = ready(toy_data(partition=Halves(), validation=validation, val_size=0.2))
        assert data.assignment.num_clients == 3
    with pytest.raises(
        ValueError,
        match=r"Halves deals .* targets are float32 \[N\]; if it looks at no label, set its `by_class = False`",
    ):
        values(partition=Halves()).setup()


@pytest.mark.parametrize(
    ("dealt", "message"),
    [
        (lambda n: [np.arange(60)] * 3, r"into the 30 labels that it is given, got 0 to 59 for client 0; test samples"),
        (lambda n: [np.arange(n)], "must give 3 arrays of indices, one per client, got 1"),
        (lambda n: None, "one per client, got a NoneType"),
        (lambda n: [np.zeros(3)] * 3, r"got float64 \[3\] for client 0"),
        (lambda n: [np.array([-1])] * 3, "got -1 to -1 for client 0"),
    ],
)
def test_what_a_partition_of_ones_own_may_not_give_is_refused_in_one_line(dealt, message):
    class Odd(Partition):
        def assign(self, labels, num_clients, num_classes, seed):
            return dealt(len(labels))

    with pytest.raises(ValueError, match=message) as refusal:
        toy_data(partition=Odd(), validation="test").setup()
    assert "`data.partition`: `assign` of Odd" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_tint_is_clipped_to_what_an_image_can_hold():
    x = torch.tensor([0.1, 0.5, 0.95]).view(1, 3, 1, 1)
    torch.testing.assert_close(Tint([-0.2, 0.25, 0.2, 1.0])(x).flatten(), torch.tensor([0.0, 0.75, 1.0]))
    with pytest.raises(ValueError, match="`shifts` must have one number for each of 3 channels, got 1"):
        Tint([0.1])(x)
