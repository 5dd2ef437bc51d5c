"""Evaluation: which model on whose data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeGuard

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from fedlit.data.client import Client
from fedlit.data.loaders import AnyBatches
from fedlit.engine.child_process import in_child
from fedlit.engine.client_store import copy_to_all_ranks
from fedlit.engine.live_module import ModuleSnapshot, failed, modes_of, restore, restored_requires_grad
from fedlit.engine.local_training import structure_of
from fedlit.engine.logged_values import check_probe_names, logging_to, logging_to_means
from fedlit.engine.metrics import Scores, confusion, evaluate, outputs, predictions, scores_by_group, sees_samples_apart
from fedlit.engine.plan import UsageError
from fedlit.engine.precision import autocast
from fedlit.engine.processes import by_owner, in_order
from fedlit.engine.scheduling import has_trained_or_may
from fedlit.engine.state import FederationState
from fedlit.methods.base import FederatedModule, task_of
from fedlit.methods.stage import Stage
from fedlit.methods.states import copy_into
from fedlit.records.round_record import Failure, reported
from fedlit.records.rows import POOLED, Row
from fedlit.rng import derive, isolated


def personalises(learner: nn.Module) -> TypeGuard[FederatedModule]:
    """Whether a method adapts the model that is loaded for a client."""
    return isinstance(learner, FederatedModule) and is_overridden("personalise", learner, FederatedModule)


def personalise_client(state: FederationState, stage: Stage, learner: nn.Module, k: int, round: int) -> None:
    """Adapt the loaded model of client k, if the method does so, on all its samples: none of it is uploaded."""
    if not personalises(learner):
        return
    client = replace(state.data.client(k, round), samples="all")
    personalise(state.fabric, learner, client, derive(state.options.seed, "personalise", stage.name, round, k))


def personalise(fabric: Fabric, learner: FederatedModule, client: Client, seed: int) -> None:
    """Let a method adapt the client's model that is loaded, on the client's samples; loading a state undoes it."""
    structure = structure_of(learner.state_dict(keep_vars=True))
    with (
        isolated(seed),
        torch.enable_grad(),
        autocast(fabric)(),
        logging_to(_nowhere, [learner]),
        restored_requires_grad(learner),
    ):
        learner.personalise(client)
    live = learner.state_dict(keep_vars=True)
    if structure_of(live) != structure:
        raise ValueError("`personalise` changed names, shapes, dtypes or devices of the state.")
    for tensor in live.values():
        tensor.grad = None


@contextmanager
def personalised(fabric: Fabric, learner: FederatedModule, client: Client, seed: int) -> Iterator[None]:
    """Within, the learner is what `personalise` makes of it; afterwards it is restored, so that it may train on."""
    if not personalises(learner):
        yield
        return
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    modes = modes_of(learner)
    try:
        personalise(fabric, learner, client, seed)
        yield
    finally:
        copy_into(learner.state_dict(keep_vars=True), before)
        restore(modes)


def _nowhere(*given: Any, **named: Any) -> None:
    """Discards what is logged in an evaluation."""


EpochValues = list[tuple[int, str, str, float]]  # epoch, data, metric and value


def is_followed(stage: Stage) -> bool:
    """Whether epochs of a stage are evaluated: a client's own model is trained, not a copy that is averaged."""
    return stage.side == "clients" and stage.upload != "aggregate" and stage.reported_as is not None


class EpochScores:
    """Evaluates the live model when an epoch has ended; training goes on as if it had not."""

    def __init__(self, state: FederationState, stage: Stage, client: Client, every: int) -> None:
        self.state = state
        self.stage = stage
        self.client = client
        self.every = every
        self.epoch = 0
        self.values: EpochValues = []

    def __call__(self) -> None:
        self.epoch += 1
        if self.epoch % self.every:
            return
        learner = self.stage.module or self.state.module
        seed = derive(self.state.options.seed, "epochs", self.stage.name, self.client.round, self.client.id, self.epoch)
        personal = personalised(self.state.fabric, learner, self.client, derive(seed, "personalise"))
        with isolated(seed), personal:
            for data, batches in self._samples():
                scores = evaluate(self.state.fabric, learner, batches, self.state.measures)
                self.values += [(self.epoch, data, metric, value) for metric, value in scores.items()]

    def _samples(self) -> Iterator[tuple[str, AnyBatches]]:
        """The same as at the end of the round."""
        data = self.state.data
        k = self.client.id
        yield "own", self.client.val_batches()
        if data.at_round(self.client.round).own_test:
            batches, _ = data.own_test_batches([k], self.client.round)
            yield "own_test", batches
        if self.stage.reported_on_pooled:
            yield "pooled", data.test_batches(k)


