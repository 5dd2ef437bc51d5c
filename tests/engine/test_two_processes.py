"""Two processes, forked: the same bits, sockets on the loopback interface, one that is stopped, one that dies."""

import os
import signal
import time
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import exit_codes, forked
from lightning.pytorch import Callback
from toys import SGD, SmallCNN, equal, fitted, linear

from fedlit import FedAvg
from fedlit.methods import FML
from fedlit.privacy import ClientLevelDP


def fml() -> FML:
    torch.manual_seed(1)
    return FML(SmallCNN, SmallCNN, SGD)


@cache
def alone() -> dict[str, torch.Tensor]:
    """The global state of the same run in one process."""
    return fitted(fml()).global_state


def listening(family: str, process: int | str = "self") -> set[str]:
    """Addresses on which a process lets others in, as the kernel writes them."""
    inodes = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            continue
    lines = [line.split() for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]]
    return {line[1].split(":")[0] for line in lines if line[3] == "0A" and line[9] in inodes}


class InRound(Callback):
    def __init__(self, rank, number, what):
        self.rank, self.number, self.what = rank, number, what

    def on_round_start(self, federation, module, number, clients):
        if federation.fabric.global_rank == self.rank and number == self.number:
            self.what()


def two(folder, what=lambda: None, rank=1, then=lambda federation: None, **options):
    """Exit codes and words of two processes, to one of which something happens in the second round."""
    folder.mkdir()

    def work(own_rank):
        given = {"devices": 2, "default_root_dir": str(folder), "enable_progress_bar": True, **options}
        federation = fitted(fml(), callbacks=[InRound(rank, 2, what)], **given)
        then(federation)
        torch.save(federation.global_state, folder / f"state_{own_rank}.pt")

    processes = forked(work, folder)
    if what is stop:  # it has to be killed when the other has ended
        codes = exit_codes([processes[1 - rank]])
        os.kill(processes[rank], signal.SIGKILL)
        codes += exit_codes([processes[rank]])
    else:
        codes = exit_codes(processes)
    return codes, [(folder / f"rank_{rank}.txt").read_text() for rank in range(2)]


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stays_stopped_is_taken_for_dead(rank, tmp_path):
    """Where it is rank 0, the store does not answer any more."""
    codes, said = two(tmp_path / "two", stop, rank, process_timeout=2.0)
    assert codes == [3, -signal.SIGKILL], said
    assert f"rank {rank} of 2 gave no sign of life for 2 s (`trainer.process_timeout`)" in said[1 - rank]


@pytest.mark.slow
def test_a_slow_rank_is_waited_for_and_named(tmp_path):
    codes, said = two(tmp_path / "two", lambda: time.sleep(3), process_timeout=2.0)
    assert codes == [0, 0]
    assert "fedlit: waiting for rank 1, which is alive and at work" in said[0]


def test_clients_in_processes_of_their_own_leave_other_ranks_alone(tmp_path):
    codes, said = two(tmp_path / "two", client_timeout=60.0)
    assert codes == [0, 0], said
    assert equal(torch.load(tmp_path / "two/state_1.pt"), alone())


def test_two_processes_end_in_the_same_bits_as_one_and_listen_on_loopback_only(tmp_path):

    def note_sockets():
        found = {family: sorted(listening(family)) for family in ("tcp", "tcp6")}
        (tmp_path / "sockets.txt").write_text(str(found))

    codes, said = two(tmp_path / "two", note_sockets, rank=0)
    assert codes == [0, 0], said
    for rank in range(2):
        assert equal(torch.load(tmp_path / f"two/state_{rank}.pt"), alone())
    assert (tmp_path / "sockets.txt").read_text() == "{'tcp': ['0100007F'], 'tcp6': []}"
    assert said[1] == ""


def test_a_socket_open_to_everybody_would_be_seen():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert (listening("tcp") | listening("tcp6")) - {"0100007F"}
    del store


def test_a_signal_to_one_process_ends_all_after_the_round(tmp_path):
    def look(federation):
        assert federation.stopped_by == signal.SIGTERM
        assert federation.state.round == 2

    codes, said = two(tmp_path / "two", lambda: os.kill(os.getpid(), signal.SIGTERM), then=look)
    assert codes == [0, 0], said
    assert "to go on, add --ckpt_path" in said[0]
    assert said[1] == ""


class Interrupting(FML):
    """Sends its own process a signal in the middle of its fifth local training, the second of round 2."""

    trained = 0

    def on_client_start(self, client):
        super().on_client_start(client)
        Interrupting.trained += 1

    def training_step(self, batch, batch_idx):
        if Interrupting.trained == 5 and batch_idx == 1:
            signal.raise_signal(signal.SIGTERM)
        return super().training_step(batch, batch_idx)


def test_a_signal_in_local_training_leaves_a_checkpoint_that_goes_on_to_the_same_bits(tmp_path):
    torch.manual_seed(1)
    model = Interrupting(SmallCNN, SmallCNN, SGD)
    stopped = fitted(model, default_root_dir=str(tmp_path))
    assert stopped.stopped_by == signal.SIGTERM
    assert stopped.state.round == 1
    resumed = fitted(model, ckpt_path="last", default_root_dir=str(tmp_path))
    assert equal(resumed.global_state, alone())


def test_processes_that_share_a_device_end_in_the_same_bits(tmp_path):
    def work(rank):
        federation = fitted(fml(), devices=1, processes_per_device=3)
        assert federation.fabric.world_size == 3
        torch.save(federation.global_state, tmp_path / f"state_{rank}.pt")

    assert exit_codes(forked(work, tmp_path, number=3)) == [0, 0, 0]
    for rank in range(3):
        assert equal(torch.load(tmp_path / f"state_{rank}.pt"), alone())


def meet_nobody(rank: int) -> None:
    if rank == 1:
        time.sleep(60)
    fitted(fml(), num_rounds=1, devices=2)


def test_a_signal_while_processes_meet_is_reported_in_one_line(tmp_path):
    first, second = forked(meet_nobody, tmp_path)
    deadline = time.monotonic() + 30
    while not listening("tcp", first) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(first, signal.SIGTERM)
    assert exit_codes([first]) == [128 + signal.SIGTERM]
    os.kill(second, signal.SIGKILL)
    exit_codes([second])
    said = (tmp_path / "rank_0.txt").read_text()
    assert said.splitlines()[-1:] == ["fedlit: stopped by SIGTERM before the first round"]
    assert "Traceback" not in said


def test_two_processes_add_the_same_secret_noise(tmp_path):
    pytest.importorskip("dp_accounting", reason="the extra `dp` is not installed")
    privacy = ClientLevelDP(noise_multiplier=2.0, delta=1e-3)

    def work(rank):
        torch.manual_seed(0)
        method = FedAvg(linear, SGD, weighting="uniform")
        federation = fitted(method, devices=2, num_rounds=2, privacy=privacy, default_root_dir=str(tmp_path))
        torch.save(federation.global_state, tmp_path / f"state_{rank}.pt")

    assert exit_codes(forked(work, tmp_path)) == [0, 0], (tmp_path / "rank_0.txt").read_text()
    first, second = (torch.load(tmp_path / f"state_{rank}.pt", weights_only=True) for rank in range(2))
    assert equal(first, second)
