"""Samples that are read one by one: what is random, and that nothing else decides than what should."""

import os
import random
import signal
import time
import warnings
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn, zeros
from torch.utils.data import Dataset, Subset, TensorDataset
from toys import toy_datasets

from fedlit import FederatedData
from fedlit.augment import Flip
from fedlit.data.batches import Batches
from fedlit.data.items import equal
from fedlit.data.loaders import Reader, is_random
from fedlit.data.sources import ReadOptions, part_of
from fedlit.data.splits import LazySamples, StackedSamples
from fedlit.notices import Notice
from fedlit.partition import FeatureSkew, PermutedPixels


class Noisy(Dataset):
    def __init__(self, size: int = 60, by: str = "all") -> None:
        self.images = toy_datasets(size)[0]
        self.by = by

    def __len__(self) -> int:
        return len(self.images)

    def noise(self) -> float:
        drawn = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "random": random.random}
        return sum(draw() for name, draw in drawn.items() if self.by in (name, "all"))

    def __getitem__(self, index: int):
        x, y = self.images[index]
        return x + self.noise(), y


class Plain(Noisy):
    def noise(self) -> float:
        return 0.0


def batches_of(reader: Reader, generator: torch.Generator | None = None, **options) -> Batches:
    return Batches(LazySamples(reader, np.arange(20), example=(zeros(1), zeros(1))), 6, generator, **options)


def read(dataset: Dataset, num_workers: int = 0, seed: int = 0, **options) -> Batches:
    reader = Reader(dataset, "data.train_dataset", num_workers=num_workers)
    return batches_of(reader, torch.Generator().manual_seed(seed), **options)


def epochs(batches, number: int = 2) -> list:
    return [list(batches) for _ in range(number)]


def test_two_workers_read_the_bits_that_one_process_reads():
    alone, with_two = (epochs(read(Noisy(), num_workers)) for num_workers in (0, 2))
    assert equal(alone, with_two)
    assert not equal(alone, epochs(read(Noisy(), seed=1)))
    assert active_children() == []


@pytest.mark.parametrize(("dataset", "same"), [(Noisy(), 0), (Plain(), 20)])
def test_a_random_transform_gives_another_sample_in_every_epoch(dataset, same):
    first, second = (
        {int(i): x for xs, _, index in epoch for x, i in zip(xs, index, strict=True)}
        for epoch in epochs(read(dataset, indexed=True))
    )
    assert sum(torch.equal(first[i], second[i]) for i in range(20)) == same


@pytest.mark.parametrize(
    "options",
    [
        {"augmentation": [Flip()]},
        {"partition": PermutedPixels()},
        {"partition": FeatureSkew([0, 90, 30], colour=0.1)},
        {"public": 0.3},
        {"validation": "test", "opt_out_samples": 0.3, "mean": 0.4, "std": 0.3},
        {"own_test": True, "client_batch_sizes": {1: 3}},
    ],
    ids="-".join,
)
def test_what_is_not_random_is_the_same_in_memory_and_read(options):
    pixels = (toy_datasets()[0].tensors[0].clamp(-2, 2) * 60 + 128).to(torch.uint8)
    images = TensorDataset(pixels.expand(-1, 3, -1, -1).contiguous(), torch.arange(60) % 3)
    found = []
    for in_memory in (True, False):
        given = {"num_clients": 3, "batch_size": 8, "in_memory": in_memory, **options}
        data = FederatedData(train_dataset=images, test_dataset=Subset(images, range(30)), **given)
        data.setup()
        batches = [data.client(k).train_batches(torch.Generator().manual_seed(k)) for k in range(3)]
        batches += [data.val_batches([0, 2])[0], data.test_batches(), data.train_dataloader()]
        if "public" in options:
            batches += [data.public_batches(torch.Generator().manual_seed(1), labels) for labels in (False, True)]
            batches += [data.train_batches(1, torch.Generator().manual_seed(1), "all", public=True)]
        if "own_test" in options:
            batches.append(data.own_test_batches([1, 2])[0])
        held = [part.tolist() for part in data.assignment.train]
        found.append([epochs(some) for some in batches] + [data.splits.mean, held])
        assert data.client(0).class_shares().sum() == pytest.approx(1)
    assert equal(*found)


def test_auto_reads_what_is_random_and_says_so_and_stacks_the_rest():
    with pytest.warns(Notice, match="`d` gives other samples at each reading: they are read one by one"):
        assert isinstance(part_of(Noisy(), "d", ReadOptions()), LazySamples)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(part_of(Plain(), "d", ReadOptions()), StackedSamples)
        frozen = part_of(Noisy(), "d", ReadOptions(in_memory=True))
    assert isinstance(frozen, StackedSamples)
    assert torch.equal(frozen.x, part_of(Noisy(), "d", ReadOptions(in_memory=True)).x)  # the same on every process


