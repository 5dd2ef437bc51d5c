"""Opt-out marks, validation splits, the pool, and an assignment on its way to a file and back."""

import numpy as np
import pytest
from test_partition import CIFAR, CIFAR_TEST, MNIST, all_equal, is_disjoint, shuffled

from fedlit.data.assignment import Assignment, Saved, opt_in_masks, split_validation
from fedlit.data.splits import split_off
from fedlit.partition import IID, ClassSets, Partition, Shards

HEADER = "client,split,index,label,shared\n"


def withheld_clients(masks):
    return [k for k, mask in enumerate(masks) if not mask.any()]


@pytest.mark.parametrize(("q", "k", "out"), [(0.5, 5, 2), (0.9, 5, 4), (0.29, 100, 29), (0.0, 5, 0), (1.0, 5, 5)])
def test_a_fraction_of_clients_is_rounded_down_but_not_by_floating_point(q, k, out):
    train = [np.arange(4)] * k
    assert len(withheld_clients(opt_in_masks(train, q, 0.0, seed=0))) == out


def test_opted_out_clients_are_those_of_the_list_or_of_the_seed():
    train = [np.arange(4)] * 20
    assert withheld_clients(opt_in_masks(train, [1, 3], 0.0, seed=0)) == [1, 3]
    drawn = [withheld_clients(opt_in_masks(train, 0.5, 0.0, seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_fraction_of_samples_is_withheld_at_every_other_client():
    train = IID().assign(CIFAR_TEST, 10, 10, seed=0)
    masks = opt_in_masks(train, [4], 0.1, seed=0)
    assert [int(mask.sum()) for mask in masks] == [900] * 4 + [0] + [900] * 5
    assert all(mask.dtype == bool and len(mask) == 1000 for mask in masks)
    others = opt_in_masks(train, [], 0.1, seed=0)
    assert all_equal(masks[5:], others[5:])  # one client's choice moves nobody else's


@pytest.mark.parametrize(("val_size", "held"), [(0.1, 1000), (400, 400), (400.0, 400), (0.925, 9250), (1, 1)])
def test_validation_and_training_share_nothing_and_lose_nothing(val_size, held):
    parts = IID().assign(CIFAR, 5, 10, seed=0)
    train, val = split_validation(parts, val_size, seed=0)
    assert [len(part) for part in val] == [held] * 5
    assert is_disjoint([*train, *val])
    assert all_equal([np.sort(part) for part in parts], [np.union1d(*pair) for pair in zip(train, val, strict=True)])
    assert not all_equal(val, split_validation(parts, val_size, seed=1)[1])


def test_no_copy_of_a_validation_sample_stays_in_training():
    parts = ClassSets("niid1", 500).assign(CIFAR_TEST[:1000], 5, 10, seed=0)
    assert len(np.unique(parts[0])) < 500
    for train, val in zip(*split_validation(parts, 0.1, seed=0), strict=True):
        assert not set(train) & set(val)
        assert 50 <= len(val) < 60


def test_validation_refuses_to_take_everything():
    with pytest.raises(ValueError, match="`val_size`=3 leaves client 1 none of its 3 training samples"):
        split_validation([np.arange(5), np.arange(3)], 3, seed=0)
    for bad in (0, -1, 1.5):
        with pytest.raises(ValueError, match=r"`val_size` must be a fraction in \(0, 1\) or a number from 1, got"):
            split_validation([np.arange(5)], bad, seed=0)


def test_the_pool_is_a_fifth_of_each_class():
    labels = shuffled(MNIST)
    rest, pool = split_off(labels, 0.2, seed=0)
    assert (len(rest), len(pool)) == (48_000, 12_000)
    assert np.bincount(labels[pool]).tolist() == [round(0.2 * n) for n in MNIST]
    assert is_disjoint([rest, pool])
    assert not np.array_equal(pool, split_off(labels, 0.2, seed=1)[1])


def an_assignment(val_split="test"):
    train = Shards(2).assign(CIFAR_TEST, 5, 10, seed=0)
    if val_split == "test":
        val = Shards(2).assign(CIFAR_TEST[:500], 5, 10, seed=0)
    else:
        train, val = split_validation(train, 0.1, seed=0)
    return Assignment(train, val, val_split, opt_in_masks(train, 0.4, 0.1, seed=0))


@pytest.mark.parametrize("val_split", ["train", "test"])
def test_what_is_written_is_read_back(tmp_path, val_split):
    before = an_assignment(val_split)
    before.write(tmp_path / "clients.csv", CIFAR_TEST, CIFAR_TEST[:500])
    after = Saved(str(tmp_path / "clients.csv")).read(CIFAR_TEST, CIFAR_TEST[:500])
    assert after.num_clients == 5
    assert after.val_split == val_split
    for name in ("train", "val", "opted_in"):
        assert all_equal(getattr(before, name), getattr(after, name))
    assert after.opted_in[0].dtype == bool
    assert [file.name for file in tmp_path.iterdir()] == ["clients.csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the header must be 'client,split,index,label,shared', got ''"),
        ("client,index\n0,1\n", "the header must be .* got 'client,index'"),
        (HEADER + "0,train,0,0,1\n0,train,x,0,1\n", "could not convert string 'x'"),
        (HEADER + "0,train,-1,0,1\n", "line 2: .* client and index from 0"),
        (HEADER + "0,test,1,0,1\n", "line 2: split must be one of"),
        (HEADER + "0,train,1,0,2\n", "line 2: .* shared 0 or 1"),
        (HEADER + "0,train,1,0,1\n2,train,1,0,1\n", "line 3: client 1 is without train rows"),
        (HEADER + "0,train,1,0,1\n0,val_test,1,0,0\n0,val_train,1,0,0\n", "line 4: val_train in a file"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path, text, message):
    (tmp_path / "broken.csv").write_text(text)
    with pytest.raises(ValueError, match=r"broken.csv.* " + message):
        Saved(str(tmp_path / "broken.csv")).read(np.zeros(2, dtype=int), np.zeros(2, dtype=int))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,train,3,0,1", "line 4: the training set has 3 samples, and none of this index"),
        ("0,val_test,2,0,0", "line 4: the test set has 2 samples"),
        (
            "1,train,0,8,1",
            "line 4: the sample has another label in the training set .was it saved with another",
        ),
        ("0,val_test,1,8,0", "line 4: the sample has another label in the test set"),
    ],
)
def test_a_file_of_another_data_set_is_refused_by_name_and_line(tmp_path, row, message):
    train_labels, test_labels = np.array([7, 8, 9], dtype=np.uint8), np.array([4, 5])
    (tmp_path / "other.csv").write_text(f"{HEADER}0,train,2,9,1\n1,train,1,8,1\n{row}\n")
    with pytest.raises(ValueError, match="other.csv, " + message):
        Saved(str(tmp_path / "other.csv")).read(train_labels, test_labels)


def test_a_missing_file_and_assigning_a_saved_partition_are_refused(tmp_path):
    saved = Saved(str(tmp_path / "nowhere.csv"))
    with pytest.raises(ValueError, match=r"`path` must be a saved partition, there is no file .*nowhere.csv"):
        saved.read(CIFAR, CIFAR_TEST)
    with pytest.raises(ValueError, match=r"`Saved` holds a ready assignment: read\(\) .*nowhere.csv"):
        saved.assign(CIFAR, 5, 10, seed=0)
    assert saved.scaled(0.5) is saved
    assert isinstance(saved, Partition)


def test_samples_without_classes_are_written_with_empty_labels_and_read_back(tmp_path):
    path, nothing = tmp_path / "partition.csv", np.full(4, -1)
    assignment = Assignment([np.array([0, 2])], [np.array([1])], "train", [np.array([True, False])])
    assignment.write(path, nothing, nothing)
    assert path.read_text() == HEADER + "0,train,0,,1\n0,train,2,,0\n0,val_train,1,,0\n"
    again = Saved(str(path)).read(nothing, nothing)
    assert all_equal(again.train + again.val + again.opted_in, assignment.train + assignment.val + assignment.opted_in)
    with pytest.raises(ValueError, match="line 2: the sample has another label in the training set"):
        Saved(str(path)).read(np.full(4, 7), nothing)
    path.write_text(HEADER + "0,train,0,3,1\n")
    with pytest.raises(ValueError, match="line 2: the sample has another label in the training set"):
        Saved(str(path)).read(nothing, nothing)


def test_an_own_test_set_is_written_and_read_back(tmp_path):
    path = tmp_path / "partition.csv"
    parts = [np.array([0, 2]), np.array([1])]
    marks = [np.ones(len(part), dtype=bool) for part in parts]
    val, own_test = [np.array([3]), np.array([4])], [np.array([4, 0]), np.array([2])]
    assignment = Assignment(parts, val, "train", marks, own_test=own_test)
    assignment.write(path, CIFAR, CIFAR_TEST)
    again = Saved(str(path)).read(CIFAR, CIFAR_TEST)
    assert all_equal(again.own_test, assignment.own_test)
    assert all_equal(again.val, assignment.val)
    with pytest.raises(ValueError, match="another label in the test set"):
        Saved(str(path)).read(CIFAR, 9 - CIFAR_TEST)
