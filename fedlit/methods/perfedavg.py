"""Per-FedAvg. Fallah et al., 2020. https://arxiv.org/abs/2002.07948

One network w for all, from which each client is one step of gradient descent away from its own. A client trains
F(w) = f(w - alpha * grad f(w)) by batches D, D' and D'' of its own samples:

    w' = w - alpha * grad f(w; D)
    w <- w - beta * grad f(w'; D')                        first order (`fo`)
    w <- w - beta * (grad f(w'; D') - alpha * d)          without second derivatives (`hf`), with v = grad f(w'; D')
         d = (grad f(w + delta * v; D'') - grad f(w - delta * v; D'')) / (2 * delta)

and the server takes the plain mean. With fewer batches D' and D'' are the last there is. `personal` is
w - alpha * grad f(w) on all of the client's samples, as F is defined; `global` is w. beta is the rate of
`model.optimizer`, of which plain SGD is the paper's.

Invariants: alpha = 0 is FedAvg on every second batch, and personal is global.
"""

from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedlit.bounds import check_choice, check_number, check_positive
from fedlit.data.client import Client
from fedlit.inputs import applied, batch_size, like
from fedlit.methods.base import Card, Weighting, loss_of
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedavg import FedAvg
from fedlit.tasks import Task

Variant = Literal["fo", "hf"]
Batch = tuple[Any, Any]
Weights = dict[str, Tensor]
NUM_BATCHES = {"fo": 2, "hf": 3}  # of an update


class PerFedAvg(FedAvg):
    """One network for all, which a single step on a client's samples makes its own.

    Args:
        optimizer: Builds a client's optimiser from the parameters; its learning rate is beta.
        alpha: Rate of the step that makes the network a client's own; 0 is FedAvg on every second batch.
        variant: First order (`fo`), or `hf`, which takes the curvature from a difference of gradients.
        delta: Length of that difference, in `hf`.
        weighting: A client counts as much as any other (`uniform`, the paper's), or by its `examples`.
    """

    card = Card(
        paper="Fallah et al., 2020",
        link="https://arxiv.org/abs/2002.07948",
        travels="the network",
        recipes=("perfedavg_fashion.yaml", "perfedavg_cifar10.yaml"),
        use="A client that joins should be one step away from a good model of its own. It needs two or three "
        "batches for each step, and alpha must suit the data.",
        invariant="alpha = 0 is FedAvg with uniform weights on every second batch",
    )

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        alpha: float = 0.01,
        variant: Variant = "fo",
        delta: float = 1e-3,
        weighting: Weighting = "uniform",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.alpha = check_number("model.alpha", alpha, least=0)
        check_choice("model.variant", variant, Variant)
        self.delta = check_positive("model.delta", delta)
        self.variant = variant
        self.batches: list[Batch] = []
        self.num_batches = NUM_BATCHES[variant]

    def on_client_start(self, client: Client | None) -> None:
        self.batches = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:  # type: ignore[override]
        if not self.batches:
            self.num_batches = min(NUM_BATCHES[self.variant], int(self.trainer.estimated_stepping_batches))
        self.batches.append(batch)  # an epoch may have an odd number: the next goes on with it
        if len(self.batches) < self.num_batches:
            return None
        w = self._trained()
        adapted = self._moved(w, self._gradients(w, self.batches[0]), -self.alpha)
        loss = self._loss(adapted, self.batches[:2][-1])
        self.log("train_loss", loss)
        if self.variant == "hf":
            loss = loss - self.alpha * self._curvature(w, loss, self.batches[-1])
        self.batches = []
        return loss

    def personalise(self, client: Client) -> None:
        w = self._trained()
        batches = client.train_batches()
        batches.drop_last = False
        mean = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
        reference = next(self.network.parameters())
        for batch in batches:
            x, y = like(batch, reference)
            share = batch_size(x, y) / batches.num_samples
            for name, gradient in self._gradients(w, (x, y)).items():
                mean[name] += share * gradient
        with torch.no_grad():
            for name, tensor in w.items():
                tensor.sub_(self.alpha * mean[name])

    def _trained(self) -> Weights:
        """w: what requires a gradient."""
        return {name: tensor for name, tensor in self.network.named_parameters() if tensor.requires_grad}

    def _loss(self, w: Weights, batch: Batch) -> Tensor:
        """f(w; D)."""
        x, y = batch
        return loss_of(self)(applied(self.network, x, w), y)

    def _gradients(self, w: Weights, batch: Batch) -> Weights:
        return _gradients(self._loss(w, batch), w)

    def _moved(self, w: Weights, direction: Weights, rate: float) -> Weights:
        """w + rate * direction, which is a constant: gradients of it are gradients of w."""
        return {name: tensor + rate * direction[name] for name, tensor in w.items()}

    def _curvature(self, w: Weights, loss: Tensor, batch: Batch) -> Tensor:
        """0, with d for its gradient."""
        v = _gradients(loss, w, retain_graph=True)
        ahead = self._gradients(self._moved(w, v, self.delta), batch)
        behind = self._gradients(self._moved(w, v, -self.delta), batch)
        d = {name: (ahead[name] - behind[name]) / (2 * self.delta) for name in w}
        return torch.stack([(d[name] * (tensor - tensor.detach())).sum() for name, tensor in w.items()]).sum()


def _gradients(loss: Tensor, w: Weights, retain_graph: bool = False) -> Weights:
    found = torch.autograd.grad(loss, list(w.values()), retain_graph=retain_graph, materialize_grads=True)
    return dict(zip(w, found, strict=True))