def test_auto_reads_what_is_too_large_by_the_first_samples(monkeypatch):
    size = 60 * (64 * 4 + 8)
    for room, kind in ((size, StackedSamples), (size - 1, LazySamples)):
        monkeypatch.setattr("fedlit.data.sources.ROOM", room)
        with warnings.catch_warnings(record=True) as caught:
            assert isinstance(part_of(Plain(), "data.train_dataset", ReadOptions()), kind)
        assert bool(caught) == (kind is LazySamples)


def test_a_generator_of_ones_own_is_refused_unless_frozen_or_seeded():
    class Own(Noisy):
        rng = np.random.default_rng(0)

        def noise(self) -> float:
            return self.rng.random()

    class Seeded(Noisy):
        def noise(self) -> float:
            return np.random.default_rng(torch.initial_seed()).random()

    for in_memory in ("auto", False):
        with pytest.raises(
            ValueError, match=r"item 0 of `d` is another one at every reading, .*`data.in_memory: true`"
        ):
            part_of(Own(), "d", ReadOptions(in_memory=in_memory))
    assert isinstance(part_of(Own(), "d", ReadOptions(in_memory=True)), StackedSamples)
    assert is_random(Reader(Seeded(), "d"))
    assert equal(*(epochs(read(Seeded(), num_workers)) for num_workers in (0, 2)))


def test_classes_are_the_targets_of_a_data_set_if_they_are_true_else_they_are_read():
    class WithTargets(Noisy):
        reads = 0

        def __init__(self, lie: int = 0) -> None:
            super().__init__()
            self.targets = [(int(y) + lie) % 3 for _, y in self.images]

        def __getitem__(self, index: int):
            self.reads += 1
            return super().__getitem__(index)

    honest, liar = WithTargets(), WithTargets(lie=1)
    expected = np.arange(60) % 3
    for dataset, is_read in ((honest, False), (liar, True)):
        dataset.reads = 0
        assert part_of(dataset, "d", ReadOptions(in_memory=False)).labels.tolist() == expected.tolist()
        assert (dataset.reads >= 60) == is_read
    some = part_of(Subset(honest, [4, 7, 2]), "d", ReadOptions(in_memory=False))
    assert some.labels.tolist() == [1, 1, 2]


class Broken(Plain):
    def __getitem__(self, index: int):
        if index == 13:
            raise OSError("a truncated image")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sample_that_cannot_be_read_is_named_wherever_it_is_read(num_workers):
    with pytest.raises(ValueError, match=r"^item 13 of `data.train_dataset` cannot be read: OSError: a truncated"):
        epochs(read(Broken(), num_workers))
    assert active_children() == []


def test_shapes_that_do_not_fit_into_a_batch_are_named():
    class Ragged(Plain):
        def __getitem__(self, index: int):
            return torch.zeros(index + 1), 0

    for in_memory in ("auto", True, False):
        with pytest.raises(ValueError, match=r"`d` gives samples of different shapes .* give `data.collate_fn`"):
            part_of(Ragged(), "d", ReadOptions(in_memory=in_memory))


class Slow(Plain):
    def __getitem__(self, index: int):
        if index >= 12:
            Path(f"worker_{os.getpid()}").touch()
            time.sleep(60)
        return super().__getitem__(index)


def test_workers_that_hang_do_not_outlive_the_batches_that_are_wanted(monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    reader = Reader(Slow(), "d", num_workers=2)
    start = time.monotonic()
    for _ in batches_of(reader):
        for worker in active_children():
            os.kill(worker.pid, signal.SIGTERM)  # meant for the run
        break
    assert active_children() == []
    assert time.monotonic() - start < 20


def test_a_signal_for_the_run_does_not_end_its_workers():
    batches = iter(read(Noisy(), num_workers=2))
    first = [next(batches), next(batches)]  # both workers are up: one for each
    for worker in active_children():
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
    rest = list(batches)
    assert equal([*first, *rest], list(read(Noisy())))


class Texts(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict:
        words = 1 + index % 5
        return {"ids": torch.arange(index, index + words), "label": int(index % 2 == 0)}


def pad(items: list[dict]) -> dict:
    ids = nn.utils.rnn.pad_sequence([item["ids"] for item in items], batch_first=True, padding_value=-1)
    return {"ids": ids, "mask": ids >= 0, "label": torch.tensor([item["label"] for item in items])}


@pytest.mark.parametrize("in_memory", [True, False])
def test_texts_of_different_lengths_come_as_the_collate_fn_has_them(in_memory):
    options = {"num_clients": 2, "batch_size": 6, "collate_fn": pad, "in_memory": in_memory}
    data = FederatedData(train_dataset=Texts(), test_dataset=Texts(), **options)
    data.setup()
    assert data.splits.num_classes == 2
    held = data.assignment.train[0][:6]
    x, y = next(iter(data.client(0).train_batches()))
    expected = pad([Texts()[int(i)] for i in held])
    assert equal(x, {"ids": expected["ids"], "mask": expected["mask"]})
    assert torch.equal(y, expected["label"])
    assert x["ids"].shape[1] == max(1 + i % 5 for i in held)
