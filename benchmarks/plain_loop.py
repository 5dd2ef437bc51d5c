"""The floor of `make bench`: a plain loop over the same LightningModule, with nothing around it.

python -m benchmarks.plain_loop W2 W9t    # CPU ratio to the tight loop; neither evaluates, records or saves

The loop seeds each client, loads its state, calls the method's hooks, `configure_optimizers` and `training_step`, steps
the optimiser, checks that the update is finite and adds it up. What fedlit takes beyond it is its own.
"""

import os
import statistics
import sys
import time
import warnings
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.workloads import WORKLOADS, Workload
from fedlit.fast.memory import keep_large_blocks

TURNS = 11


class PlainLoop:
    """The rounds of a workload by the method's own hooks; methods with an `aggregate` of their own are not for it."""

    def __init__(self, work: Workload, train: Any) -> None:
        self.work = work
        self.train = train
        self.method = work.federated_module()
        state = self.method.state_dict(keep_vars=True)
        self.shared = [tensor.data for name, tensor in state.items() if self.method.is_shared(name)]
        self.own = [tensor.data for name, tensor in state.items() if not self.method.is_shared(name)]
        self.server = [tensor.clone() for tensor in self.shared]
        self.initial = [tensor.clone() for tensor in self.own]
        self.personal: dict[int, list[torch.Tensor]] = {}

    def round(self, number: int, clients: list[int]) -> None:
        total = [torch.zeros_like(tensor, dtype=torch.float64) for tensor in self.shared]
        for k in clients:
            before = torch.get_rng_state()
            torch.set_rng_state(torch.Generator().manual_seed(number * 100_003 + k).get_state())
            torch._foreach_copy_(self.shared, self.server)
            if self.own:
                torch._foreach_copy_(self.own, self.personal.get(k, self.initial))
            self._train(number, k)
            if not torch.isfinite(torch.stack(torch._foreach_norm(self.shared))).all():
                raise ValueError(f"The update of client {k} is not finite.")
            torch._foreach_add_(total, [tensor.double() for tensor in self.shared])
            if self.own:
                self.personal[k] = [tensor.clone() for tensor in self.own]
            torch.set_rng_state(before)
        self.server = [(tensor / len(clients)).float() for tensor in total]

    def _train(self, number: int, k: int) -> None:
        method = self.method
        x, y = self.train[k]
        logs: dict[str, list[torch.Tensor]] = {}
        method.client = SimpleNamespace(id=k, round=number, num_opted_in=len(y))
        method._log_sink = lambda name, value, *_, **__: logs.setdefault(name, []).append(value.detach())
        method.on_client_start(method.client)
        optimizer = method.configure_optimizers()
        size = self.work.batch_size
        for _ in range(self.work.epochs):
            order = torch.randperm(len(y))
            for batch in zip(x.index_select(0, order).split(size), y.index_select(0, order).split(size), strict=True):
                loss = method.training_step(batch, 0)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                method.on_before_optimizer_step(optimizer)
                optimizer.step()
        method.on_client_end(method.client)
        method._log_sink = None
        for values in logs.values():
            torch.stack(values).mean()


def ratio(name: str) -> float:
    """The median CPU ratio of neighbouring turns."""
    work = WORKLOADS[name]
    tight = work.tight_loop()
    plain = PlainLoop(work, tight.data.train)
    draw = torch.Generator().manual_seed(0)
    ratios = []
    for _ in range(TURNS + 1):
        rounds = [
            torch.randperm(work.num_clients, generator=draw)[: work.per_round].tolist() for _ in range(work.rounds)
        ]
        spent = []
        for run in (lambda number, clients: tight.round(number, clients, evaluate=False), plain.round):
            start = time.process_time()
            for number, clients in enumerate(rounds, 1):
                run(number, clients)
            spent.append(time.process_time() - start)
        ratios.append(spent[1] / spent[0])
    return statistics.median(ratios[1:])  # the first warms up


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning)
    keep_large_blocks()
    for name in sys.argv[1:] or ["W2", "W2-momentum", "W2-Adam", "W2-Ditto", "W9", "W9t"]:
        print(f"{name}: {ratio(name):.2f}", flush=True)


if __name__ == "__main__":
    main()