def scores_of_trained_copy(state: FederationState, stage: Stage, client: Client) -> Scores:
    """Scores of the loaded copy of a client on its own validation samples."""
    learner = stage.module or state.module
    network = learner if stage.own_models else learner.global_model()
    with isolated(derive(state.options.seed, "trained", stage.name, client.round, client.id)):
        return evaluate(state.fabric, network, client.val_batches(), state.measures)


@dataclass
class EvaluationResult:
    """Scores of an evaluation, and failures by client: plain values, which can be sent to other processes.

    `values` are client, model, data, metric and value; `failed` holds the fields of a `Failure`; `confused` is the
    confusion matrix of the global model on the test set.
    """

    values: list[tuple[int | str, str, str, str, float]] = field(default_factory=list)
    failed: dict[int, dict[str, Any]] = field(default_factory=dict)
    confused: Tensor | None = None

    def add(self, client: int | str, model: str, data: str, scores: Scores) -> None:
        self.values += [(client, model, data, name, value) for name, value in scores.items()]


def check_usage(results: Sequence[EvaluationResult]) -> None:
    """A mistake that all clients' evaluations run into is the method's, and ends the run."""
    mistakes = [problem["reason"] for found in results for problem in found.failed.values() if problem["is_usage"]]
    if mistakes and len(mistakes) == len(results):
        raise UsageError(mistakes[0].partition(": ")[2])


def pack(found: EvaluationResult) -> dict[str, Any]:
    return vars(found)


def unpack(packed: dict[str, Any]) -> EvaluationResult:
    return EvaluationResult(**packed)


def checked_found(k: int, packed: Mapping[str, Any]) -> EvaluationResult:
    """The result of a client's own process or host, if it is of this client and has numbers."""
    found = EvaluationResult()
    for client, model, data, metric, value in packed["values"]:
        if client != k or not isinstance(value, float):
            raise ValueError(f"it reports on client {client}: {metric!r} is {value!r}.")
        found.values.append((k, str(model), str(data), str(metric), value))
    for client, problem in packed["failed"].items():
        if client != k:
            raise ValueError(f"it reports on client {client}.")
        found.failed[k] = vars(reported(problem))
    return found


GROUP_BATCHES = 4  # clients that share batches fill so many, whatever the number of processes
SERVERS = "pooled"  # what the server evaluates itself, on the test set, wherever clients are
DEV_SAMPLES = 64  # a development run evaluates on so many
FEW = 4  # of so many clients some samples are tried to see whether they may share a batch,
TRIED_SAMPLES = 16  # so many in all


@dataclass(frozen=True)
class EvaluationJob:
    """An evaluation that one process does for all; `what` and `whose` name its random stream."""

    what: str
    whose: int
    evaluate: Callable[[], EvaluationResult]


def consecutive(clients: Sequence[int], sizes: Sequence[int], batch_size: int) -> list[list[int]]:
    """Groups of clients in order, each closed as soon as it fills `GROUP_BATCHES` batches.

    Example:
        >>> consecutive([0, 1, 4, 5], [60, 60, 200, 10], batch_size=25)
        [[0, 1], [4], [5]]
    """
    least = GROUP_BATCHES * batch_size
    groups: list[list[int]] = []
    num_samples = least
    for k, size in zip(clients, sizes, strict=True):
        if num_samples >= least:
            groups.append([])
            num_samples = 0
        groups[-1].append(k)
        num_samples += size
    return groups


