"""What stays with clients is the same whether it rests in memory or on disk."""

import fcntl
import os
import tempfile
import threading
from functools import partial

import pytest
import torch
from toys import SmallCNN, equal, fitted, toy_data

from fedlit import LocalOnly
from fedlit.engine.client_store import ClientStore, SpillStore, sweep_left_behind
from fedlit.engine.plan import ClientState
from fedlit.methods import FML

MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def memory(value: float, size: int = 100) -> ClientState:
    momenta = {"federate": {"w": {"momentum_buffer": torch.full((size,), -value), "step": 3}}}
    return ClientState({"w": torch.full((size,), value)}, momenta)


def test_above_the_budget_the_oldest_go_to_disk_and_come_back():
    memories = ClientStore(SpillStore(budget=2000))  # one is 100 + 100 floats: 800 bytes
    for k in range(5):
        memories[k] = memory(float(k))
    assert memories.store.num_bytes == 1600
    assert len(list(memories.store._folder.glob("*.pt"))) == 3
    for k in range(5):
        assert equal(memories[k].state, memory(float(k)).state)
        assert memories[k].optimizer["federate"]["w"]["step"] == 3
        assert memories.store.num_bytes <= 2000
    assert equal(memories.peek(0).state, memory(0.0).state)
    assert memories.store.num_bytes <= 2000


def test_below_the_budget_nothing_is_written():
    memories = ClientStore(SpillStore(budget=1e9))
    memories[0] = memory(1.0)
    assert memories[0] is memories[0]
    assert memories.store._folder is None


def test_a_new_memory_takes_the_place_of_the_old_one_and_its_file():
    memories = ClientStore(SpillStore(budget=0))
    memories[0], memories[1] = memory(1.0), memory(2.0)
    memories[0] = memory(3.0)
    _ = memories[1]
    assert memories[0].state["w"][0] == 3
    del memories[1]
    assert list(memories) == [0]
    with pytest.raises(KeyError):
        memories[1]
    assert len(list(memories.store._folder.glob("*.pt"))) <= 1


def test_a_round_is_adopted_without_reading_it():
    memories = ClientStore(SpillStore(budget=900))
    memories[0] = memory(1.0)
    new = ClientStore(memories.store)
    new[0], new[1] = memory(5.0), memory(6.0)
    assert memories[0].state["w"][0] == 1  # not before it is adopted
    memories.adopt(new)
    assert [memories[k].state["w"][0].item() for k in (0, 1)] == [5, 6]
    assert memories.names(0) == ("w",)
    assert memories.names(7) == ()


def test_the_folder_goes_with_the_store():
    memories = ClientStore(SpillStore(budget=0))
    memories[0], memories[1] = memory(1.0), memory(2.0)
    folder = memories.store._folder
    assert folder.exists()
    del memories
    assert not folder.exists()


def test_only_folders_that_a_killed_process_of_ours_left_are_removed_and_nothing_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = ["left", "in_use", "fifo", "link", "nothing"]
    left, in_use, fifo, link, nothing = folders = [tmp_path / f"fedlit-clients-{name}" for name in names]
    for folder in folders:
        folder.mkdir()
    (left / ".lock").touch()
    os.mkfifo(fifo / ".lock")  # opening it would wait for a writer
    (link / ".lock").symlink_to(left / ".lock")
    with (in_use / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweeping = threading.Thread(target=sweep_left_behind, daemon=True)
        sweeping.start()
        sweeping.join(timeout=5)
    assert not sweeping.is_alive()
    assert sorted(tmp_path.iterdir()) == sorted([in_use, fifo, link, nothing])
    (nothing / ".lock").touch()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    sweep_left_behind()  # another user's
    assert nothing.exists()


@pytest.mark.parametrize("method", [partial(FML, SmallCNN, SmallCNN), partial(LocalOnly, SmallCNN)])
def test_a_run_ends_in_the_same_bits_with_its_clients_on_disk(method, tmp_path):
    def run(budget, folder, **options):
        torch.manual_seed(7)
        data = toy_data(num_clients=4)
        return fitted(
            method(MOMENTUM), data, default_root_dir=str(tmp_path / folder), personal_memory=budget, **options
        )

    held, spilled = run(1.0, "held", num_rounds=3), run(0.0, "spilled", num_rounds=3)
    assert spilled.state.memories.store._folder is not None
    assert held.state.memories.store._folder is None
    assert all(equal(held.personal_states[k], spilled.personal_states[k]) for k in range(4))
    checkpoints = [f"{f.log_dir}/checkpoints/last.ckpt" for f in (held, spilled)]
    ends = [torch.load(path, weights_only=True) for path in checkpoints]
    assert all(equal(ends[0]["personal_states"][k], ends[1]["personal_states"][k]) for k in range(4))
    longer = run(1.0, "held", num_rounds=5, ckpt_path="last"), run(0.0, "spilled", num_rounds=5, ckpt_path="last")
    assert all(equal(longer[0].personal_states[k], longer[1].personal_states[k]) for k in range(4))
    assert not equal(longer[0].personal_states[0], held.personal_states[0])


@pytest.mark.parametrize("budget", [0, 1e9])
def test_between_visits_nothing_lies_on_the_device(budget):
    """A thousand clients' states and momenta would fill a GPU: they come to it one at a time."""
    store = SpillStore(budget, torch.device("meta"))
    momenta = {"train": {"w": {"exp_avg": torch.ones(3), "step": torch.tensor(5.0)}}}
    numbers = [store.put(ClientState({"w": torch.ones(3)}, momenta, {"w": torch.ones(3)})) for _ in range(2)]
    used, kept = store.get(numbers[0]), store.peek(numbers[0])
    assert [used.state["w"].device.type, used.residual["w"].device.type] == ["meta", "meta"]
    assert [kept.state["w"].device.type, kept.residual["w"].device.type] == ["cpu", "cpu"]
    assert {value.device.type for value in used.optimizer["train"]["w"].values()} == {"cpu"}  # `revived` moves them
    assert equal(kept.state, {"w": torch.ones(3)})
