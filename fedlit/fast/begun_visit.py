"""How plain visits begin: with which perceptron, optimiser and batches, as an ordinary visit would build them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lightning.fabric import Fabric
from torch.optim import Optimizer

from fedlit.aggregation import State
from fedlit.data.client import Client
from fedlit.data.loaded import AnyBatches
from fedlit.engine.plan import Plan
from fedlit.fast.permission import for_visit, is_plain_factory, trains_all
from fedlit.fast.recognition import Perceptron
from fedlit.methods.base import FederatedModule
from fedlit.methods.factories import for_client
from fedlit.rng import derive, generator, isolated


@dataclass(frozen=True)
class BegunVisit:
    """What a visit trains with.

    Attributes:
        client: On whose samples.
        batches: Of them, in this visit's order.
        optimizer: Plain SGD, with this round's rate.
        factory: What built the optimiser.
    """

    client: Client
    batches: AnyBatches
    optimizer: Optimizer
    factory: Callable

    @property
    def rate(self) -> float:
        return self.optimizer.param_groups[0]["lr"]


class Beginnings:
    """Of the visits of a round.

    Args:
        fabric: Precision.
        module: The live one.
        is_undisturbed: No code of a user's runs beside a visit or between two (`all_ours`). Then a network is looked
            at, and an optimiser of a kind built, once for all of them, and nothing draws but the order of batches.
    """

    def __init__(self, fabric: Fabric, module: FederatedModule, is_undisturbed: bool) -> None:
        self.fabric = fabric
        self.module = module
        self.is_undisturbed = is_undisturbed
        self._found: Perceptron | None = None
        self._optimizers: dict[tuple[Callable, float], Optimizer] = {}  # by what built them, and the rate's factor

    def forget(self) -> None:
        """An ordinary visit comes between, in which anything may happen."""
        self._found = None
        self._optimizers.clear()

    def perceptron(self, plan: Plan) -> Perceptron | None:
        """The network, if visits may be steps of it and nothing else; a new object whenever it was looked at anew."""
        if self._found is None or not self.is_undisturbed:
            self._found = for_visit(self.fabric, self.module, plan)
        return self._found

    def visit(self, client: Client, plan: Plan, found: Perceptron) -> BegunVisit | None:
        """A client's, or None if its optimiser may do more than to train the perceptron."""
        client = replace(client, samples=plan.stage.samples)
        self.module.client = client
        self.module.stage = plan.stage
        factory = factory_for(self.module, client)
        if not is_plain_factory(factory):
            return None
        if self.is_undisturbed:
            return self._begun(client, plan, found, factory)
        with isolated(derive(plan.seed, "visit", plan.stage.name, client.round, client.id)):
            return self._begun(client, plan, found, factory)

    def _begun(self, client: Client, plan: Plan, found: Perceptron, factory: Callable) -> BegunVisit | None:
        optimizer = self._optimizers.get((factory, plan.lr_factor))
        if optimizer is None:
            optimizer = self.module.configure_optimizers()
            if not trains_all(optimizer, found):
                return None
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * plan.lr_factor
        if self.is_undisturbed:
            self._optimizers[factory, plan.lr_factor] = optimizer
        order = generator(plan.seed, "batches", plan.stage.name, client.round, client.id)
        return BegunVisit(client, client.train_batches(order), optimizer, factory)


def factory_for(module: FederatedModule, client: Client) -> Any:
    """What builds a client's optimiser."""
    return for_client(module.optimizer, module.client_optimizers, client)


def perceptron_names(module: FederatedModule, found: Perceptron | None, server: State) -> list[str] | None:
    """Names of the weight and the bias of each layer, where a method averages one perceptron and nothing else."""
    if found is None:
        return None
    names = names_of(module, found)
    return names if server.keys() == set(names) else None


def names_of(module: FederatedModule, found: Perceptron) -> list[str]:
    """Of the weight and the bias of each layer in turn, as the method's state has them."""
    known = {id(tensor): name for name, tensor in module.state_dict(keep_vars=True).items()}
    return [known[id(parameter)] for parameter in found.parameters]
