"""One side of a comparison, a turn at a time: `python -m benchmarks.worker W1 bare|exact|fast [DATA_FOLDER]`.

Sets up, works a turn to warm up, says so, and then works a turn for every line it reads; answers in JSON. A turn is a
round, or several where one is so short that waking up would count.
"""

import json
import resource
import sys
import tempfile
import time

import torch

from benchmarks.workloads import WORKLOADS, Workload, quiet_federation


def answer(cpu: float = 0.0, wall: float = 0.0) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu": cpu, "wall": wall, "peak": peak}), flush=True)


def wait() -> bool:
    """Whether another turn is wanted."""
    return bool(sys.stdin.readline())


def work_bare(work: Workload, root: str | None) -> None:
    loop, number = work.loop(root), 0
    draw = torch.Generator().manual_seed(0)
    while number == 0 or wait():
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(work.rounds_a_turn):
            clients = torch.randperm(work.num_clients, generator=draw)[: work.per_round].tolist()
            loop.round(number := number + 1, clients)
        answer(time.process_time() - cpu, time.perf_counter() - wall)


def work_fedlit(work: Workload, root: str | None, fast: bool) -> None:
    from fedlit.callbacks import FederationCallback

    class Clock(FederationCallback):
        """Answers at the end of a turn, and waits before the next one is begun."""

        def on_round_start(self, federation, module, round, clients) -> None:
            if round > 1 and self.is_new and not wait():
                raise SystemExit
            if round == 1 or self.is_new:
                self.start = time.process_time(), time.perf_counter()

        def on_round_end(self, federation, module, round, rows) -> None:
            self.is_new = round % work.rounds_a_turn == 0
            if self.is_new:
                answer(time.process_time() - self.start[0], time.perf_counter() - self.start[1])

    with tempfile.TemporaryDirectory() as folder:
        share = work.per_round / work.num_clients
        options = {"local_epochs": work.epochs, "fraction_fit": share, "callbacks": Clock(), "fast": fast}
        quiet_federation(10**4, folder, **options).fit(work.method(), work.data(root))


if __name__ == "__main__":
    torch.set_num_threads(1)
    work, mode, root = WORKLOADS[sys.argv[1]], sys.argv[2], (sys.argv[3:] or [None])[0]
    work_bare(work, root) if mode == "bare" else work_fedlit(work, root, mode == "fast")
