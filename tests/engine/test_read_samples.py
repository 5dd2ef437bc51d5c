"""A federation whose samples are read one by one, with a random transform: the same bits however they are read."""

import os
import signal
import time
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import exit_codes, forked
from torch import nn
from torch.utils.data import Dataset
from toys import SGD, SmallCNN, equal, fitted, rows, toy_datasets

from fedlit import FedAvg, FederatedData
from fedlit.callbacks import StopAt
from fedlit.data.loaded import LoadedBatches, Reader
from fedlit.engine.state import partition_hash


class Crops(Dataset):
    """The toy images, shifted at random."""

    def __init__(self, split: int = 0, seed: int = 0) -> None:
        self.images = toy_datasets(seed=seed)[split]
        self.targets = self.images.tensors[1]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int):
        x, y = self.images[index]
        shift = int(torch.randint(-2, 3, ()))
        return x.roll(shift, dims=2) * np.random.uniform(0.9, 1.1), int(y)


@pytest.fixture(autouse=True)
def _quiet(recwarn):
    """That samples are read one by one is told by a notice."""


def crops(**options) -> FederatedData:
    defaults = {"num_clients": 2, "batch_size": 8, "in_memory": "auto"}
    return FederatedData(train_dataset=Crops(), test_dataset=Crops(1), **{**defaults, **options})


def run(data: FederatedData | None = None, **options):
    torch.manual_seed(1)
    return fitted(FedAvg(SmallCNN, SGD), data or crops(), **{"num_rounds": 2, **options})


def records(federation) -> list[dict[str, str]]:
    return sorted(rows(federation), key=str)


def test_a_random_transform_is_another_result_than_a_frozen_one_and_another_seed_another(tmp_path):
    ends = [run(crops(in_memory=how)).global_state for how in ("auto", False, True)]
    assert equal(ends[0], ends[1])
    assert not equal(ends[0], ends[2])
    assert not equal(ends[0], run(seed=1).global_state)


@pytest.mark.slow
def test_workers_and_processes_of_their_own_for_clients_change_no_bit():
    plain = run()
    for data, options in ((crops(num_workers=2), {}), (crops(num_workers=2), {"client_timeout": 60.0})):
        other = run(data, **options)
        assert equal(plain.global_state, other.global_state)
        assert records(plain) == records(other)
    assert active_children() == []


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_processes_change_no_bit(num_workers, tmp_path):
    def work(rank):
        federation = run(crops(num_workers=num_workers), devices=2, default_root_dir=str(tmp_path))
        torch.save(federation.global_state, tmp_path / f"state_{rank}.pt")

    codes = exit_codes(forked(work, tmp_path))
    said = [(tmp_path / f"rank_{rank}.txt").read_text() for rank in range(2)]
    assert codes == [0, 0], said
    one = run().global_state
    for rank in range(2):
        assert equal(torch.load(tmp_path / f"state_{rank}.pt"), one)


def test_a_run_that_goes_on_ends_in_the_bits_of_one_that_was_not_stopped(tmp_path):
    straight = run(num_rounds=3, default_root_dir=str(tmp_path / "straight"))
    cut = {"num_rounds": 3, "default_root_dir": str(tmp_path / "cut")}
    assert run(**cut, callbacks=StopAt(0.0, "acc/global_on_own")).state.round == 1
    assert equal(run(**cut, ckpt_path="last").global_state, straight.global_state)


def test_other_samples_are_known_by_a_few_of_them_under_a_seed():
    hashes = []
    for seed in (0, 0, 1):
        data = FederatedData(train_dataset=Crops(seed=seed), test_dataset=Crops(1), num_clients=2)
        data.setup()
        hashes.append(partition_hash(data))
    assert hashes[0] == hashes[1] != hashes[2]


class Stuck(Crops):
    """One sample is never there; whoever waits for it leaves his number."""

    def __getitem__(self, index: int):
        if index == 5 and os.getpid() != self.owner:
            Path(f"worker_{os.getpid()}").touch()
            time.sleep(60)
        return super().__getitem__(index)


def gone(pid: int) -> bool:
    """Whether a process has ended, perhaps without anybody having asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def stuck_workers() -> list[int]:
    return [int(path.name.removeprefix("worker_")) for path in Path().glob("worker_*")]


def await_true(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_a_client_whose_worker_hangs_is_left_out_and_its_workers_end():
    dataset = Stuck()
    dataset.owner = os.getpid()
    data = FederatedData(
        train_dataset=dataset, test_dataset=Crops(1), num_clients=2, batch_size=8, num_workers=2, val_size=1
    )
    federation = run(data, num_rounds=1, client_timeout=3.0)
    lines = Path(federation.log_dir, "events.jsonl").read_text()
    assert lines.count("it took longer than `trainer.client_timeout`, 3 s, and was ended") == 1
    assert stuck_workers()
    await_true(lambda: all(map(gone, stuck_workers())))


def test_workers_end_with_a_run_that_is_killed():
    dataset = Stuck()
    child = os.fork()
    if child == 0:
        try:
            dataset.owner = os.getpid()
            list(LoadedBatches(Reader(dataset, "d", num_workers=2), np.arange(20), 2))
        finally:
            os._exit(1)
    await_true(stuck_workers)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    await_true(lambda: all(map(gone, stuck_workers())))


# Data and networks of a user's own: the method owns the step, as far as a visit goes


class Texts(Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict:
        return {"ids": torch.arange(1 + index % 5) + index % 2 * 10, "label": index % 2}


def pad(items: list[dict]) -> dict:
    ids = nn.utils.rnn.pad_sequence([item["ids"] for item in items], batch_first=True, padding_value=30)
    return {"ids": ids, "mask": ids < 30, "label": torch.tensor([item["label"] for item in items])}


class Bag(nn.Module):
    """The mean of the words that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(31, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        weights = x["mask"].unsqueeze(2) / x["mask"].sum(dim=1).clamp(min=1).view(-1, 1, 1)
        return self.out((self.words(x["ids"]) * weights).sum(dim=1))


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_visit_trains_on_texts_of_different_lengths(in_memory):
    from lightning.fabric import Fabric

    from fedlit.engine.local_training import train_client
    from fedlit.engine.plan import ClientState, Plan

    data = FederatedData(
        train_dataset=Texts(), test_dataset=Texts(), num_clients=2, batch_size=6, collate_fn=pad, in_memory=in_memory
    )
    data.setup()
    torch.manual_seed(0)
    method = FedAvg(Bag, SGD)
    plan = Plan(method.configure_stages()[0], seed=0, epochs=20)
    fabric = Fabric(accelerator="cpu", devices=1)
    outcome = train_client(fabric, method, data.client(0), plan, list(method.state_dict()), ClientState())
    method.load_state_dict(outcome.upload.state)
    [(x, y)] = list(data.test_batches())
    assert (method(x).argmax(dim=1) == y).float().mean() == 1
