r"""Small perceptrons side by side: the next clients of a round trained as one stack, in fast mode.

With a few samples per client a step costs more around its arithmetic than in it; a stack pays that once for all. All
begin with the server's weights and see the same samples in every epoch, so that the first and widest layer is only
written out at the end. Until then, what each sample :math:`i` has added to it stands for it:

.. math:: W_t x_j + b_t = (W_0 x_j + b_0) - \sum_i \delta_i (x_i \cdot x_j + 1), \quad
          W_T = W_0 - \sum_i \delta_i x_i^T, \quad b_T = b_0 - \sum_i \delta_i

Law: `visit`, but for rounding. A client's bits do not depend on who stands beside it.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from fedlit.aggregation import State, Upload
from fedlit.batches import Batches
from fedlit.client import Client
from fedlit.closed_form import ClosedForm, linear_layers, relu_backward
from fedlit.descent import is_plain
from fedlit.methods.base import FederatedModule
from fedlit.precision import autocast
from fedlit.rng import generator
from fedlit.visit import Interrupted, Memory, Outcome, Plan, as_list

# A visit of one's own is unknown here.
UNCHANGED = (
    "configure_client",
    "configure_optimizers",
    "parameters_of",
    "on_client_start",
    "on_train_epoch_start",
    "log",
)
AT_ONCE = 16  # clients in a stack: more gain little
ROOM = 2**25  # bytes of a stack, or little more
SMALL, FASTER = 64, 2  # in place of batches of up to 64, a stack may multiply twice as often: its products are larger
VISIT = 20e6  # and so often more, in place of a visit's other costs


@dataclass(frozen=True)
class Member:
    """A client that can be stacked: its samples ``[N, D]`` and ``[N]``, the positions of each batch, its rate."""

    client: Client
    x: Tensor
    y: Tensor
    steps: list[Tensor]
    rate: float

    @property
    def shape(self) -> tuple[int, ...]:
        """What must be equal in a stack."""
        return (len(self.y), *map(len, self.steps))

    def num_bytes(self, width: int) -> int:
        """What it takes in a stack, beside deeper layers; `width`: of the first layer."""
        return 4 * len(self.y) * (self.x.shape[1] + len(self.y) + 2 * width)


class Stack:
    """Perceptrons that begin with the same weights, each on its own samples.

    Args:
        weights: Of every layer, ``[out, in]``.
        biases: Of every layer.
        members: All of one shape.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor], members: Sequence[Member]) -> None:
        self.members, self.size = members, len(members)
        self.first = weights[0], biases[0]
        self.weights = [weight.expand(self.size, -1, -1).clone() for weight in weights[1:]]
        self.biases = [bias.expand(self.size, 1, -1).clone() for bias in biases[1:]]
        self.outputs = torch.cat([torch.addmm(biases[0], member.x, weights[0].t()) for member in members])
        self.products = torch.cat([torch.mm(member.x, member.x.t()) for member in members]).add_(1)
        self.targets = torch.cat([member.y for member in members])
        self.rates = torch.tensor([member.rate for member in members]).view(-1, 1, 1)
        self.added = torch.zeros(self.size, len(members[0].y), len(biases[0]))  # delta, by sample
        self.losses: list[Tensor] = []

    @torch.no_grad()
    def train(self, should_stop: Callable[[], bool]) -> None:
        """All steps of a visit."""
        starts = torch.arange(self.size)[:, None] * self.added.shape[1]
        positions = torch.stack([torch.cat(member.steps) for member in self.members]).add_(starts)
        for batch in positions.split([len(step) for step in self.members[0].steps], dim=1):
            if should_stop():
                raise Interrupted
            self._step(batch.flatten())

    def _step(self, batch: Tensor) -> None:
        def chosen(samples: Tensor) -> Tensor:
            return samples.index_select(0, batch).view(self.size, len(batch) // self.size, -1)

        inputs = [torch.baddbmm(chosen(self.outputs), chosen(self.products), self.added, alpha=-1)]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            inputs.append(torch.baddbmm(bias, inputs[-1].clamp_min_(0), weight.transpose(1, 2)))
        log_p, target = inputs.pop().log_softmax(2), chosen(self.targets)
        log_right = log_p.gather(2, target)
        self.losses.append(log_right.mean((1, 2)).neg_())
        delta = log_p.exp_().scatter_(2, target, log_right.expm1()).mul_(self.rates / target.shape[1])
        for weight, bias, a in zip(self.weights[::-1], self.biases[::-1], inputs[::-1], strict=True):
            below = relu_backward(torch.bmm(delta, weight), a, 0)
            weight.baddbmm_(delta.transpose(1, 2), a, alpha=-1)
            bias.sub_(delta.sum(1, keepdim=True))
            delta = below
        self.added.flatten(0, 1).index_add_(0, batch, delta.flatten(0, 1))

    @torch.no_grad()
    def trained(self, place: int) -> tuple[list[Tensor], float]:
        """A member's weight and bias of every layer in turn, and its mean loss."""
        (weight, bias), added = self.first, self.added[place]
        layers = [torch.addmm(weight, added.t(), self.members[place].x, alpha=-1), bias - added.sum(0)]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            layers += [weight[place].clone(), bias[place, 0].clone()]
        return layers, float(torch.stack([loss[place] for loss in self.losses]).double().mean())


class Cohort:
    """Visits of a round, worked ahead in stacks where clients can be stacked.

    Args:
        module: The live one.
        server: Weight and bias of each layer in turn, by name: what all begin with.
        clients: Of this process, in the order in which they will be asked for.
        plan_for: How a client trains.
        client_of: The client of an id, in this round.
    """

    def __init__(
        self,
        module: FederatedModule,
        server: State,
        clients: list[int],
        plan_for: Callable[[int], Plan],
        client_of: Callable[[int], Client],
    ) -> None:
        self.module, self.server = module, server
        layers = list(server.values())
        (self.width, self.features), self.classes = layers[0].shape, len(layers[-1])
        self.clients, self.plan_for, self.client_of = clients, plan_for, client_of
        self.ahead: dict[int, tuple[Stack, int] | None] = {}

    @classmethod
    def of(
        cls,
        fabric: Fabric,
        module: FederatedModule,
        clients: list[int],
        plan_for: Callable[[int], Plan],
        client_of: Callable[[int], Client],
        server: State,
    ) -> "Cohort | None":
        """For a method that averages one perceptron and adds nothing of its own to a visit; None for any other."""
        if not (module.fast and clients and autocast(fabric) is nullcontext):
            return None
        if any(getattr(type(module), name) is not getattr(FederatedModule, name) for name in UNCHANGED):
            return None
        if any(type(part).train is not nn.Module.train for part in module.modules()):
            return None
        plan, layers = plan_for(clients[0]), linear_layers(module.global_model())
        stage = plan.stage
        is_plain_stage = stage.exchange and not stage.module and not stage.monitor and stage.public == "no"
        if layers is None or not is_plain_stage or plan.gradient_clip_val is not None:
            return None
        names = {id(tensor): name for name, tensor in module.state_dict(keep_vars=True).items()}
        trained = [names.pop(id(tensor)) for layer in layers for tensor in (layer.weight, layer.bias)]
        is_all = not names and server.keys() == set(trained)
        return cls(module, {n: server[n] for n in trained}, clients, plan_for, client_of) if is_all else None

    def outcome(self, k: int) -> Outcome | None:
        """What a client's visit brings; None if it must be visited by itself."""
        if k not in self.ahead:
            self._work_ahead(self.clients.index(k))
        place = self.ahead.pop(k)
        if place is None:
            return None
        stack, i = place
        client = self.module.client = stack.members[i].client
        layers, loss = stack.trained(i)
        upload = Upload(k, dict(zip(self.server, layers, strict=True)), float(self.module.client_weight(client)))
        return Outcome(upload, Memory(), {"train_loss": loss})

    def _work_ahead(self, start: int) -> None:
        layers = list(self.server.values())
        self.ahead, members, room = {}, [], ROOM
        for k in self.clients[start : start + AT_ONCE]:
            if room <= 0:
                break
            self.ahead[k] = None
            if member := self._member(k):
                members.append(member)
                room -= member.num_bytes(self.width) + sum(layer.nbytes for layer in layers[2:])
        shape = lambda member: member.shape  # noqa: E731
        for _, group in groupby(sorted(members, key=shape), shape):
            stack = Stack(layers[::2], layers[1::2], list(group))
            stack.train(self.plan_for(stack.members[0].client.id).should_stop)
            self.ahead |= {member.client.id: (stack, i) for i, member in enumerate(stack.members)}

    def _member(self, k: int) -> Member | None:
        """The client, if its steps are plain; one that fails already here is left to its own visit, which will tell."""
        try:
            plan = self.plan_for(k)
            client = self.module.client = replace(self.client_of(k), split=plan.stage.split)
            self.module.stage = plan.stage
            if not self._is_worth_it(client, plan):  # asked before its samples are made ready
                return None
            optimizers = as_list(self.module.configure_optimizers())
            if len(optimizers) != 1 or not is_plain(optimizers[0]) or not ClosedForm.of(self.module, optimizers[0]):
                return None
            rate = optimizers[0].param_groups[0]["lr"] * plan.lr_factor
            order = generator(plan.seed, "batches", plan.stage.name, client.round, k)
            batches = client.train_batches(order)
            if type(batches) is not Batches or batches.transform is not None:
                return None
            member = Member(client, batches.x.flatten(1), batches.y, _steps(batches, plan), rate)
        except Exception:
            return None
        return member if self._fits(member) else None

    def _is_worth_it(self, client: Client, plan: Plan) -> bool:
        samples = client.num_shared if client.split == "shared" else client.num_samples
        size = min(samples, client.data.batch_size_of(client.id))
        seen = samples * plan.epochs if plan.steps is None else size * plan.steps
        return is_worth_it(samples, self.features, self.width, seen, size)

    def _fits(self, member: Member) -> bool:
        x, y = member.x, member.y
        if not member.steps or x.shape[1] != self.features:
            return False
        if x.dtype != torch.float32 or y.dtype != torch.int64 or y.dim() != 1 or not (x.is_cpu and y.is_cpu):
            return False
        return int(y.min()) >= 0 and int(y.max()) < self.classes


def is_worth_it(samples: int, features: int, width: int, seen: int, batch_size: int) -> bool:
    """Whether the first layer costs less as products of samples than as itself, twice in every step.

    Args:
        samples: Of a client.
        features: Of a sample.
        width: Of the layer.
        seen: Samples in all steps of a visit.
        batch_size: Of a visit's steps.
    """
    products = samples * features * (2 * width + samples) + seen * samples * width
    return products <= (FASTER if batch_size <= SMALL else 1) * 2 * seen * features * width + VISIT


def _steps(batches: Batches, plan: Plan) -> list[Tensor]:
    """Positions of the samples of each batch of a visit."""
    steps: list[Tensor] = []
    for _ in range(plan.epochs if plan.steps is None else plan.steps):
        steps += batches.order().split(batches.batch_size)[: len(batches)]
        if plan.steps is not None and len(steps) >= plan.steps:
            break
    return steps[: plan.steps]
