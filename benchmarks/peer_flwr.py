"""Flower's side of a comparison, where flwr and ray are installed: `python -m benchmarks.peer_flwr W2 [DATA_FOLDER]`.

Its simulation runs clients in processes of Ray: time is that of the whole tree of processes.
"""

import logging
import os
import sys
import time
from functools import cache
from pathlib import Path

import ray
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks import bare
from benchmarks.worker import answer, wait
from benchmarks.workloads import WORKLOADS, Workload

TICK = os.sysconf("SC_CLK_TCK")
client_app, server_app = ClientApp(), ServerApp()


def chosen() -> tuple[Workload, str | None]:
    """What the command line names; Ray's processes find it in their environment."""
    name, *root = os.environ["BENCHMARK"].split("|")
    return WORKLOADS[name], root[0] if root else None


@cache
def loop() -> bare.FedAvg:
    """The hand-written training of a client, once in each process of Ray."""
    torch.set_num_threads(1)
    work, root = chosen()
    return work.loop(root)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    hand = loop()
    hand.network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    local = hand.train(0, k := int(context.node_config["partition-id"]))
    size = MetricRecord({"num-examples": len(hand.shards[k][1])})
    return Message(RecordDict({"arrays": ArrayRecord(local.state_dict()), "metrics": size}), reply_to=message)


def cpu_seconds() -> float:
    """Of this process and all that descend from it."""
    times, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended in the meantime
            continue
        pid = int(path.parent.name)
        parents[pid], times[pid] = int(fields[1]), sum(map(int, fields[11:15])) / TICK  # with children that have ended
    mine, found = {os.getpid()}, 0
    while len(mine) > found:
        found, mine = len(mine), mine | {pid for pid, parent in parents.items() if parent in mine}
    return sum(times[pid] for pid in mine)


class Timed(FedAvg):
    """Answers at the end of a turn, and waits before the next one is begun."""

    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        work, _ = chosen()
        if server_round % work.rounds_a_turn == 0:
            answer(cpu_seconds() - self.start_of_turn[0], time.perf_counter() - self.start_of_turn[1])
            if not wait():
                ray.shutdown()
                os._exit(0)
            self.start_of_turn = cpu_seconds(), time.perf_counter()
        return result


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    work, _ = chosen()
    strategy = Timed(fraction_train=work.per_round / work.num_clients, fraction_evaluate=0.0)
    strategy.start_of_turn = cpu_seconds(), time.perf_counter()
    strategy.start(grid, ArrayRecord(work.network().state_dict()), num_rounds=10**4)


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    os.environ["BENCHMARK"], os.environ["PYTHONPATH"] = "|".join(sys.argv[1:]), str(Path(__file__).parents[1])
    one_core = {"num_cpus": 1, "log_to_driver": False, "include_dashboard": False}
    resources = {"init_args": one_core, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, chosen()[0].num_clients, backend_config=resources)


if __name__ == "__main__":
    from benchmarks import peer_flwr  # by its name, so that Ray's processes import it and keep their cache

    peer_flwr.main()
