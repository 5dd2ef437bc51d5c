"""One side of a comparison, a turn at a time: `python -m benchmarks.worker W1 tight [DATA_FOLDER]`.

Sets up, works a turn to warm up, says so, and then works a turn for every line it reads; answers in JSON. A turn is a
round, or several where one is so short that waking up would count.
"""

import json
import resource
import sys
import tempfile
import time
from contextlib import suppress

import torch

from benchmarks import bare, tight
from benchmarks.workloads import MODES, WORKLOADS, Mode, Workload, default_federation, quiet_federation


def answer(cpu: float = 0.0, wall: float = 0.0) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu": cpu, "wall": wall, "peak": peak}), flush=True)


def wait() -> bool:
    """Whether another turn is wanted."""
    return bool(sys.stdin.readline())


class NoMoreTurns(Exception):
    """Nobody waits for another one."""


def work_by_hand(work: Workload, loop: bare.FedAvg | tight.FedAvg) -> None:
    number = 0
    draw = torch.Generator().manual_seed(0)
    while number == 0 or wait():
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(work.rounds_a_turn):
            clients = torch.randperm(work.num_clients, generator=draw)[: work.per_round].tolist()
            loop.round(number := number + 1, clients)
        answer(time.process_time() - cpu, time.perf_counter() - wall)


def work_fedlit(work: Workload, mode: Mode, root: str | None) -> None:
    from fedlit.callbacks import FederationCallback

    class Clock(FederationCallback):
        """Answers at the end of a turn, and waits before the next one is begun."""

        def on_round_start(self, federation, module, round, clients) -> None:
            if round > 1 and self.is_new and not wait():
                raise NoMoreTurns
            if round == 1 or self.is_new:
                self.start = time.process_time(), time.perf_counter()

        def on_round_end(self, federation, module, round, rows) -> None:
            self.is_new = round % work.rounds_a_turn == 0
            if self.is_new:
                answer(time.process_time() - self.start[0], time.perf_counter() - self.start[1])

    with tempfile.TemporaryDirectory() as folder:
        share = work.per_round / work.num_clients
        options = {"local_epochs": work.epochs, "fraction_fit": share, "callbacks": Clock(), "fast": mode.fast}
        if mode.records:
            federation = default_federation(10**4, folder, **options)
            data = work.data(None)  # the embedded sample has as many test images as the tight loop looks at
        else:
            federation = quiet_federation(10**4, folder, **options)
            data = work.data(root)
        with suppress(NoMoreTurns):
            federation.fit(work.method(mode.own), data)


def main(name: str, side: str, root: str | None = None) -> None:
    torch.set_num_threads(1)
    work = WORKLOADS[name]
    if side == "bare":
        work_by_hand(work, work.loop(root))
    elif side == "tight":
        work_by_hand(work, work.tight_loop(root))
    else:
        work_fedlit(work, MODES[side], root)


if __name__ == "__main__":
    main(*sys.argv[1:])
