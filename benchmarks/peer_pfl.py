"""pfl's side of a comparison, where it is installed: `python -m benchmarks.peer_pfl W2 [DATA_FOLDER]`."""

import sys
import time

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.worker import answer, wait
from benchmarks.workloads import WORKLOADS


class Learner(torch.nn.Module):
    """What pfl wants of a network."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x)

    def loss(self, x, y, is_eval=False):
        return F.cross_entropy(self.network(x), y)

    def metrics(self, x, y, is_eval=True):
        return {}


class Clock(TrainingProcessCallback):
    """Answers at the end of a turn, and waits before the next one is begun."""

    def on_train_begin(self, *, model):
        self.start = time.process_time(), time.perf_counter()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if (central_iteration + 1) % work.rounds_a_turn == 0:
            answer(time.process_time() - self.start[0], time.perf_counter() - self.start[1])
            if not wait():
                raise SystemExit
            self.start = time.process_time(), time.perf_counter()
        return False, Metrics()


if __name__ == "__main__":
    torch.set_num_threads(1)
    work, root = WORKLOADS[sys.argv[1]], (sys.argv[2:] or [None])[0]
    shards = dict(enumerate(work.shards(root)))
    users = FederatedDataset(lambda k: Dataset(list(shards[k]), user_id=k), get_user_sampler("random", list(shards)))
    network = Learner(work.network())
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**9,
            train_cohort_size=work.per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(local_num_epochs=work.epochs, local_learning_rate=0.05, local_batch_size=work.batch_size),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
