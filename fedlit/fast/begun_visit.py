"""How a plain visit begins: its optimiser and its batches, as an ordinary visit would build them."""

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


def begun_visit(module: FederatedModule, client: Client, plan: Plan, found: Perceptron) -> BegunVisit | None:
    """A client's, or None if its optimiser may do more than to train the perceptron."""
    client = replace(client, samples=plan.stage.samples)
    module.client = client
    module.stage = plan.stage
    factory = factory_for(module, client)
    if not is_plain_factory(factory):
        return None
    with isolated(derive(plan.seed, "visit", plan.stage.name, client.round, client.id)):
        optimizer = module.configure_optimizers()
        if not trains_all(optimizer, found):
            return None
        order = generator(plan.seed, "batches", plan.stage.name, client.round, client.id)
        batches = client.train_batches(order)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * plan.lr_factor
    return BegunVisit(client, batches, optimizer, factory)


def factory_for(module: FederatedModule, client: Client) -> Any:
    """What builds a client's optimiser."""
    return for_client(module.optimizer, module.client_optimizers, client)


def perceptron_names(fabric: Fabric, module: FederatedModule, plan: Plan, server: State) -> list[str] | None:
    """Names of the weight and the bias of each layer, where a method averages one perceptron and adds nothing of its
    own to a visit; None for any other.
    """
    found = for_visit(fabric, module, plan)
    if found is None:
        return None
    names = names_of(module, found)
    return names if server.keys() == set(names) else None


def names_of(module: FederatedModule, found: Perceptron) -> list[str]:
    """Of the weight and the bias of each layer in turn, as the method's state has them."""
    known = {id(tensor): name for name, tensor in module.state_dict(keep_vars=True).items()}
    return [known[id(parameter)] for parameter in found.parameters]
