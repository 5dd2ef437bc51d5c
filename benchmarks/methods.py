"""CPU time of a round of each method against FedAvg of the same work, taken in turns: `python -m benchmarks.methods`.

McMahan's CNN, 4 clients x 300 images of the embedded sample, B = 32, E = 5 (the fusion paper's), one thread.
"""

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.workloads import quiet_federation
from fedlit import FedAvg, FederatedData, FederatedModule
from fedlit.callbacks import FederationCallback
from fedlit.methods import FML, FedFusion, FedMMD
from fedlit.networks import McMahanCNN
from fedlit.partition import IID

TURNS = 4
sgd = partial(torch.optim.SGD, lr=0.05)
METHODS: dict[str, Callable[[], FederatedModule]] = {
    "FedAvg": partial(FedAvg, McMahanCNN, sgd),
    "FML": partial(FML, McMahanCNN, McMahanCNN, sgd),
    "FedMMD": partial(FedMMD, McMahanCNN, sgd, record=False),
    "FedMMD, recorded": partial(FedMMD, McMahanCNN, sgd),
    "FedFusion conv": partial(FedFusion, McMahanCNN, sgd, "conv", record=False),
    "FedFusion conv, recorded": partial(FedFusion, McMahanCNN, sgd, "conv"),
    "FedFusion multi, recorded": partial(FedFusion, McMahanCNN, sgd, "multi"),
}


class Clock(FederationCallback):
    """CPU seconds of each round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_round_start(self, federation, module, round, clients) -> None:
        self.start = time.process_time()

    def on_round_end(self, federation, module, round, rows) -> None:
        self.seconds.append(time.process_time() - self.start)


def seconds_of_a_round(build: Callable[[], FederatedModule], folder: str) -> float:
    data = FederatedData(num_clients=4, batch_size=32, partition=IID(300), validation="test")
    clock = Clock()
    quiet_federation(2, folder, local_epochs=5, callbacks=clock).fit(build(), data)
    return clock.seconds[0]  # the last round of a stage is evaluated and saved


if __name__ == "__main__":
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TURNS):
            for name, build in METHODS.items():
                times[name].append(seconds_of_a_round(build, folder))
    for name, seconds in times.items():
        ratios = sorted(a / b for a, b in zip(seconds, times["FedAvg"], strict=True))
        print(f"{name:26} {statistics.median(ratios):5.2f}   ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"peak memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
