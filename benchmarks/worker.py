"""One side of a comparison in a process of its own, a turn at a time.

A turn is `Workload.rounds` rounds. It ends with an evaluation of all models and a checkpoint, on both sides; a worker
takes a first turn to warm up and then one whenever it is asked, and sends what it took.
"""

import gc
import resource
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.workloads import Workload
from fedlit import Federation
from fedlit.callbacks import FederationCallback
from fedlit.fast.memory import keep_large_blocks

MANY_ROUNDS = 10**4  # more than are ever asked for


class NoMoreTurns(Exception):
    """Nobody asks for another one."""


class Stopwatch:
    """Sends CPU and wall seconds of a turn and the peak memory, and waits until another turn is asked for."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def start(self) -> None:
        self.cpu = time.process_time()
        self.wall = time.perf_counter()

    def stop(self) -> None:
        cpu = time.process_time() - self.cpu
        wall = time.perf_counter() - self.wall
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.connection.send({"cpu": cpu, "wall": wall, "peak": peak})

    def wait(self) -> None:
        if not self.connection.recv():
            raise NoMoreTurns


def run(work: Workload, side: str, connection: Connection) -> None:
    """Take turns as a tight loop for one of the modes, or as fedlit in it, until there are no more."""
    torch.set_num_threads(1)
    watch = Stopwatch(connection)
    with tempfile.TemporaryDirectory() as folder, suppress(NoMoreTurns):
        name, mode = side.split()
        if name == "tight":
            run_tight(work, mode == "fast", Path(folder), watch)
        else:
            run_fedlit(work, mode == "fast", folder, watch)


def run_tight(work: Workload, fast: bool, folder: Path, watch: Stopwatch) -> None:
    keep_large_blocks()  # fedlit does so when a federation runs
    loop = work.tight_loop(fast)
    gc.freeze()  # a program without fedlit has none of its objects to look through
    draw = torch.Generator().manual_seed(0)
    for number in range(1, MANY_ROUNDS):
        if number % work.rounds == 1 or work.rounds == 1:
            watch.start()
        is_last = number % work.rounds == 0
        clients = torch.randperm(work.num_clients, generator=draw)[: work.per_round].tolist()
        loop.round(number, clients, evaluate=is_last)
        if is_last:
            loop.save(folder / "last.ckpt")
            watch.stop()
            watch.wait()


class Clock(FederationCallback):
    """Turns end where another round is about to start: after evaluation, records and checkpoint of the last one."""

    def __init__(self, rounds: int, watch: Stopwatch) -> None:
        self.rounds = rounds
        self.watch = watch

    def on_round_start(self, federation, module, round, clients) -> None:
        if (round - 1) % self.rounds:
            return
        if round > 1:
            self.watch.stop()
            self.watch.wait()
        self.watch.start()


def run_fedlit(work: Workload, fast: bool, folder: str, watch: Stopwatch) -> None:
    federation = Federation(
        MANY_ROUNDS,
        eval_every_n_rounds=work.rounds,
        save_every_n_rounds=work.rounds,
        callbacks=Clock(work.rounds, watch),
        fast=fast,
        default_root_dir=folder,
        enable_progress_bar=False,
        **work.trainer_options,
    )
    federation.fit(work.federated_module(), work.federated_data())
