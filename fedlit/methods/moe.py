"""Federated learning using a mixture of experts. Zec et al., 2020. https://arxiv.org/abs/2010.02056

Clients federate on what they share. Then each trains a local expert f_l on all of its samples, and last a gate h that
mixes it with the client's own copy of the global expert f_g, all three together:

    y = h(x) f_l(x) + (1 - h(x)) f_g(x)

The authors mix log-probabilities, so that NLL(y) = h NLL(f_l) + (1 - h) NLL(f_g); see fedlit.losses.mixture. Only the
FedAvg on shared samples sends anything to the server. A variant overrides `build_mixture`.

Invariants: h = 1 is the local expert, h = 0 the global one; no upload depends on a sample that is not shared.
"""

from collections.abc import Iterable
from typing import Any

import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.bounds import check_count
from fedlit.data.client import Client
from fedlit.heads import Gated, with_outputs
from fedlit.losses import Mix
from fedlit.methods.base import Card, FederatedModule
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, build
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.stage import EarlyStopping, Stage
from fedlit.methods.states import copy_into


class Mixture(FederatedModule):
    """The two experts and their gate, trained together at one client."""

    network: Gated
    part_of = "MixtureOfExperts"

    def __init__(self, network: Gated, optimizer: OptimizerCallable, client_optimizers: ClientOptimizers) -> None:
        super().__init__(optimizer, client_optimizers)
        self.network = network

    def validation_loss(self, z: Tensor, y: Tensor) -> Tensor:
        if self.network.mix == "logits":
            return F.cross_entropy(z, y)
        # Cross-entropy would normalise the mixture of log-probabilities; it would not be the gate's mean of two losses.
        return F.nll_loss(z, y)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = self.validation_loss(self(x), y)
        self.log("mixture_loss", loss)
        return loss

    def probe(self, client: Client) -> dict[str, float]:
        return self.network.summary(client.val_batches().to(self.device))


class MixtureOfExperts(FederatedModule):
    """FedAvg, then at every client a local expert, and a gate between both.

    Args:
        network: Builds the global expert.
        gate: Builds the gate, with one output; by default the global expert's network with a head of one.
        mix: What is mixed: `log_prob` (the authors' code), `prob`, or `logits`.
        epochs: Of local expert, mixture and baselines, at most; they stop after 50 without a lower validation loss.
        freeze_global: Leave the global expert as the federation trained it (the authors' later variant).
        baselines: Train at every client also a fine-tuned global model (`finetuned`), and the local expert for as long
            again as the mixture (`longer`), to compare it with.
        mixture_optimizer: Another optimiser for the mixture.
        local_network: Builds the local expert, whose architecture is free; by default as `network`.
        first_check: The epoch after which the validation loss is first checked, and then every fifth: 1 is the authors'
            1, 6, 11 ...; with 0 a model may stay as it was.
    """

    card = Card(
        paper="Zec et al., 2020",
        link="https://arxiv.org/abs/2010.02056",
        travels="the global expert",
        stays="a local expert, a gate, an own copy of the global expert",
        stages=("federate", "local", "longer", "finetune", "mixture"),
        recipes=("moe_fashion.yaml", "moe_cifar10.yaml"),
        use="Some samples or clients must not shape anything that is sent, and each client still wants the "
        "best of both models. Clients train for long by themselves, after the federation.",
        invariant="a gate of 1 is the local expert, of 0 the global one; no upload depends on an opted-out sample",
        tasks=("classification",),
    )

    shared = ("federated.",)

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        gate: NetworkFactory | None = None,
        mix: Mix = "log_prob",
        epochs: int = 200,
        freeze_global: bool = False,
        baselines: bool = True,
        mixture_optimizer: OptimizerCallable | None = None,
        client_optimizers: ClientOptimizers = None,
        local_network: NetworkFactory | None = None,
        first_check: int = 1,
    ) -> None:
        super().__init__(optimizer, client_optimizers)
        self.epochs = check_count("model.epochs", epochs)
        self.first_check = check_count("model.first_check", first_check, least=0)
        local = local_network or network
        # In this order: it is the order of the state and of the initial draws, which checkpoints and seeds rely on.
        self.federated = FedAvg(network, optimizer, client_optimizers=client_optimizers)
        self.local = FedAvg(local, optimizer, client_optimizers=client_optimizers)
        self.longer: FedAvg | None = None
        self.finetuned: FedAvg | None = None
        if baselines:
            self.longer = FedAvg(local, optimizer, client_optimizers=client_optimizers)
            self.finetuned = FedAvg(network, optimizer, client_optimizers=client_optimizers)
        h = _gate(gate, network)
        f_l = build(local, "model.local_network")
        f_g = build(network, "model.network")
        mixed = self.build_mixture(f_l, f_g, h, mix, freeze_global)
        self.mixture = Mixture(mixed, mixture_optimizer or optimizer, client_optimizers)

    def build_mixture(
        self, local_expert: nn.Module, global_expert: nn.Module, gate: nn.Module, mix: Mix, freeze_global: bool
    ) -> Gated:
        """The network that is trained last, of f_l, f_g and h."""
        return Gated(local_expert, global_expert, gate, mix, freeze_global)

    def configure_stages(self) -> list[Stage]:
        stages = [
            Stage("federate", self.federated, reported_as="federated"),
            self._local_stage("local", self.local, reported_as="local"),
        ]
        if self.longer is not None:
            stages.append(self._local_stage("longer", self.longer, reported_as="longer", needs="local."))
        if self.finetuned is not None:
            stages.append(self._local_stage("finetune", self.finetuned, reported_as="finetuned"))
        stages.append(self._local_stage("mixture", self.mixture, reported_as="personal", needs="local."))
        return stages

    def _local_stage(self, name: str, module: FederatedModule, reported_as: str, needs: str = "") -> Stage:
        return Stage(
            name,
            module,
            rounds=1,
            epochs=self.epochs,
            samples="all",
            upload="none",
            needs=needs,
            early_stopping=EarlyStopping("loss", first_check=self.first_check),
            reported_as=reported_as,
        )

    def on_client_start(self, client: Client | None) -> None:
        stage = None if self.stage is None else self.stage.name
        experts = self.mixture.network
        if stage == "longer" and self.longer is not None:
            _copy(self.local.network, self.longer.network)
        if stage == "finetune" and self.finetuned is not None:
            _copy(self.federated.network, self.finetuned.network)
        if stage == "mixture":
            _copy(self.local.network, experts.local_expert)
        if stage in ("mixture", "adapt"):
            _copy(self.federated.network, experts.global_expert)

    def parameters_of(self, client: Client | None) -> Iterable[nn.Parameter] | Iterable[dict[str, Any]]:
        return self.mixture.parameters_of(client)

    def global_model(self) -> nn.Module:
        return self.federated.network

    def forward(self, x: Tensor) -> Tensor:
        return self.mixture(x)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.mixture.training_step(batch, batch_idx)


def _gate(gate: NetworkFactory | None, network: NetworkFactory) -> nn.Module:
    if gate is not None:
        return build(gate, "model.gate")
    return with_outputs(build(network, "model.network"), 1)


def _copy(source: nn.Module, target: nn.Module) -> None:
    copy_into(target.state_dict(keep_vars=True), source.state_dict())
