"""A run in progress: the states of server and clients, one round of training, one evaluation, one checkpoint."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import torch
from lightning.fabric import Fabric
from torchmetrics import Metric

from fedlit.aggregation import State, Upload, defect, num_bytes
from fedlit.data import Batches, FederatedData
from fedlit.evaluation import Scores, evaluate, outputs, scores_by_group
from fedlit.methods.base import FederatedModule, Stage
from fedlit.recorder import POOLED, LedgerRow, Row
from fedlit.rng import generator
from fedlit.strategy import broadcast, in_order
from fedlit.visit import Interrupted, Memory, Outcome, Plan, enter, load, shared_names, visit

FORMAT = 1
DEV_SAMPLES = 64  # a development run evaluates on so many


@dataclass
class Failure:
    """Why a client brought nothing this round."""

    reason: str
    details: str = ""


@dataclass
class Round:
    """What a round left to record."""

    rows: list[Row] = field(default_factory=list)
    ledger: list[LedgerRow] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)


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
    ) -> None:
        self.fabric, self.module, self.data, self.seed = fabric, module, data, seed
        self.metrics, self.fast_dev_run = metrics or {}, fast_dev_run
        self.initial: State = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        self.shared = shared_names(module, batch_norm)
        self.global_state: State = {name: self.initial[name].clone() for name in self.shared}
        self.memories: dict[int, Memory] = {}
        self.round = 0
        self.best: dict[str, dict[str, float]] = {}

    def synchronise(self) -> None:
        """Every process starts from the first one's states."""
        self.initial = broadcast(self.fabric, self.initial)
        self.global_state = {name: self.initial[name].clone() for name in self.shared}
        load(self.module.state_dict(keep_vars=True), self.initial)

    # --- training

    def eligible(self, stage: Stage, round: int) -> list[int]:
        """The clients that may take part: those with samples to train on, and none of the unseen ones."""
        assignment = self.data.at_round(round)
        parts = assignment.shared if stage.split == "shared" else assignment.train
        count = np.count_nonzero if stage.split == "shared" else len
        return [k for k in range(self.data.num_clients - self.data.unseen_clients) if count(parts[k])]

    def sample(self, stage: Stage, round: int, fraction: float, min_clients: int) -> list[int]:
        """The clients of a round, in order of their ids: a fraction of those that may, or all if nothing is exchanged."""
        candidates = self.eligible(stage, round)
        if not candidates:
            raise ValueError(f"No client may train in stage {stage.name!r}: all have opted out (see `data.opt_out`).")
        if not stage.exchange:
            return candidates
        size = min(max(min_clients, int(fraction * len(candidates) + 0.5), 1), len(candidates))
        drawn = torch.randperm(len(candidates), generator=generator(self.seed, "sample", stage.name, round))[:size]
        return sorted(candidates[i] for i in drawn.tolist())

    def train_round(self, clients: list[int], round: int, plan_for: Callable[[int], Plan], score: bool) -> Round:
        """Visit the clients and let the server agree on a new state; a client that fails is left out and named."""
        stage = plan_for(clients[0]).stage
        record = Round()
        uploads = self._uploads(clients, round, plan_for, score, record)
        if stage.exchange:
            first = next(uploads, None)
            if first is None:
                raise _all_failed(record.failures)
            current = dict(self.global_state)
            agreed = self.module.aggregate(_chain(first, uploads), current)
            for _ in uploads:  # a rule that stops early must not leave clients unvisited
                pass
            if problem := defect(Upload(-1, agreed), current):
                raise RuntimeError(f"`aggregate` of {type(self.module).__name__} returned a state that cannot be: {problem}.")
            self.global_state = agreed
        elif len([*uploads, *record.failures]) and len(record.failures) == len(clients):
            raise _all_failed(record.failures)
        return record

    def _uploads(
        self, clients: list[int], round: int, plan_for: Callable[[int], Plan], score: bool, record: Round
    ) -> Iterator[Upload]:
        """Visit clients in order; record what they bring, keep what stays with them, pass on what is sound."""
        stage = plan_for(clients[0]).stage
        work = lambda k: self._visit(k, round, plan_for(k), score)  # noqa: E731
        for k, (outcome, trained) in in_order(self.fabric, clients, work, _pack, _unpack):
            if stage.exchange:
                record.ledger.append(LedgerRow(round, k, "down", "model", num_bytes(self.global_state)))
            if isinstance(outcome, Outcome) and outcome.upload is not None:
                record.ledger.append(LedgerRow(round, k, "up", "model", num_bytes(outcome.upload.state)))
                problem = defect(outcome.upload, self.global_state)
            elif isinstance(outcome, Outcome):
                state = outcome.memory.state
                problem = defect(Upload(k, state), state)  # nothing to compare with, but it must be finite
            if isinstance(outcome, Failure) or problem:
                record.failures[k] = outcome if isinstance(outcome, Failure) else Failure(f"unusable state: {problem}")
                continue
            if outcome.memory.state or outcome.memory.optimizer:
                self.memories[k] = outcome.memory
            record.rows += [Row(round, stage.name, k, "trained", "train", n, v) for n, v in outcome.logs.items()]
            record.rows += [Row(round, stage.name, k, "trained", "own", n, v) for n, v in trained.items()]
            yield outcome.upload

    def _visit(self, k: int, round: int, plan: Plan, score: bool) -> tuple[Outcome | Failure, Scores]:
        client, memory = self.data.client(k, round), self.memories.get(k, Memory())
        try:
            self._enter(k, "server" if plan.stage.exchange else "personal", round)
            outcome = visit(self.fabric, self.module, client, plan, self.shared, memory)
            batches = client.val_batches()
            scored = score and plan.stage.exchange
            trained = evaluate(self.fabric, self.module.global_model(), batches, self.metrics) if scored else {}
            return outcome, trained
        except Interrupted:
            raise
        except Exception as error:  # whatever a client does, the round goes on without it
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return Failure(reason, traceback.format_exc()), {}

    def _enter(self, k: int, prefer: Literal["server", "personal"], round: int = 0) -> None:
        personal = self.memories[k].state if k in self.memories else {}
        client = self.data.client(k, round)
        enter(self.module, client, self.initial, self.global_state, personal, self.seed, prefer)

    # --- evaluation

    @property
    def has_complete_global_model(self) -> bool:
        """Whether the server alone holds every value that the global model needs."""
        held = {id(t) for n, t in self.module.state_dict(keep_vars=True).items() if n in self.global_state}
        needed = self.module.global_model().state_dict(keep_vars=True).values()
        return bool(held) and all(id(tensor) in held for tensor in needed)

    def evaluate(self, stage: Stage, round: int) -> list[Row]:
        """Global model on the test set and on every client's own samples, and every client's own model on its own."""
        own = [k for k in range(self.data.num_clients) if len(self.data.at_round(round).val[k])]
        own = own[:2] if self.fast_dev_run else own
        seen = [k for k in own if k < self.data.num_clients - self.data.unseen_clients]
        jobs: list[Callable[[], list[tuple]]] = []
        if self.has_complete_global_model:
            jobs.append(lambda: self._global_on_pooled())
            groups = [g.tolist() for g in np.array_split(own, self.fabric.world_size) if len(g)]
            jobs += [lambda g=group: self._global_on_own(g, round) for group in groups]
        elif self.global_state:
            jobs += [lambda k=k: self._client_on_own(k, "global", round) for k in own]
        personal = not stage.exchange or len(self.shared) < len(self.initial)
        if personal:
            jobs += [lambda k=k: self._client_on_own(k, "personal", round) for k in seen]
        done = in_order(self.fabric, range(len(jobs)), lambda i: jobs[i](), list, list)
        return [Row(round, stage.name, *row) for _, rows in done for row in rows]

    def test(self, stage: Stage) -> list[Row]:
        """Global model, and every client's own, on the pooled test set."""
        rows = self._global_on_pooled() if self.has_complete_global_model else []
        for k in self.memories:
            self._enter(k, "personal")
            scores = evaluate(self.fabric, self.module, self._short(self.data.test_batches()), self.metrics)
            rows += [(k, "personal", "pooled", name, value) for name, value in scores.items()]
        return [Row(self.round, stage.name, *row) for row in rows]

    def predict(self, client: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Class probabilities ``[N, C]`` and labels of the test set, by the global model or a client's own."""
        if client is None:
            self._load_global()
        else:
            self._enter(client, "personal")
        network = self.module.global_model() if client is None else self.module
        logits, target = outputs(self.fabric, network, self.data.test_batches())
        return logits.softmax(dim=1), target

    def _load_global(self) -> None:
        load(self.module.state_dict(keep_vars=True), self.global_state)

    def _global_on_pooled(self) -> list[tuple]:
        self._load_global()
        batches = self._short(self.data.test_batches())
        scores = evaluate(self.fabric, self.module.global_model(), batches, self.metrics)
        return [(POOLED, "global", "pooled", name, value) for name, value in scores.items()]

    def _global_on_own(self, clients: list[int], round: int) -> list[tuple]:
        self._load_global()
        batches, sizes = self.data.val_batches(clients, round)
        logits, target = outputs(self.fabric, self.module.global_model(), batches)
        rows = zip(clients, scores_by_group(logits, target, sizes, self.metrics), strict=True)
        return [(k, "global", self._whose(k), name, value) for k, scores in rows for name, value in scores.items()]

    def _client_on_own(self, k: int, model: Literal["global", "personal"], round: int) -> list[tuple]:
        self._enter(k, "server" if model == "global" else "personal", round)
        network = self.module.global_model() if model == "global" else self.module
        scores = evaluate(self.fabric, network, self.data.val_batches([k], round)[0], self.metrics)
        return [(k, model, self._whose(k), name, value) for name, value in scores.items()]

    def _whose(self, k: int) -> str:
        return "own" if k < self.data.num_clients - self.data.unseen_clients else "unseen"

    def _short(self, batches: Batches) -> Batches:
        if self.fast_dev_run:
            batches.x, batches.y = batches.x[:DEV_SAMPLES], batches.y[:DEV_SAMPLES]
        return batches

    # --- checkpoints

    def fingerprint(self, stages: list[Stage]) -> dict[str, Any]:
        """What must agree for a checkpoint to go on: method, seed, stages, clients, their data, shapes."""
        digest = sha256()
        for part in (*self.data.assignment.train, *self.data.assignment.val, *self.data.assignment.shared):
            digest.update(part.tobytes())
        return {
            "method": type(self.module).__name__,
            "stages": [stage.name for stage in stages],
            "seed": self.seed,
            "num_clients": self.data.num_clients,
            "shared state": {name: list(tensor.shape) for name, tensor in self.global_state.items()},
            "partition": digest.hexdigest(),
        }

    def content(self, stages: list[Stage]) -> dict[str, Any]:
        """The checkpoint: plain tensors, numbers and strings."""
        return {
            "format": FORMAT,
            "round": self.round,
            "global_state": _on_cpu(self.global_state),
            "personal_states": {k: _on_cpu(memory.state) for k, memory in self.memories.items()},
            "optimizer_states": {k: _on_cpu(memory.optimizer) for k, memory in self.memories.items()},
            "initial_state": _on_cpu({n: t for n, t in self.initial.items() if n not in self.global_state}),
            "best": self.best,
            "fingerprint": self.fingerprint(stages),
        }

    def restore(self, content: dict[str, Any], path: str, stages: list[Stage], training: bool) -> None:
        """Go on from a checkpoint of the same experiment."""
        theirs, ours = content.get("fingerprint", {}), self.fingerprint(stages)
        for key in ours if training else ("method", "num_clients", "shared state"):
            if theirs.get(key) != ours[key]:
                detail = "" if key in ("partition", "shared state") else f" ({theirs.get(key)} there, {ours[key]} here)"
                raise ValueError(f"`--ckpt_path` {path} is of another experiment: its {key} differs{detail}.")
        device = self.fabric.device
        self.round, self.best = content["round"], content["best"]
        self.global_state = {name: tensor.to(device) for name, tensor in content["global_state"].items()}
        self.initial |= {name: tensor.to(device) for name, tensor in content["initial_state"].items()}
        for k, state in content["personal_states"].items():
            on_device = {name: tensor.to(device) for name, tensor in state.items()}
            self.memories[k] = Memory(on_device, content["optimizer_states"][k])


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return {key: _on_cpu(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def _chain(first: Upload, rest: Iterator[Upload]) -> Iterator[Upload]:
    yield first
    yield from rest


def _all_failed(failures: dict[int, Failure]) -> RuntimeError:
    k, failure = next(iter(failures.items()))
    return RuntimeError(f"Every client of the round failed; client {k}: {failure.reason}\n{failure.details}")


def _pack(result: tuple[Outcome | Failure, Scores]) -> dict[str, Any]:
    outcome, trained = result
    return {"failed": isinstance(outcome, Failure), "trained": trained, **asdict(outcome)}


def _unpack(packed: dict[str, Any]) -> tuple[Outcome | Failure, Scores]:
    trained = packed.pop("trained")
    if packed.pop("failed"):
        return Failure(**packed), trained
    upload = Upload(**packed["upload"]) if packed["upload"] else None
    return Outcome(upload, Memory(**packed["memory"]), packed["logs"]), trained
