"""Visits in closed form: of a perceptron that plain SGD trains on labels, in exact mode, where nothing else happens.

A visit of few samples costs more around its steps than in them: a state is loaded and taken, hooks are called that
nobody has overridden, attributes put back that nobody has touched. Here the steps are taken on a copy of the server's
weights, and the copy is the upload.

Law: `visit`, to the bit; whatever is not plain, or fails, is left to one. Nothing guards a client here, so that no code
of a user's may run: also data, metrics and encoders must be ours (`is_all_ours`).
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from fedlit.aggregation import State, Upload
from fedlit.data.client import Client
from fedlit.data.loaded import AnyBatches
from fedlit.engine.plan import Interrupted, Memory, Outcome, Plan
from fedlit.fast.begun_visit import Beginnings, names_of
from fedlit.fast.perceptron import ClosedForm, Layers
from fedlit.fast.permission import are_plain_batches
from fedlit.fast.recognition import Perceptron


class Logs(Protocol):
    """Means of what a visit logs."""

    def __call__(self, name: str, value: Tensor) -> None: ...

    def result(self) -> dict[str, float]: ...


class PlainVisits:
    """Visits of a round, each in closed form.

    Args:
        beginnings: Of the visits.
        plan_for: How a client trains.
        client_of: The client of an id, in this round.
        server: What all begin with.
        names: Of the weight and the bias of each layer.
        new_logs: For each visit.
    """

    def __init__(
        self,
        beginnings: Beginnings,
        plan_for: Callable[[int], Plan],
        client_of: Callable[[int], Client],
        server: State,
        names: list[str],
        new_logs: Callable[[], Logs],
    ) -> None:
        self.beginnings = beginnings
        self.module = beginnings.module
        self.plan_for = plan_for
        self.client_of = client_of
        self.server = server
        self.names = names
        self.new_logs = new_logs
        self._known: Perceptron | None = None

    def outcome(self, k: int, memory: Memory) -> Outcome | None:
        """What a client's visit brings, who keeps the state that it has; None if it must be an ordinary one."""
        if memory.optimizer:  # what an optimiser of another kind left behind is the visit's to pass on
            return None
        client = self.client_of(k)
        plan = self.plan_for(k)
        found = self.beginnings.perceptron(plan)
        if found is None or not client.sees_the_same_inputs or not self._is_known(found):
            return None
        # From here on no code of a user's runs: `is_all_ours` was asked before.
        begun = self.beginnings.visit(client, plan, found)
        if begun is None or not are_plain_batches(found, begun.batches):
            return None
        state = self._copied(found)
        layers = [state[name] for name in self.names]
        copied = Perceptron(layers[::2], layers[1::2], found.flattens)
        logs = self.new_logs()
        self._train(ClosedForm(copied, begun.optimizer, fused=False), begun.batches, plan, logs)
        weight = float(self.module.client_weight(begun.client))
        self.module.client = client
        return Outcome(Upload(k, state, weight), Memory(memory.state), logs.result())

    def network(self, outcome: Outcome) -> nn.Module:
        """What a visit has trained, to be looked at."""
        assert outcome.upload is not None  # a plain stage averages
        return Layers([outcome.upload.state[name] for name in self.names])

    def _is_known(self, found: Perceptron) -> bool:
        """Whether it is still the one that the server has, whoever was asked for something since."""
        if found is self._known:
            return True
        if names_of(self.module, found) != self.names:
            return False
        if not all(live.shape == self.server[name].shape for name, live in self._live(found).items()):
            return False
        self._known = found
        return True

    def _live(self, found: Perceptron) -> State:
        return dict(zip(self.names, found.parameters, strict=True))

    def _copied(self, found: Perceptron) -> State:
        """What the server has, in the layout of the live parameters: another one would round otherwise."""
        live = self._live(found)
        for parameter in live.values():  # as when a client's state is loaded
            parameter.grad = None
        return {name: torch.empty_like(live[name]).copy_(tensor.detach()) for name, tensor in self.server.items()}

    def _train(self, step: ClosedForm, batches: AnyBatches, plan: Plan, logs: Logs) -> None:
        """As `LocalEpochs` does."""
        num_steps = 0
        for _ in range(plan.epochs if plan.steps is None else plan.steps):
            for x, y in batches:
                if plan.should_stop():
                    raise Interrupted
                logs("train_loss", step(x, y))
                num_steps += 1
                if num_steps == plan.steps:
                    return
