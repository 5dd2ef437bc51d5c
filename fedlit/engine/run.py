"""A run in progress: the states of server and clients, one round of training, one evaluation, one checkpoint."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import isfinite
from typing import Any, Literal

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics import Metric

from fedlit.aggregation import State, Upload, defect, num_bytes
from fedlit.data import FederatedData
from fedlit.data.assignment import Assignment
from fedlit.engine.client_store import Memories, Store
from fedlit.engine.failure import Failure, all_failed, failure
from fedlit.engine.processes import broadcast, in_order
from fedlit.engine.scores import Scores, evaluate
from fedlit.engine.usage import UsageError
from fedlit.engine.visit import Interrupted, Memory, Outcome, Plan, enter, shared_names, visit
from fedlit.fast.stacked_visits import Cohort, perceptron_names
from fedlit.methods.base import FederatedModule, copy_into, twin
from fedlit.methods.stage import Stage
from fedlit.records.recorder import LedgerRow, Row, summary
from fedlit.rng import derive, generator, isolated

# What best.ckpt is the best of, unless the user says: the model that clients use themselves, on their own samples.
MONITORS = ("acc/personal_on_own", "acc/global_on_own", "acc/global_on_pooled")


@dataclass
class Round:
    """What a round left to record, and what its clients keep."""

    rows: list[Row] = field(default_factory=list)
    ledger: list[LedgerRow] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    collected: dict[int, State] = field(default_factory=dict)
    clients: list[int] = field(default_factory=list)
    memories: Memories | None = None


class Run:
    """The states of a federation and the two things that are done with them: train a round, evaluate.

    Args:
        fabric: Launched; knows device, precision and processes.
        module: The one live module of this process.
        data: Set up.
        seed: Of every random stream.
        batch_norm: Whether BatchNorm layers are averaged or stay local.
        metrics: More torchmetrics metrics than accuracy, by name.
        fast_dev_run: Evaluate on a few samples of a few clients only.
        personal_memory: Gigabytes of what stays with clients to hold in memory; the rest goes to disk.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: FederatedModule,
        data: FederatedData,
        seed: int,
        batch_norm: Literal["average", "local"] = "average",
        metrics: dict[str, Metric] | None = None,
        fast_dev_run: bool = False,
        personal_memory: float = 2.0,
    ) -> None:
        self.fabric, self.module, self.data, self.seed = fabric, module, data, seed
        self.metrics, self.fast_dev_run = metrics or {}, fast_dev_run
        # To mend the live module after a client has broken it; stages may hold its parts, so these must stay the same.
        self.pristine, self._parts = twin(module), dict(module.named_modules())
        self.initial: State = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        rebuilt = is_overridden("configure_client", module, FederatedModule)
        self._trained = {} if rebuilt else {name: p.requires_grad for name, p in module.named_parameters()}
        self.shared = shared_names(module, batch_norm)
        self.server = [*self.shared, *(name for name in self.initial if name.startswith(module.server_only))]
        self.global_state: State = {name: self.initial[name].clone() for name in self.server}
        self.collected: dict[int, State] = module.earlier_uploads()
        self.memories = Memories(Store(personal_memory * 1e9, fabric.device))
        self.server_memory = Memory()
        self._eligible: dict[str, tuple[Assignment, list[int]]] = {}
        self.round, self.stage = 0, None  # done so far, and the stage of the last round
        self.last: dict[str, dict[str, float]] = {}
        self.best: dict[str, dict[str, float]] = {}

    def synchronise(self) -> None:
        """Every process starts from the first one's states."""
        self.initial = broadcast(self.fabric, self.initial)
        self.global_state = {name: self.initial[name].clone() for name in self.server}
        copy_into(self.module.state_dict(keep_vars=True), self.initial)

    @property
    def shared_state(self) -> State:
        """What travels of what the server holds."""
        return {name: self.global_state[name] for name in self.shared}

    def eligible(self, stage: Stage, round: int) -> list[int]:
        """The clients that may take part: those with samples to train on, and none of the unseen ones."""
        if self._eligible.get(stage.samples, (None, []))[0] is not (assignment := self.data.at_round(round)):
            parts = assignment.opted_in if stage.samples == "opted_in" else assignment.train
            count = np.count_nonzero if stage.samples == "opted_in" else len
            seen = range(self.data.num_clients - self.data.unseen_clients)
            self._eligible[stage.samples] = (assignment, [k for k in seen if count(parts[k])])
        return self._eligible[stage.samples][1]

    def sample(self, stage: Stage, round: int, fraction: float, min_clients: int) -> list[int]:
        """The clients of a round, in order of their ids: a fraction of those that may; all if nothing is exchanged.

        Nobody uploads twice what the server collects, so who has done that has no more to do.
        """
        if stage.side == "server":
            return []
        may = self.eligible(stage, round)
        if not may:
            raise ValueError(f"No client may train in stage {stage.name!r}: all have opted out (see `data.opt_out`).")
        candidates = [k for k in may if k not in self.collected and self.has_trained(k, stage.needs)]
        if stage.upload != "aggregate":
            return candidates
        size = min(max(min_clients, int(fraction * len(candidates) + 0.5), 1), len(candidates))
        drawn = torch.randperm(len(candidates), generator=generator(self.seed, "sample", stage.name, round))[:size]
        return sorted(candidates[i] for i in drawn.tolist())

    def personal(self, k: int) -> State:
        """What a client has of its own: what it uploaded for the server to keep, and what it keeps."""
        return {**self.collected.get(k, {}), **(self.memories[k].state if k in self.memories else {})}

    def has_trained(self, k: int, prefix: str) -> bool:
        """Whether a client has state of its own with this prefix."""
        return any(n.startswith(prefix) for n in (*self.collected.get(k, ()), *self.memories.names(k))) or not prefix

    def train_round(
        self,
        clients: list[int],
        round: int,
        plan_for: Callable[[int], Plan],
        score: bool,
        tell: Callable[[int, int], None],
    ) -> Round:
        """Visit the clients and let the server agree on a new state; a client that fails is left out and named.

        Args:
            clients: In the order of their ids.
            round: Its number, from 1.
            plan_for: How a client trains; all belong to one stage.
            score: Evaluate every client's copy right after its training.
            tell: Called with position and number of clients before each visit.
        """
        record = Round(memories=Memories(self.memories.store))
        if not clients:
            return record
        stage = plan_for(clients[0]).stage
        uploads = self._uploads(clients, round, plan_for, score, record, tell)
        agreed = self.global_state
        if stage.upload == "aggregate" and (first := next(uploads, None)) is not None:
            current = {name: tensor.clone() for name, tensor in self.global_state.items()}
            with isolated(derive(self.seed, "aggregate", stage.name, round)):
                agreed = {**self.global_state, **self.module.aggregate(chain([first], uploads), current)}
        for upload in uploads:  # without an exchange nobody asked for them; a rule may also stop early
            if stage.upload == "collect":
                record.collected[upload.client] = upload.state
        if len(record.failures) == len(clients) and (len(clients) > 1 or self.round == 0):
            raise all_failed(record.failures)
        if stage.upload == "aggregate" and (problem := defect(Upload(-1, agreed), self.global_state)):
            raise RuntimeError(f"`aggregate` of {type(self.module).__name__} gave an impossible state: {problem}.")
        self.global_state = agreed
        self.memories.adopt(record.memories)  # only now: a round that is cut short has touched nothing
        self.collected |= record.collected
        return record

    def end_round(self, round: int, stage: Stage, rows: list[Row], monitor: str | None) -> bool:
        """Count the round and note the best mean of every metric; whether the monitored one improved."""
        self.round, self.stage = round, stage
        for key, parts in summary(rows).items():
            self.last[key] = parts
            metric = key.rpartition("/")[0]
            rises = "loss" not in metric and getattr(self.metrics.get(metric), "higher_is_better", True) is not False
            sign = 1 if rises else -1
            if isfinite(parts["mean"]) and (
                key not in self.best or sign * (parts["mean"] - self.best[key]["value"]) > 0
            ):
                self.best[key] = {"value": parts["mean"], "round": round}
        watched = monitor or self.module.monitor or next((key for key in MONITORS if key in self.best), None)
        return watched in self.best and self.best[watched]["round"] == round

    def _uploads(
        self,
        clients: list[int],
        round: int,
        plan_for: Callable[[int], Plan],
        score: bool,
        record: Round,
        tell: Callable[[int, int], None],
    ) -> Iterator[Upload | None]:
        """Visit clients in order; record what they bring, keep what stays with them, pass on what is sound."""
        stage = plan_for(clients[0]).stage
        client_of, enter = partial(self.data.client, round=round), partial(self.enter, prefer="server", round=round)
        given = (self.fabric, self.module, clients, plan_for, client_of, enter, server := self.shared_state)
        names = perceptron_names(self.fabric, self.module, plan_for(clients[0]), server)
        cohort = Cohort(*given, names) if names else None

        def work(k: int) -> tuple[Outcome | Failure, Scores]:
            tell(clients.index(k) + 1, len(clients))
            return self._visit(k, round, plan_for(k), score, cohort)

        for k, (outcome, trained) in in_order(self.fabric, clients, work, _pack, _unpack):
            record.clients.append(k)
            if self.shared and (
                stage.upload == "aggregate" or self.stage is None or self.stage.upload == "aggregate"
            ):  # later it has the last
                record.ledger.append(LedgerRow(round, k, "down", "model", num_bytes(self.shared_state)))
            if stage.public != "no":
                record.ledger.append(LedgerRow(round, k, "down", "public pool", self.data.public_pool.num_bytes))
            if isinstance(outcome, Failure):
                record.failures[k] = outcome
                continue
            if outcome.upload is not None:
                record.ledger.append(LedgerRow(round, k, "up", "model", num_bytes(outcome.upload.state)))
            if problem := self._problem(outcome, stage):
                record.failures[k] = Failure(f"unusable state: {problem}")
                continue
            if outcome.memory.state or outcome.memory.optimizer or k in self.memories:  # it may have given all away
                record.memories[k] = outcome.memory
            record.rows += [Row(round, stage.name, k, "trained", "train", n, v) for n, v in outcome.logs.items()]
            record.rows += [Row(round, stage.name, k, "trained", "own", n, v) for n, v in trained.items()]
            yield outcome.upload
        self.load_global()  # what `aggregate` may read of the module is the server's, on every process

    def _problem(self, outcome: Outcome, stage: Stage) -> str | None:
        """What is wrong with an upload, or with what a client would keep; what is collected differs in its shapes."""
        sent, kept = outcome.upload, Upload(-1, outcome.memory.state)
        expected = self.shared_state if stage.upload == "aggregate" or sent is None else sent.state
        return (sent and defect(sent, expected)) or defect(kept, kept.state)

    def _visit(
        self, k: int, round: int, plan: Plan, score: bool, cohort: Cohort | None
    ) -> tuple[Outcome | Failure, Scores]:
        client, memory = self.data.client(k, round), self.memories.get(k) or Memory()
        try:
            if (outcome := cohort and cohort.outcome(k, memory)) is None:
                self.enter(k, "server" if plan.stage.upload == "aggregate" else "personal", round)
                outcome = visit(self.fabric, self.module, client, plan, self.shared, memory)
            elif score:
                copy_into(self.module.state_dict(keep_vars=True), outcome.upload.state)
            if not (score and plan.stage.upload == "aggregate"):
                return outcome, {}
            network = (plan.stage.module or self.module).global_model()
            with isolated(derive(self.seed, "trained", plan.stage.name, round, k)):
                return outcome, evaluate(self.fabric, network, client.val_batches(), self.metrics)
        except (Interrupted, UsageError):  # a method's mistake would be every client's
            raise
        except Exception as error:  # whatever a client does, the round goes on without it
            self.mend()
            return failure(error), {}

    def mend(self) -> None:
        """Give the live module its first structure back, part by part; values are loaded with the next state."""
        for path, fresh in twin(self.pristine).named_modules():
            part = self._parts[path]
            part._parameters, part._buffers = fresh._parameters, fresh._buffers
            part._modules = {name: self._parts[f"{path}.{name}".lstrip(".")] for name in fresh._modules}
        self.module.to(self.module.device)

    def load_global(self) -> None:
        """Put the server's state into the live module."""
        copy_into(self.module.state_dict(keep_vars=True), self.global_state)

    def enter(self, k: int, prefer: Literal["server", "personal"], round: int = 0) -> None:
        """Put a client's state into the live module."""
        client, own = self.data.client(k, round), self.personal(k)
        live = enter(self.module, client, self.initial, self.global_state, own, self.seed, prefer)
        for name, is_trained in self._trained.items():  # a visit may have frozen some
            live[name].requires_grad_(is_trained)


def _pack(result: tuple[Outcome | Failure, Scores]) -> dict[str, Any]:
    outcome, trained = result
    if isinstance(outcome, Failure):
        return {"failed": True, "trained": trained, **vars(outcome)}
    upload = None if outcome.upload is None else vars(outcome.upload)
    return {"failed": False, "trained": trained, "upload": upload, "memory": vars(outcome.memory), "logs": outcome.logs}


def _unpack(packed: dict[str, Any]) -> tuple[Outcome | Failure, Scores]:
    trained = packed.pop("trained")
    if packed.pop("failed"):
        return Failure(**packed), trained
    upload = Upload(**packed["upload"]) if packed["upload"] else None
    return Outcome(upload, Memory(**packed["memory"]), packed["logs"]), trained
