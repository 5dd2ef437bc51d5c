"""FedRep: exploiting shared representations. Collins et al., 2021. https://arxiv.org/abs/2102.07078

A client's network is a representation phi, the body, that all share, and a head h_i of its own. In local training it
first fits its head to the body that it received, then the body to that head:

    h_i   <- h_i   - lr * grad_h   f_i(h_i, phi)      for tau_h epochs, phi frozen
    phi_i <- phi_i - lr * grad_phi f_i(h_i, phi_i)    for tau_b epochs, h_i frozen
    phi   <- mean_i phi_i

The paper's algorithm counts steps, its experiments epochs, as here. Its mean is uniform, the authors' code weighs by
examples. As in that code, only weights are frozen: statistics of BatchNorm follow the samples in both phases.

Invariants: tau_b = 0, the body never moves; what is frozen has no gradient.
"""

from lightning.pytorch.cli import OptimizerCallable
from torch import nn

from fedlit.bounds import check_count
from fedlit.data.client import Client
from fedlit.methods.base import Card, Weighting
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedper import FedPer
from fedlit.methods.stage import Stage
from fedlit.tasks import Task


class FedRep(FedPer):
    """A shared body and a personal head, trained one after the other.

    Args:
        network: Builds the network, whose last linear layers are the head.
        optimizer: Builds a client's optimiser from the parameters of both.
        head_epochs: tau_h, epochs of a round that train the head, in place of `trainer.local_epochs`.
        body_epochs: tau_b, epochs after them that train the body; with 0 it never moves.
        head_layers: Linear layers that stay with the client, the last of the network.
        weighting: A client counts by its `examples` (the authors' code), or all count the same (`uniform`, the paper).
    """

    card = Card(
        paper="Collins et al., 2021",
        link="https://arxiv.org/abs/2102.07078",
        travels="the body",
        stays="a head",
        recipes=("fedrep_fashion.yaml", "fedrep_cifar10.yaml"),
        use="As FedPer, where a head should fit the body before the body moves: heads train for epochs of "
        "their own, on few samples perhaps too many.",
        invariant="body_epochs = 0: the body never moves",
    )

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        head_epochs: int = 5,
        body_epochs: int = 1,
        head_layers: int = 1,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        check_count("model.head_epochs", head_epochs, least=0)
        check_count("model.body_epochs", body_epochs, least=0)
        check_count("model.head_layers", head_layers)
        if head_epochs + body_epochs == 0:
            raise ValueError("`model.head_epochs` and `model.body_epochs` must not both be 0.")
        super().__init__(network, optimizer, head_layers, weighting, client_optimizers, task)
        self.head_epochs = head_epochs
        self.body_epochs = body_epochs
        self._head: list[nn.Parameter] = []
        self._body: list[nn.Parameter] = []

    def configure_stages(self) -> list[Stage]:
        return [Stage("federate", epochs=self.head_epochs + self.body_epochs)]

    def on_client_start(self, client: Client | None) -> None:
        trained = [(name, p) for name, p in self.network.named_parameters() if p.requires_grad]
        self._head = [p for name, p in trained if name in self.own_names]
        self._body = [p for name, p in trained if name not in self.own_names]

    def on_train_epoch_start(self) -> None:
        trains_head = self.current_epoch < self.head_epochs
        for parameter in self._head:
            parameter.requires_grad_(trains_head)
        for parameter in self._body:
            parameter.requires_grad_(not trains_head)