class Scorer:
    """Evaluates the models that a federation holds, on several processes if there are."""

    def __init__(self, state: FederationState, stage: Stage | None = None) -> None:
        stage = stage or state.stage or state.module.configure_stages()[0]
        self.state = state
        self.measures = state.measures
        self.stage = stage
        self.learner = stage.module or state.module
        self.changes_global = stage.upload == "aggregate" or stage.side == "server" or stage.module is None
        self.network = (self.learner if self.changes_global else state.module).global_model()
        self.personal = self.learner
        if stage.side == "server" or stage.reported_as is None:
            self.personal = state.module
        self.failures: dict[int, Failure] = {}
        self.confused: Tensor | None = None

    @cached_property
    def before(self) -> ModuleSnapshot:
        """Snapshot of the module before the first client is evaluated."""
        return self.state.live.snapshot()

    @property
    def has_complete_global_model(self) -> bool:
        """Whether the server alone holds every value that the global model needs."""
        held = self._held(self.network)
        return bool(held) and all(held)

    @cached_property
    def has_personal_models(self) -> bool:
        """Whether the model that a client uses differs from the global model."""
        if self.stage.upload != "aggregate" or personalises(self.personal) or self.stage.own_models:
            return True
        is_own = is_overridden("forward", self.learner, FederatedModule)
        return bool(self.state.has_own_uploads) or not all(self._held(self.learner if is_own else self.network))

    def has_model(self, k: int) -> bool:
        """Whether a client has trained what this stage trains; one that failed or opted out may not have."""
        if self.stage.upload == "aggregate":
            is_everybody = personalises(self.personal) or not self.has_personal_models
            return is_everybody or has_trained_or_may(self.state, k, self.stage)
        if self.stage.side == "server" or self.stage.module is None:
            return True
        for name, child in self.state.module.named_children():
            if child is self.stage.module:
                return self.state.has_trained(k, f"{name}.")
        return True

    def _held(self, network: nn.Module) -> list[bool]:
        """Of each entry of a network, whether the server holds it or it is `upload_only`."""
        live = self.state.live.tensors()
        ours = {id(live[name]) for name in (*self.state.global_state, *self.state.upload_only) if name in live}
        return [id(tensor) in ours for tensor in network.state_dict(keep_vars=True).values()]

    def evaluate(self, round: int) -> list[Row]:
        """Global model on the test set and on every client's own samples, and every client's own model on its own."""
        if self.stage.reported_as is None:
            return []
        before = self.before
        try:
            return self._evaluated(round)
        finally:
            self.state.live.leave()
            before.restore()  # a network may note what it has seen last

    def _evaluated(self, round: int) -> list[Row]:
        rows: list[Row] = []
        of_clients: list[EvaluationResult] = []
        for job, found in self._results(self._jobs(round), round):
            rows += self._rows(found, round)
            if job.what in ("probe", "personal"):
                of_clients.append(found)
            if found.confused is not None:
                self.confused = found.confused
        check_usage(of_clients)
        return rows

    def _results(self, jobs: list[EvaluationJob], round: int) -> Iterator[tuple[EvaluationJob, EvaluationResult]]:
        """The result of each evaluation, in order; clients are evaluated on their own hosts, if they have some."""
        state = self.state
        if state.hosts is not None:
            asked = [(job.what, job.whose) for job in jobs if job.what != SERVERS]
            answers = iter(state.hosts.found(self, round, asked))
            for job in jobs:
                yield job, self.run(job, round) if job.what == SERVERS else next(answers)
            return
        whose = [None if job.what in (SERVERS, "global") else job.whose for job in jobs]
        owners = by_owner(whose, state.owner_ranks, state.fabric.world_size)

        def work(i: int) -> EvaluationResult:
            return self.run(jobs[i], round)

        for i, found in in_order(state.fabric, range(len(jobs)), work, pack, unpack, owners):
            yield jobs[i], found

    def run(self, job: EvaluationJob, round: int) -> EvaluationResult:
        """One evaluation, by a random stream of its own."""
        with isolated(derive(self.state.options.seed, "evaluate", self.stage.name, round, job.what, job.whose)):
            return job.evaluate()

    def own_job(self, what: str, k: int, round: int) -> EvaluationJob:
        """An evaluation of one client, as its own host is asked for it."""
        evaluations: dict[str, Callable[[], EvaluationResult]] = {
            "global": partial(self._global_on_own, [k], round),
            "probe": partial(self._attempt, self._probed, k, round),
            "personal": partial(self._attempt, self._personal_on_own, k, round),
            "personal pooled": partial(self._attempt, self._client_on_pooled, k, round),
        }
        return EvaluationJob(what, k, evaluations[what])

    def _attempt(self, evaluate_client: Callable[[int, int], EvaluationResult], k: int, round: int) -> EvaluationResult:
        """The result of a client's evaluation, or why it failed; others are evaluated all the same."""

        def evaluated() -> EvaluationResult:
            try:
                with self.state.live.restored(self.before):
                    return evaluate_client(k, round)
            except (Exception, SystemExit) as error:
                return EvaluationResult(failed={k: vars(failed(error))})

        timeout = self.state.options.client_timeout
        if timeout is None:
            return evaluated()
        found = in_child(evaluated, timeout, bool, pack, partial(checked_found, k))
        return EvaluationResult(failed={k: vars(found)}) if isinstance(found, Failure) else found

    def _jobs(self, round: int) -> list[EvaluationJob]:
        data = self.state.data
        assignment = data.at_round(round)
        own = [k for k in range(data.num_clients) if len(assignment.val[k])]
        if self.state.options.fast_dev_run:
            own = own[:2]
        jobs = self._global_jobs(own, round) if self.changes_global else []  # else the stage that made it has done it
        if not self.has_personal_models:
            if is_overridden("probe", self.personal, FederatedModule):
                jobs += [self.own_job("probe", k, round) for k in own]
            return jobs
        seen = [k for k in own if k < self._num_seen and self.has_model(k)]
        if self.stage.side == "clients":
            jobs += [self.own_job("personal", k, round) for k in seen]
        if self.stage.reported_on_pooled and not data.is_placeholder:
            jobs += [self.own_job("personal pooled", k, round) for k in seen]
        return jobs

    def _global_jobs(self, clients: list[int], round: int) -> list[EvaluationJob]:
        """None unless the server holds the whole model: with a client's own part it is that client's personal one."""
        if not self.has_complete_global_model:
            return []
        jobs = [] if self.state.data.is_placeholder else [EvaluationJob(SERVERS, 0, self._global_on_pooled)]
        for group in self._groups(clients, round):
            jobs.append(EvaluationJob("global", group[0], partial(self._global_on_own, group, round)))
        return jobs

    @property
    def _num_seen(self) -> int:
        """Clients that may train; the others come after them."""
        return self.state.data.num_clients - self.state.data.unseen_clients

    def _groups(self, clients: list[int], round: int) -> list[list[int]]:
        """Clients whose samples share batches, or each by itself if that would matter.

        A loss may be rounded otherwise in another batch, so who is beside whom depends on the data alone.
        """
        if len(clients) < 2 or not self.measures.are_of_classes or self.state.hosts is not None:
            return [[k] for k in clients]
        if not self._sees_samples_apart(clients, round):
            return [[k] for k in clients]
        val = self.state.data.at_round(round).val
        return consecutive(clients, [len(val[k]) for k in clients], self.state.data.eval_batch_size)

    def _sees_samples_apart(self, clients: list[int], round: int) -> bool:
        """Whether the network's outputs depend on their own samples alone, tried on a few."""
        self.state.load_global()
        batches, _ = self.state.data.val_batches(clients[:FEW], round)
        return sees_samples_apart(self.state.fabric, self.network, batches.first(TRIED_SAMPLES))

    def _rows(self, found: EvaluationResult, round: int) -> list[Row]:
        """Scores as rows; failures are noted."""
        for k, problem in found.failed.items():
            failure = Failure(**problem)
            self.failures[k] = replace(failure, reason=f"could not be evaluated: {failure.reason}")
        return [Row(round, self.stage.name, *values) for values in found.values]

    def test(self) -> list[Row]:
        """Global model, and every client's own, on the pooled test set."""
        rows: list[Row] = []
        if self.has_complete_global_model:
            rows += self._rows(self._global_on_pooled(), self.state.round)
        if not self.has_personal_models:
            return rows
        is_everybody = personalises(self.personal) or self.stage.own_models
        whose = range(self._num_seen) if is_everybody else self.state.owners()
        clients = [k for k in whose if self.has_model(k)]
        owners = by_owner(clients, self.state.owner_ranks, self.state.fabric.world_size)
        work = partial(self._attempt, self._client_on_pooled, round=self.state.round)
        for _, found in in_order(self.state.fabric, clients, work, pack, unpack, owners):
            rows += self._rows(found, self.state.round)
        return rows

    def load(self, client: int | None) -> nn.Module:
        """The global model, or that of a client as it would use it."""
        state = self.state
        if client is None:
            if not self.has_complete_global_model:
                raise ValueError(
                    f"{type(state.module).__name__} has no global model; name one of its clients with `--client`, in "
                    "Python with `client=`."
                )
            state.load_global()
            return self.network
        if not 0 <= client < state.data.num_clients:
            raise ValueError(f"`--client` must be 0 to {state.data.num_clients - 1}, got {client}.")
        if not self.has_model(client):
            raise ValueError(f"`--client` {client} has trained no model of its own in stage {self.stage.name!r}.")
        copy_to_all_ranks(state, [client])
        state.enter(client, "personal")
        personalise_client(state, self.stage, self.personal, client, state.round)
        return self.personal

    def predict(self, client: int | None, batches: AnyBatches | None = None) -> tuple[list[Tensor], list[Any]]:
        """Predictions of the task, and targets, of each of some batches, by default of the test set."""
        network = self.load(client)
        if batches is None:
            batches = self.state.data.test_batches(client)
        return predictions(self.state.fabric, network, batches, task_of(self.state.module))

    def _global_on_pooled(self) -> EvaluationResult:
        self.state.load_global()
        found = EvaluationResult()
        batches = self._limited(self.state.data.test_batches())
        if batches.num_samples and not self.measures.are_of_classes:
            found.add(POOLED, "global", "pooled", evaluate(self.state.fabric, self.network, batches, self.measures))
        elif batches.num_samples:
            logits, target = outputs(self.state.fabric, self.network, batches)
            [scores] = scores_by_group(logits, target, [len(target)], self.measures)
            found.add(POOLED, "global", "pooled", scores)
            found.confused = confusion(logits, target)
        return found

    def _global_on_own(self, clients: list[int], round: int) -> EvaluationResult:
        """In one pass; one by one if that fails."""
        try:
            return self._global_on_all(clients, round)
        except Exception:  # of one client, perhaps
            found = EvaluationResult()
            for k in clients:
                one = self._attempt(self._global_on_one, k, round)
                found.values += one.values
                found.failed |= one.failed
            return found

    def _global_on_one(self, k: int, round: int) -> EvaluationResult:
        return self._global_on_all([k], round)

    def _global_on_all(self, clients: list[int], round: int) -> EvaluationResult:
        self.state.load_global()
        found = EvaluationResult()
        own = self._scores_of_each(*self.state.data.val_batches(clients, round))
        for k, scores in zip(clients, own, strict=True):
            found.add(k, "global", self._whose(k), scores)
        tested = [k for k in clients if self._has_own_test(k, round)]
        if tested:
            own_test = self._scores_of_each(*self.state.data.own_test_batches(tested, round))
            for k, scores in zip(tested, own_test, strict=True):
                found.add(k, "global", "own_test", scores)
        return found

    def _scores_of_each(self, batches: AnyBatches, sizes: np.ndarray) -> list[Scores]:
        """Scores of the global model, for clients whose samples are concatenated."""
        if len(sizes) == 1:
            return [evaluate(self.state.fabric, self.network, batches, self.measures)]
        logits, target = outputs(self.state.fabric, self.network, batches)
        return scores_by_group(logits, target, sizes, self.measures)

    def _personal_on_own(self, k: int, round: int) -> EvaluationResult:
        """On the client's validation samples, and on its share of the test set if it has one."""
        found = EvaluationResult()
        self.state.enter(k, "personal", round)
        personalise_client(self.state, self.stage, self.personal, k, round)
        batches, _ = self.state.data.val_batches([k], round)
        found.add(k, self._reported_as, self._whose(k), self._scores(self.personal, batches))
        if self._has_own_test(k, round):
            batches, _ = self.state.data.own_test_batches([k], round)
            found.add(k, self._reported_as, "own_test", self._scores(self.personal, batches))
        found.add(k, self._reported_as, self._whose(k), self._probe(k, round))
        return found

    def _has_own_test(self, k: int, round: int) -> bool:
        own_test = self.state.data.at_round(round).own_test
        return bool(own_test) and len(own_test[k]) > 0 and self._whose(k) == "own"

    def _probed(self, k: int, round: int) -> EvaluationResult:
        """The method's `probe` where a client's model is the global one."""
        found = EvaluationResult()
        self.state.enter(k, "server", round)
        found.add(k, "global", self._whose(k), self._probe(k, round))
        return found

    def _client_on_pooled(self, k: int, round: int) -> EvaluationResult:
        found = EvaluationResult()
        self.state.enter(k, "personal")
        personalise_client(self.state, self.stage, self.personal, k, round)
        found.add(k, self._reported_as, "pooled", self._scores(self.personal, self.state.data.test_batches(k)))
        return found

    @property
    def _reported_as(self) -> str:
        return self.stage.reported_as or "personal"

    def _scores(self, network: nn.Module, batches: AnyBatches) -> Scores:
        return evaluate(self.state.fabric, network, self._limited(batches), self.measures)

    def _limited(self, batches: AnyBatches) -> AnyBatches:
        """Few samples in a development run."""
        if self.state.options.fast_dev_run:
            return batches.first(DEV_SAMPLES)
        return batches

    @torch.no_grad()
    def _probe(self, k: int, round: int) -> Scores:
        """Values that the method's `probe` returns or logs."""
        modes = modes_of(self.personal)
        self.personal.eval()
        with logging_to_means(self.personal) as logs:
            probed = self.personal.probe(self.state.data.client(k, round))
        restore(modes)
        scores = {str(name): float(value) for name, value in probed.items()}
        return check_probe_names(logs.result() | scores, self.measures.names, self.personal)

    def _whose(self, k: int) -> str:
        return "own" if k < self._num_seen else "unseen"
