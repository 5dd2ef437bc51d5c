"""fedlit against a hand-written PyTorch loop of the same work, alternately in one process: `make bench`.

CPU seconds of a round (visits and aggregation, no evaluation) on the embedded sample of Fashion-MNIST, one thread.
"""

import copy
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from fedlit import FedAvg, FederatedData, Federation
from fedlit.callbacks import FederationCallback
from fedlit.networks import MLP, McMahanCNN
from fedlit.partition import IID

REPEATS = 7


@dataclass
class Workload:
    name: str
    network: type[nn.Module]
    num_clients: int
    per_round: int
    batch_size: int
    epochs: int


WORKLOADS = [
    Workload("W1: 10 clients x 600, McMahan CNN, B=32", McMahanCNN, 10, 10, 32, 1),
    Workload("W2: 100 clients x 60, MLP, B=10, E=2, 10 a round", MLP, 100, 10, 10, 2),
]


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def bare_round(work: Workload, network: nn.Module, data: FederatedData, clients: list[int]) -> None:
    """What one would write by hand."""
    mean, std = data.images.mean[0], data.images.std[0]
    total: dict[str, torch.Tensor] = {}
    for k in clients:
        local = copy.deepcopy(network)
        optimizer = sgd(local.parameters())
        index = torch.as_tensor(data.assignment.train[k])
        x, y = (data.images.train_x[index].float() / 255 - mean) / std, data.images.train_y[index]
        for _ in range(work.epochs):
            for batch in torch.randperm(len(y)).split(work.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(local(x[batch]), y[batch]).backward()
                optimizer.step()
        for name, value in local.state_dict().items():
            total[name] = total.get(name, 0) + value / len(clients)
    network.load_state_dict(total)


class Clock(FederationCallback):
    """CPU seconds of each round, without the first."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_round_start(self, federation, module, round, clients) -> None:
        self.start = time.process_time()

    def on_round_end(self, federation, module, round, rows) -> None:
        self.seconds.append(time.process_time() - self.start)


def measure(work: Workload) -> tuple[list[float], list[float]]:
    """Seconds a round of the bare loop and of fedlit, taken in turns."""
    bare, ours = [], []
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(REPEATS):
            data = FederatedData(
                num_clients=work.num_clients, batch_size=work.batch_size, partition=IID(), validation="test"
            )
            data.setup()
            network = work.network()
            start = time.process_time()
            bare_round(work, network, data, list(range(work.per_round)))
            bare.append(time.process_time() - start)
            clock = Clock()
            options = {
                "eval_every_n_rounds": 9,
                "save_every_n_rounds": 9,
                "enable_progress_bar": False,
                "logger": False,
            }
            federation = Federation(
                num_rounds=2,
                local_epochs=work.epochs,
                fraction_fit=work.per_round / work.num_clients,
                callbacks=clock,
                default_root_dir=folder,
                seed=repeat,
                **options,
            )
            federation.fit(FedAvg(work.network, partial(sgd)), data)
            ours.append(clock.seconds[0])  # the last round of a stage is evaluated and saved
    return bare[1:], ours[1:]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"{'CPU seconds a round':50} {'bare':>7} {'fedlit':>7} {'ratio':>6}   (min to max of {REPEATS - 1} turns)")
    for work in WORKLOADS:
        bare, ours = measure(work)
        ratios = sorted(b / a for a, b in zip(bare, ours, strict=True))
        middle = statistics.median(ratios)
        print(
            f"{work.name:50} {statistics.median(bare):7.3f} {statistics.median(ours):7.3f} {middle:6.2f}"
            f"   ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )
