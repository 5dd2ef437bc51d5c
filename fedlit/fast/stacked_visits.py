"""Visits of a round worked ahead: the next clients trained as one stack, in fast mode, where nothing speaks against it.

Law: `visit`, but for rounding. The same clients are stacked on one process and on many; whatever is not plain, or
fails, is left to a visit of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from lightning.fabric import Fabric
from torch import nn

from fedlit.aggregation import State, Upload
from fedlit.data.batches import Batches
from fedlit.data.client import Client
from fedlit.engine.plan import Interrupted, Memory, Outcome, Plan
from fedlit.engine.precision import autocast
from fedlit.engine.visit import as_list
from fedlit.fast.perceptron import STEP, ClosedForm, is_changed, linear_layers
from fedlit.fast.stack import ROOM, Kind, Member, Stack
from fedlit.fast.step import is_plain
from fedlit.methods.base import FederatedModule
from fedlit.rng import derive, generator, isolated

# What runs in a visit beside its steps, or sees the trained network live.
VISIT = (
    "configure_client",
    "configure_optimizers",
    "parameters_of",
    "global_model",
    "client_weight",
    "on_client_start",
    "on_train_epoch_start",
    "log",
)
AT_ONCE = 16  # clients in a stack: more gain little
MANY, SHARE = 4, 0.25  # clients of a kind in a round, for stacks of one to be rare


def perceptron_names(fabric: Fabric, module: FederatedModule, plan: Plan, server: State) -> list[str] | None:
    """Names of the weight and the bias of each layer, where a method averages one perceptron in fast mode and adds
    nothing of its own to a visit; None for any other.
    """
    if not module.fast or autocast(fabric) is not nullcontext or is_changed(module, (*STEP, *VISIT)):
        return None
    if any(type(part).train is not nn.Module.train for part in module.modules()):
        return None
    layers, stage = linear_layers(module.global_model()), plan.stage
    is_plain_stage = (
        stage.upload == "aggregate" and not stage.module and not stage.early_stopping and stage.public == "no"
    )
    if layers is None or not is_plain_stage or plan.gradient_clip_val is not None:
        return None
    known = {id(tensor): name for name, tensor in module.state_dict(keep_vars=True).items()}
    names = [known.pop(id(tensor), "") for layer in layers for tensor in (layer.weight, layer.bias)]
    return names if not known and server.keys() == set(names) else None


class Cohort:
    """Visits of a round, worked ahead in stacks.

    Args:
        fabric: Knows which clients are visited by this process.
        module: The live one.
        clients: Of the round, on all processes.
        plan_for: How a client trains.
        client_of: The client of an id, in this round.
        enter: Loads a client's state into the live module.
        server: What all begin with.
        names: From `perceptron_names`.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: FederatedModule,
        clients: list[int],
        plan_for: Callable[[int], Plan],
        client_of: Callable[[int], Client],
        enter: Callable[[int], None],
        server: State,
        names: list[str],
    ) -> None:
        self.module, self.plan_for, self.client_of, self.enter = module, plan_for, client_of, enter
        self.names, self.order = names, list(server)
        self.weights, self.biases = ([server[name] for name in names[start::2]] for start in (0, 1))
        self.kinds = {k: self._kind(k) for k in clients}
        # Counted over all processes, so that the same clients are stacked on one and on many.
        counts = Counter(kind for kind in self.kinds.values() if kind is not None)
        often = {kind for kind, count in counts.items() if count >= max(MANY, SHARE * len(clients))}
        chosen = {kind for kind in often if kind.fits(*self.weights[0].shape[::-1])}
        self.mine = [k for k in clients[fabric.global_rank :: fabric.world_size] if self.kinds[k] in chosen]
        self.ahead: dict[int, tuple[Stack, int] | None] = {}  # None: must be visited by itself after all

    def outcome(self, k: int, memory: Memory) -> Outcome | None:
        """What a client's visit brings, who keeps the state that it has; None if it must be visited by itself."""
        if k not in self.ahead and k in self.mine:
            self._work_ahead(k)
        place = self.ahead.pop(k, None)
        if place is None:
            return None
        stack, i = place
        client = self.module.client = stack.members[i].client
        layers, loss = stack.trained(i)
        state = dict(zip(self.names, layers, strict=True))
        upload = Upload(k, {name: state[name] for name in self.order}, float(self.module.client_weight(client)))
        return Outcome(upload, Memory(memory.state), {"train_loss": loss})

    def _work_ahead(self, k: int) -> None:
        self.enter(k)
        start, room, found = self.mine.index(k), ROOM, defaultdict(list)
        deeper = sum(tensor.nbytes for tensor in (*self.weights[1:], *self.biases[1:]))
        for k in self.mine[start : start + AT_ONCE]:
            if room <= 0:
                break
            self.ahead[k] = None
            if (member := self._member(k)) is not None:
                found[self.kinds[k]].append(member)
                room -= self.kinds[k].num_bytes(*self.weights[0].shape[::-1]) + deeper
        for kind, members in found.items():
            self._train(kind, members)

    def _train(self, kind: Kind, members: list[Member]) -> None:
        try:
            stack = Stack(self.weights, self.biases, members)
            stack.train(kind, self.plan_for(members[0].client.id).should_stop)
        except Interrupted:
            raise
        except Exception:  # one of them is bad, or all are too large: their own visits will tell
            return
        self.ahead |= {member.client.id: (stack, i) for i, member in enumerate(members)}

    def _kind(self, k: int) -> Kind | None:
        try:
            plan, client = self.plan_for(k), self.client_of(k)
            samples = client.num_opted_in if plan.stage.samples == "opted_in" else client.num_samples
            is_fixed = client.sees_the_same_inputs
            return Kind(samples, client.data.batch_size_of(k), plan.epochs, plan.steps) if is_fixed else None
        except Exception:  # its own visit will tell
            return None

    def _member(self, k: int) -> Member | None:
        """The client, if its steps are plain; one that fails already here is left to its own visit, which will tell."""
        try:
            plan = self.plan_for(k)
            client = self.module.client = replace(self.client_of(k), samples=plan.stage.samples)
            self.module.stage = plan.stage
            with isolated(derive(plan.seed, "visit", plan.stage.name, client.round, k)):
                optimizers = as_list(self.module.configure_optimizers())
                order = generator(plan.seed, "batches", plan.stage.name, client.round, k)
                batches = client.train_batches(order)
            if len(optimizers) != 1 or not is_plain(optimizers[0]) or not ClosedForm.of(self.module, optimizers[0]):
                return None
            rate = optimizers[0].param_groups[0]["lr"] * plan.lr_factor
            return Member(client, batches, rate) if self._is_plain(batches, self.kinds[k]) else None
        except Exception:
            return None

    def _is_plain(self, batches: Batches, kind: Kind) -> bool:
        """Whether batches are views of tensors as the stack wants them."""
        if type(batches) is not Batches or batches.transform is not None or batches.batch_size != kind.batch_size:
            return False
        x, y = batches.x, batches.y
        if x.dtype != torch.float32 or y.dtype != torch.int64 or not (x.is_cpu and y.is_cpu) or len(batches) == 0:
            return False
        if y.shape != (kind.samples,) or x.flatten(1).shape != (kind.samples, self.weights[0].shape[1]):
            return False
        return int(y.min()) >= 0 and int(y.max()) < len(self.biases[-1])
