"""Which model on whose data: the evaluations of a run."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedlit.data.batches import Batches
from fedlit.engine.processes import in_order
from fedlit.engine.scores import evaluate, outputs, scores_by_group
from fedlit.engine.state import FederationState
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure, failure
from fedlit.records.rows import POOLED, Row
from fedlit.rng import derive, isolated

DEV_SAMPLES = 64  # a development run evaluates on so many


class Scorer:
    """Evaluates the models that a run holds, on several processes if there are.

    Args:
        state: Of the federation: its states, data and live module.
        stage: Whose module is evaluated; by default the one that the federation has come to.
    """

    def __init__(self, state: FederationState, stage: Stage | None = None) -> None:
        self.state = state
        self.stage = stage = stage or state.stage or state.module.configure_stages()[0]
        self.learner = stage.module or state.module
        self.changes_global = stage.upload == "aggregate" or stage.side == "server" or stage.module is None
        self.network = (self.learner if self.changes_global else state.module).global_model()
        self.personal = state.module if stage.side == "server" or stage.reported_as is None else self.learner
        self.failures: dict[int, Failure] = {}

    @property
    def has_complete_global_model(self) -> bool:
        """Whether the server alone holds every value that the global model needs."""
        held = self._held(self.network)
        return bool(held) and all(held)

    def has_model(self, k: int) -> bool:
        """Whether a client has trained what this stage trains; one that failed or opted out may not have."""
        if self.stage.upload == "aggregate" or self.stage.side == "server" or self.stage.module is None:
            return True
        names = [name for name, child in self.state.module.named_children() if child is self.stage.module]
        return self.state.has_trained(k, f"{names[0]}." if names else "")

    def _held(self, network: nn.Module) -> list[bool]:
        """Of each value of a network, whether the server holds it."""
        live = self.state.module.state_dict(keep_vars=True)
        ours = {id(tensor) for name, tensor in live.items() if name in self.state.global_state}
        return [id(tensor) in ours for tensor in network.state_dict(keep_vars=True).values()]

    def evaluate(self, round: int) -> list[Row]:
        """Global model on the test set and on every client's own samples, and every client's own model on its own."""
        if self.stage.reported_as is None:
            return []
        own = [k for k in range(self.state.data.num_clients) if len(self.state.data.at_round(round).val[k])]
        own = own[:2] if self.state.options.fast_dev_run else own
        num_seen = self.state.data.num_clients - self.state.data.unseen_clients
        seen = [k for k in own if k < num_seen and self.has_model(k)]
        jobs: list[tuple[str, int, Callable[[], list[tuple]]]] = []  # what, whose, how
        if not self.changes_global:
            pass  # it was evaluated in the stage that made it
        elif self.has_complete_global_model:
            jobs.append(("pooled", 0, self._global_on_pooled))
            groups = [g.tolist() for g in np.array_split(own, self.state.fabric.world_size) if len(g)]
            jobs += [("global", group[0], partial(self._global_on_own, group, round)) for group in groups]
        elif any(self._held(self.network)):
            jobs += [("global", k, partial(self._client_on_own, k, "global", round)) for k in own]
        personal = self.stage.upload != "aggregate" or not all(self._held(self.learner))
        if personal and self.stage.side == "clients":
            jobs += [("personal", k, partial(self._client_on_own, k, "personal", round)) for k in seen]
        if personal and self.stage.reported_on_pooled:
            jobs += [("personal pooled", k, partial(self._client_on_pooled, k)) for k in seen]

        def work(i: int) -> list[tuple]:
            what, whose, how = jobs[i]
            with isolated(derive(self.state.options.seed, "evaluate", self.stage.name, round, what, whose)):
                return how()

        done = in_order(self.state.fabric, range(len(jobs)), work, list, list)
        rows = [row for _, found in done for row in found]
        self.failures = {k: Failure(f"could not be evaluated: {what}") for k, *_, what in rows if isinstance(what, str)}
        return [Row(round, self.stage.name, *row) for row in rows if not isinstance(row[-1], str)]

    def test(self) -> list[Row]:
        """Global model, and every client's own, on the pooled test set."""
        rows = self._global_on_pooled() if self.has_complete_global_model else []
        own = sorted({*self.state.collected, *(k for k in self.state.memories if self.state.memories.names(k))})
        for k in (k for k in own if self.has_model(k)):
            rows += self._client_on_pooled(k)
        return [Row(self.state.round, self.stage.name, *row) for row in rows if not isinstance(row[-1], str)]

    def predict(self, client: int | None) -> tuple[Tensor, Tensor]:
        """Class probabilities ``[N, C]`` and labels of the test set, by the global model or a client's own."""
        number, method = self.state.data.num_clients, type(self.state.module).__name__
        if client is not None and not 0 <= client < number:
            raise ValueError(f"`--client` must be 0 to {number - 1}, got {client}.")
        if client is not None and not self.has_model(client):
            raise ValueError(f"`--client` {client} has trained no model of its own in stage {self.stage.name!r}.")
        if client is None and not self.has_complete_global_model:
            raise ValueError(f"{method} has no global model; name one of its clients with `--client`.")
        if client is None:
            self.state.load_global()
        else:
            self.state.enter(client, "personal")
        network = self.network if client is None else self.personal
        logits, target = outputs(self.state.fabric, network, self.state.data.test_batches(client))
        return logits.softmax(dim=1), target

    def _global_on_pooled(self) -> list[tuple]:
        self.state.load_global()
        batches = self._short(self.state.data.test_batches())
        scores = evaluate(self.state.fabric, self.network, batches, self.state.options.metrics)
        return [(POOLED, "global", "pooled", name, value) for name, value in scores.items()]

    def _global_on_own(self, clients: list[int], round: int) -> list[tuple]:
        self.state.load_global()
        batches, sizes = self.state.data.val_batches(clients, round)
        logits, target = outputs(self.state.fabric, self.network, batches)
        rows = zip(clients, scores_by_group(logits, target, sizes, self.state.options.metrics), strict=True)
        return [(k, "global", self._whose(k), name, value) for k, scores in rows for name, value in scores.items()]

    def _client_on_own(self, k: int, model: Literal["global", "personal"], round: int) -> list[tuple]:
        try:
            self.state.enter(k, "server" if model == "global" else "personal", round)
            network = self.network if model == "global" else self.personal
            batches = self._short(self.state.data.val_batches([k], round)[0])
            scores = evaluate(self.state.fabric, network, batches, self.state.options.metrics)
            if model == "personal":
                scores |= self._probe(k, round)
        except Exception as error:  # one client's model must not keep the others from being looked at
            self.state.live.mend()
            return [(k, model, self._whose(k), "", failure(error).reason)]
        called = self.stage.reported_as if model == "personal" else model
        return [(k, called, self._whose(k), name, value) for name, value in scores.items()]

    def _client_on_pooled(self, k: int) -> list[tuple]:
        called = self.stage.reported_as or "personal"
        try:
            self.state.enter(k, "personal")
            batches = self._short(self.state.data.test_batches(k))
            scores = evaluate(self.state.fabric, self.personal, batches, self.state.options.metrics)
        except Exception as error:  # as for its own samples
            self.state.live.mend()
            return [(k, called, "pooled", "", failure(error).reason)]
        return [(k, called, "pooled", name, value) for name, value in scores.items()]

    @torch.no_grad()
    def _probe(self, k: int, round: int) -> dict[str, float]:
        self.personal.eval()
        return self.personal.probe(self.state.data.client(k, round))

    def _whose(self, k: int) -> str:
        return "own" if k < self.state.data.num_clients - self.state.data.unseen_clients else "unseen"

    def _short(self, batches: Batches) -> Batches:
        if self.state.options.fast_dev_run:
            batches.x, batches.y = batches.x[:DEV_SAMPLES], batches.y[:DEV_SAMPLES]
        return batches
