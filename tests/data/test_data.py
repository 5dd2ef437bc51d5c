"""The data layer: what a client sees, what is held back, what is public."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from toys import toy_data, toy_datasets

from fedlit import FederatedData
from fedlit.augment import Crop, Flip, PadEdge
from fedlit.data.assignment import Saved
from fedlit.data.batches import Batches
from fedlit.data.splits import StackedSamples
from fedlit.partition import IID, Majority, PermutedPixels, Shards


def ready(**options) -> FederatedData:
    data = FederatedData(**{"num_clients": 5, **options})
    data.setup()
    return data


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own():
    batches = Batches(StackedSamples(torch.arange(10.0), torch.arange(10)), 4, torch.Generator().manual_seed(0))
    epochs = [[y.tolist() for _, y in batches] for _ in range(2)]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
    assert sorted(y for batch in epochs[0] for y in batch) == list(range(10))
    assert epochs[0] != epochs[1]
    assert all(torch.equal(x.long(), y) for x, y in batches)


@pytest.mark.parametrize(
    ("size", "batch_size", "default", "kept"),
    [(33, 32, 1, 2), (34, 32, 2, 2), (1, 32, 1, 1), (5, 1, 5, 5)],
)
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_last_batch_of_one_sample_is_skipped_unless_it_is_the_only_one(size, batch_size, default, kept, in_memory):
    options = {"size": size + 1, "num_clients": 1, "val_size": 1, "batch_size": batch_size, "in_memory": in_memory}
    for expected, more in ((default, {}), (kept, {"drop_last": False})):
        data = toy_data(**options, **more)
        data.setup()
        batches = data.client(0).train_batches(torch.Generator().manual_seed(0))
        assert len(batches) == len(list(batches)) == len(data.client(0).train_batches()) == expected


def test_every_sample_is_evaluated_also_one_that_is_alone_in_its_batch():
    data = toy_data(size=60, num_clients=3, val_size=3, eval_batch_size=8)
    data.setup()
    batches, sizes = data.val_batches([0, 1, 2])
    assert [len(y) for _, y in batches] == [8, 1]
    assert sum(sizes) == 9


def test_validation_from_train_holds_back_and_never_trains_on_it():
    data = ready(val_size=0.1)
    for train, val in zip(data.assignment.train, data.assignment.val, strict=True):
        assert (len(train), len(val)) == (1080, 120)
        assert not set(train) & set(val)


def test_validation_from_test_is_the_test_set_dealt_out_by_the_same_shards():
    data = ready(partition=Shards(2), validation="test")
    assert sum(map(len, data.assignment.val)) == 1000
    for k in range(5):
        train_classes = set(data.images.train_y[data.assignment.train[k]].tolist())
        assert train_classes == set(data.images.test_y[data.assignment.val[k]].tolist())
        assert len(train_classes) == 2


def test_a_validation_pool_has_the_same_majority_and_no_training_sample():
    data = ready(partition=Majority(p=0.8, samples_per_client=100, pairs="fixed"), validation="reserve", val_size=0.5)
    for k in range(5):
        train, val = data.assignment.train[k], data.assignment.val[k]
        assert len(train) == len(val) == 100
        assert not set(train) & set(val)
        labels = data.images.train_y[val]
        assert int(((labels == 2 * k) | (labels == 2 * k + 1)).sum()) == 80


def test_an_own_test_set_is_the_test_set_in_the_clients_own_mix_beside_its_validation_samples():
    data = ready(partition=Majority(p=1.0, samples_per_client=300), own_test=True)
    assignment = data.assignment
    assert assignment.val_split == "train"
    assert [len(part) for part in assignment.own_test] == [50] * 5  # of 1,000 test images, as 300 of 6,000
    for k in range(5):
        own = set(data.images.train_y[assignment.train[k]].tolist())
        assert own == set(data.images.test_y[assignment.own_test[k]].tolist())
    batches, sizes = data.own_test_batches([1, 3])
    assert sizes.tolist() == [50, 50]
    assert torch.equal(batches.y[50:], data.images.test_y[assignment.own_test[3]])


def test_an_own_test_set_is_refused_where_choices_look_at_the_test_set():
    with pytest.raises(ValueError, match=r"`data.own_test` is what no choice looks at, .* set it to train or reserve"):
        FederatedData(validation="test", own_test=True)


def test_images_are_scaled_then_normalised():
    data = ready(mean=0.5, std=0.25)
    x, y = next(iter(data.client(0).train_batches()))
    raw = data.images.train_x[data.assignment.train[0][:32]]
    torch.testing.assert_close(x, (raw.float() / 255 - 0.5) / 0.25)
    assert torch.equal(y, data.images.train_y[data.assignment.train[0][:32]])


def test_augmentation_is_random_in_training_and_absent_in_evaluation():
    data = ready(augmentation=[PadEdge(2), Crop(4), Flip()])
    draw = torch.Generator().manual_seed(0)
    batches = data.client(0).train_batches(draw)
    first, second = (next(iter(batches))[0] for _ in range(2))
    assert first.shape[-2:] == (32, 32)
    assert not torch.equal(first, second)
    evaluated = [next(iter(data.client(0).val_batches()))[0] for _ in range(2)]
    assert torch.equal(*evaluated)
    assert evaluated[0].shape[-2:] == (32, 32)


def test_permuted_pixels_are_one_permutation_per_client_in_training_and_evaluation():
    plain, permuted = ready(), ready(partition=PermutedPixels(IID()))
    for k in (0, 3):
        order = torch.as_tensor(permuted.partition.pixel_permutation(k, 784, permuted.partition_seed))
        for batches in ("train_batches", "val_batches"):
            seen, straight = (next(iter(getattr(data.client(k), batches)()))[0] for data in (permuted, plain))
            assert torch.equal(seen.flatten(2), straight.flatten(2)[:, :, order])
            assert not torch.equal(seen, straight)


def test_shared_samples_are_those_that_did_not_opt_out():
    data = ready(opt_out=[1], opt_out_samples=0.25)
    assert data.client(1).num_opted_in == 0
    assert data.client(0).num_opted_in == 810
    assert len(data.client(0).train_batches(samples="opted_in").y) == 810
    assert len(data.client(0).train_batches(samples="all").y) == data.client(0).num_samples == 1080


def test_the_public_pool_belongs_to_no_client_and_has_no_labels():
    data = ready(public=0.8)
    held = set(np.concatenate(data.assignment.train + data.assignment.val))
    pooled = np.flatnonzero(data.images.train_y.numpy() == -1)
    assert len(pooled) == len(data.public_pool) == 4800
    assert not held & set(pooled)
    assert data.images.train_x[pooled].equal(data.public_pool.x)
    labels = torch.cat([y for _, y in data.public_batches(None)])
    assert set(labels.tolist()) == {-1}


def test_a_saved_partition_is_the_same_again(tmp_path):
    data = ready(partition=Shards(2), opt_out=[2])
    data.assignment.write(tmp_path / "partition.csv", data.images.train_y.numpy(), data.images.test_y.numpy())
    again = ready(partition=Saved(str(tmp_path / "partition.csv"))).assignment
    for name in ("train", "val", "opted_in"):
        assert all(map(np.array_equal, getattr(data.assignment, name), getattr(again, name)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clients": 0}, "`data.num_clients` must be at least 1, got 0"),
        ({"opt_out": 1.5}, r"`data.opt_out` must lie in \[0, 1\], got 1.5"),
        ({"opt_out_samples": -0.1}, r"`data.opt_out_samples` must lie in \[0, 1\], got -0.1"),
        ({"opt_out": [7]}, "`data.opt_out` names client 7, but the clients are 0 to 4"),
        ({"client_batch_sizes": {5: 2}}, "names client 5"),
        ({"unseen_clients": 5}, "must leave a client to train: 0 to 4, got 5"),
        ({"public": 1.0}, r"`data.public` must lie in \[0, 1\)"),
        ({"drop_last": "one"}, "`data.drop_last` must be one of single, True, False, got .one."),
        ({"train_dataset": toy_datasets()[0]}, "go together"),
        ({"mean": [0.1, 0.2]}, "`data.mean` must be one number or 1, one per channel, got 2"),
        ({"validation": "reserve", "val_size": 3}, r"`data.val_size` with `data.validation: reserve` is a fraction"),
    ],
)
def test_an_impossible_option_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        ready(**options)


def test_what_is_there_only_after_setup_says_so():
    data = toy_data()
    for what in ("images", "assignment", "public_pool"):
        with pytest.raises(RuntimeError, match=r"`data` is not set up yet; call its setup\(\) first"):
            getattr(data, what)


FLAT = torch.arange(12.0).view(6, 2)


def flat(**options):
    y = torch.arange(6) % 2
    train = TensorDataset(FLAT, y)
    data = FederatedData(train_dataset=train, test_dataset=train, num_clients=2, val_size=0.3, **options)
    data.setup()
    return next(iter(data.test_batches()))[0]


def test_features_without_places_are_normalised_one_by_one_or_all_alike():
    assert torch.equal(flat(mean=1.0, std=2.0), (FLAT - 1) / 2)
    mean, std = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0])
    assert torch.equal(flat(mean=mean.tolist(), std=std.tolist()), (FLAT - mean) / std)
    assert torch.equal(flat(), FLAT)
    with pytest.raises(ValueError, match=r"`data\.mean` must be one number or 2"):
        flat(mean=[1.0, 2.0, 3.0])


def images(**options) -> FederatedData:
    x = torch.arange(24 * 9 * 9).remainder(251).to(torch.uint8).view(24, 1, 9, 9)
    y = torch.arange(24) % 3
    samples = TensorDataset(x, y)
    data = FederatedData(train_dataset=samples, test_dataset=samples, num_clients=3, batch_size=5, **options)
    data.setup()
    return data


def seen(data: FederatedData) -> list[torch.Tensor]:
    train = [data.train_batches(k, torch.Generator().manual_seed(k), "all") for k in range(3)]
    return [x for batches in [*train, data.val_batches([0, 2])[0], data.test_batches()] for x, _ in batches]


def test_a_network_that_works_in_place_on_its_inputs_changes_no_sample():
    data = images()
    before = [x.clone() for x in seen(data)]
    for x in seen(data):
        x.zero_()
    assert all(map(torch.equal, before, seen(data)))
