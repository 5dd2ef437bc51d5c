"""Evaluation: which model on whose data."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_confusion_matrix

from fedlit.data.batches import Batches
from fedlit.data.client import Client
from fedlit.engine.child_process import in_child
from fedlit.engine.live_module import ModuleSnapshot, client_failure
from fedlit.engine.logged_values import check_probe_names, logging_to_means
from fedlit.engine.metrics import Scores, evaluate, is_batch_independent, outputs, scores_by_group
from fedlit.engine.plan import UsageError
from fedlit.engine.precision import autocast
from fedlit.engine.processes import all_gather, by_owner
from fedlit.engine.scheduling import has_trained_or_may
from fedlit.engine.state import FederationState
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.methods.states import twin
from fedlit.modes import evaluating
from fedlit.records.round_record import Failure, reported
from fedlit.records.rows import POOLED, Row
from fedlit.rng import derive, isolated

GROUP_BATCHES = 4  # clients that share batches fill so many, whatever the number of processes
DEV_SAMPLES = 64  # of the test set in a development run
FEW = 4  # of so many clients some samples are tried to see whether they may share a batch,
TRIED_SAMPLES = 16  # so many in all


def personalised(fabric: Fabric, learner: FederatedModule, client: Client, seed: int) -> FederatedModule:
    """The learner as a client uses it: itself, or a copy that its method has adapted to the client's samples."""
    if not is_overridden("personalise", learner, FederatedModule):
        return learner
    own = twin(learner)
    with isolated(seed), torch.enable_grad(), autocast(fabric)(), logging_to_means(own):  # which nobody reads
        own.personalise(client)
    return own


@dataclass
class EvaluationResult:
    """Scores of an evaluation, and failures by client: plain values, which can be sent to other processes.

    `values` are client, model, data, metric and value; `failed` holds the fields of a `Failure`; `confusion_matrix` is
    that of the global model on the test set.
    """

    values: list[tuple[int | str, str, str, str, float]] = field(default_factory=list)
    failed: dict[int, dict[str, Any]] = field(default_factory=dict)
    confusion_matrix: Tensor | None = None

    def add(self, client: int | str, model: str, data: str, scores: Scores) -> None:
        self.values += [(client, model, data, name, value) for name, value in scores.items()]


def received_result(k: int, packed: Mapping[str, Any]) -> EvaluationResult:
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


What = Literal["pooled", "global", "probe", "personal", "personal pooled"]


class EvaluationJob(NamedTuple):
    """An evaluation that one process, or the host of its client, does for all.

    `what` and the first client name its random stream.
    """

    what: What
    clients: Sequence[int] = (0,)


def consecutive(clients: Sequence[int], sizes: Sequence[int], least: int) -> list[list[int]]:
    """Groups of clients in order, each closed as soon as it has the least number of samples.

    Example:
        >>> consecutive([0, 1, 4, 5], [60, 60, 200, 10], least=100)
        [[0, 1], [4], [5]]
    """
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
    """Evaluates the models that a federation holds, those of the last round's stage unless another is given."""

    def __init__(self, state: FederationState, stage: Stage | None = None) -> None:
        stage = stage or state.stage or state.module.configure_stages()[0]
        learner = stage.module or state.module
        self.state = state
        self.stage = stage
        self.evaluates_global = stage.upload == "aggregate" or stage.side == "server" or stage.module is None
        self.network = (learner if self.evaluates_global else state.module).global_model()  # the server's
        self.client_model = state.module if stage.side == "server" or stage.reported_as is None else learner
        self.reported_as = stage.reported_as or "personal"
        self.num_seen = state.data.num_clients - state.data.unseen_clients  # the unseen come after them
        self.overrides_personalise = is_overridden("personalise", self.client_model, FederatedModule)
        self.has_probe = is_overridden("probe", self.client_model, FederatedModule)
        self.failures: dict[int, Failure] = {}
        self.confusion_matrix: Tensor | None = None

    def evaluate(self, round: int) -> list[Row]:
        """The global model on the test set and each client's own samples; each client's own model on its samples."""
        if self.stage.reported_as is None:
            return []
        data = self.state.data
        val = data.at_round(round).val
        clients = [k for k in range(data.num_clients) if len(val[k])]
        if self.state.options.fast_dev_run:
            clients = clients[:2]
        jobs = []
        if self.evaluates_global and self.has_complete_global_model:  # else the stage that made it has done it
            if not data.is_placeholder:
                jobs.append(EvaluationJob("pooled"))
            jobs += [EvaluationJob("global", group) for group in self._groups(clients, round)]
        if not self.clients_differ_from_global:
            if self.has_probe:
                jobs += [EvaluationJob("probe", [k]) for k in clients]
            return self._rows(jobs, round)
        trained = [k for k in clients if k < self.num_seen and self.has_model(k)]
        if self.stage.side == "clients":
            jobs += [EvaluationJob("personal", [k]) for k in trained]
        if self.stage.reported_on_pooled and not data.is_placeholder:
            jobs += [EvaluationJob("personal pooled", [k]) for k in trained]
        return self._rows(jobs, round)

    def test(self) -> list[Row]:
        """The global model, and each client's own, on the test set."""
        jobs = [EvaluationJob("pooled")] if self.has_complete_global_model else []
        if self.clients_differ_from_global:
            is_everybody = self.overrides_personalise or self.stage.own_models
            clients = range(self.num_seen) if is_everybody else self.state.owners()
            jobs += [EvaluationJob("personal pooled", [k]) for k in clients if self.has_model(k)]
        return self._rows(jobs, self.state.round)

    @cached_property
    def before(self) -> ModuleSnapshot:
        """Snapshot of the module before the first evaluation."""
        return self.state.live.snapshot()

    @cached_property
    def has_complete_global_model(self) -> bool:
        """Whether the server alone holds every value that the global model needs.

        With a client's own part it is that client's personal model.
        """
        held = self._on_server(self.network)
        return bool(held) and all(held)

    @cached_property
    def clients_differ_from_global(self) -> bool:
        """Whether the model that a client uses differs from the global model."""
        if self.stage.upload != "aggregate" or self.overrides_personalise or self.stage.own_models:
            return True
        if self.state.has_custom_download and len(self.state.uploads):  # it is what the client has uploaded last
            return True
        is_own = is_overridden("forward", self.client_model, FederatedModule)
        return not all(self._on_server(self.client_model if is_own else self.network))

    def _on_server(self, network: nn.Module) -> list[bool]:
        """Of each entry of a network, whether the server holds it or it is `upload_only`."""
        live = self.state.live.tensors()
        ours = {id(live[name]) for name in (*self.state.global_state, *self.state.upload_only) if name in live}
        return [id(tensor) in ours for tensor in network.state_dict(keep_vars=True).values()]

    def has_model(self, k: int) -> bool:
        """Whether a client has trained what this stage trains; one that failed or opted out may not have."""
        if self.stage.upload == "aggregate":
            is_everybody = self.overrides_personalise or not self.clients_differ_from_global
            return is_everybody or has_trained_or_may(self.state, k, self.stage)
        trained = [f"{name}." for name, part in self.state.module.named_children() if part is self.stage.module]
        return self.stage.side == "server" or not trained or self.state.has_trained(k, trained[0])

    def _groups(self, clients: list[int], round: int) -> list[list[int]]:
        """Clients whose samples share batches, or each by itself if that would matter.

        A loss may be rounded otherwise in another batch, so who is beside whom depends on the data alone.
        """
        state = self.state
        one_by_one = [[k] for k in clients]
        if len(clients) < 2 or not state.measures.are_of_classes or state.hosts is not None:
            return one_by_one
        with state.live.restored(self.before):
            state.load_global()
            batches, _ = state.data.val_batches(clients[:FEW], round)
            if not is_batch_independent(state.fabric, self.network, batches.first(TRIED_SAMPLES)):
                return one_by_one
        val = state.data.at_round(round).val
        return consecutive(clients, [len(val[k]) for k in clients], GROUP_BATCHES * state.data.eval_batch_size)

    def _rows(self, jobs: list[EvaluationJob], round: int) -> list[Row]:
        """Scores of all evaluations as rows; a mistake that all clients' own run into is the method's."""
        with self.state.live.restored(self.before):  # a network may note what it has seen last
            results = self._results(jobs, round)
        rows: list[Row] = []
        for found in results:
            rows += [Row(round, self.stage.name, *values) for values in found.values]
            for k, problem in found.failed.items():
                failure = Failure(**problem)
                self.failures[k] = replace(failure, reason=f"could not be evaluated: {failure.reason}")
            if found.confusion_matrix is not None:
                self.confusion_matrix = found.confusion_matrix
        own = [found for job, found in zip(jobs, results, strict=True) if job.what in ("probe", "personal")]
        mistakes = [problem["reason"] for found in own for problem in found.failed.values() if problem["is_usage"]]
        if mistakes and len(mistakes) == len(own):
            raise UsageError(mistakes[0].partition(": ")[2])
        return rows

    def _results(self, jobs: list[EvaluationJob], round: int) -> list[EvaluationResult]:
        """The result of each evaluation; clients are evaluated on their own hosts, or by the ranks that have them."""
        state = self.state
        if state.hosts is not None:
            asked = [(job.what, job.clients[0]) for job in jobs if job.what != "pooled"]
            answers = iter(state.hosts.evaluate(self, round, asked))
            return [self.run(job, round) if job.what == "pooled" else next(answers) for job in jobs]
        whose = [None if job.what in ("pooled", "global") else job.clients[0] for job in jobs]
        owners = by_owner(whose, state.owner_ranks, state.fabric.world_size)
        own = {i: vars(self.run(jobs[i], round)) for i in range(len(jobs)) if owners[i] == state.fabric.global_rank}
        found = all_gather(state.fabric, own)
        return [EvaluationResult(**found[i]) for i in range(len(jobs))]

    def run(self, job: EvaluationJob, round: int) -> EvaluationResult:
        """One evaluation, by a random stream of its own; of several clients in one pass, if that works."""
        with isolated(derive(self.state.options.seed, "evaluate", self.stage.name, round, job.what, job.clients[0])):
            if job.what == "pooled":
                return self._global_on_pooled()
            if job.what == "global":
                with suppress(Exception):  # of one client, perhaps
                    return self._global_on_own(job.clients, round)
            found = EvaluationResult()
            for k in job.clients:
                one = self._attempt(job.what, k, round)
                found.values += one.values
                found.failed |= one.failed
            return found

    def _attempt(self, what: What, k: int, round: int) -> EvaluationResult:
        """The result of a client's evaluation, or why it failed; others are evaluated all the same."""

        def evaluated() -> EvaluationResult:
            try:
                with self.state.live.restored(self.before):
                    return self._of_client(what, k, round)
            except (Exception, SystemExit) as error:
                return EvaluationResult(failed={k: vars(client_failure(error))})

        timeout = self.state.options.client_timeout
        if timeout is None:
            return evaluated()
        found = in_child(evaluated, timeout, bool, vars, partial(received_result, k))
        return EvaluationResult(failed={k: vars(found)}) if isinstance(found, Failure) else found

    def _of_client(self, what: What, k: int, round: int) -> EvaluationResult:
        if what == "global":
            return self._global_on_own([k], round)
        found = EvaluationResult()
        if what == "probe":  # of a client whose model is the global one
            self.state.load_client(k, "server", round)
            found.add(k, "global", self._whose(k), self._probe(self.client_model, k, round))
            return found
        network = self.load_own(k, round)
        if what == "personal pooled":
            found.add(k, self.reported_as, "pooled", self.on_pooled(network, k))
            return found
        found = self.on_own(network, self.reported_as, [k], round)
        if self.has_probe:
            found.add(k, self.reported_as, self._whose(k), self._probe(network, k, round))
        return found

    def _global_on_pooled(self) -> EvaluationResult:
        state = self.state
        state.load_global()
        found = EvaluationResult()
        batches = self._test_batches()
        if state.measures.are_of_classes and batches.num_samples:
            logits, target = outputs(state.fabric, self.network, batches)
            [scores] = scores_by_group(logits, target, [len(target)], state.measures)
            found.confusion_matrix = multiclass_confusion_matrix(logits, target, logits.shape[1], validate_args=False)
        else:
            scores = evaluate(state.fabric, self.network, batches, state.measures)
        found.add(POOLED, "global", "pooled", scores)
        return found

    def _global_on_own(self, clients: Sequence[int], round: int) -> EvaluationResult:
        self.state.load_global()
        return self.on_own(self.network, "global", clients, round)

    def on_own(self, network: nn.Module, model: str, clients: Sequence[int], round: int) -> EvaluationResult:
        """Scores of a network on the samples of some clients: for validation, and their shares of the test set."""
        data = self.state.data
        found = EvaluationResult()
        scores = self._scores_of_each(network, *data.val_batches(clients, round))
        for k, own in zip(clients, scores, strict=True):
            found.add(k, model, self._whose(k), own)
        own_test = data.at_round(round).own_test
        tested = [k for k in clients if own_test and len(own_test[k]) and k < self.num_seen]
        if tested:
            scores = self._scores_of_each(network, *data.own_test_batches(tested, round))
            for k, own in zip(tested, scores, strict=True):
                found.add(k, model, "own_test", own)
        return found

    def on_pooled(self, network: nn.Module, k: int) -> Scores:
        """Scores of a client's own model on the test set."""
        return evaluate(self.state.fabric, network, self._test_batches(k), self.state.measures)

    def _scores_of_each(self, network: nn.Module, batches: Batches, sizes: np.ndarray) -> list[Scores]:
        """Scores for clients whose samples are concatenated."""
        if len(sizes) == 1:
            return [evaluate(self.state.fabric, network, batches, self.state.measures)]
        logits, target = outputs(self.state.fabric, network, batches)
        return scores_by_group(logits, target, sizes, self.state.measures)

    def _test_batches(self, k: int | None = None) -> Batches:
        """The test set, as a client sees it; a few samples of it in a development run."""
        batches = self.state.data.test_batches(k)
        return batches.first(DEV_SAMPLES) if self.state.options.fast_dev_run else batches

    def load_own(self, k: int, round: int) -> FederatedModule:
        """Load a client's model; as it uses it, adapted to all its samples, of which nothing is uploaded."""
        state = self.state
        state.load_client(k, "personal", round)
        client = replace(state.data.client(k, round), samples="all")
        seed = derive(state.options.seed, "personalise", self.stage.name, round, k)
        return personalised(state.fabric, self.client_model, client, seed)

    @torch.no_grad()
    def _probe(self, method: FederatedModule, k: int, round: int) -> Scores:
        """Values that the method's `probe` returns or logs."""
        with evaluating(method), logging_to_means(method) as logs:
            probed = method.probe(self.state.data.client(k, round))
        scores = {str(name): float(value) for name, value in probed.items()}
        return check_probe_names(logs.result() | scores, self.state.measures.names, method)

    def _whose(self, k: int) -> str:
        return "own" if k < self.num_seen else "unseen"


class EpochScores:
    """Evaluates the live model when an epoch has ended; training goes on as if it had not."""

    def __init__(self, state: FederationState, stage: Stage, client: Client, every: int) -> None:
        self.scorer = Scorer(state, stage)
        self.client = client
        self.every = every
        self.epoch = 0
        self.values: list[tuple[int, str, str, float]] = []  # epoch, data, metric and value

    def __call__(self) -> None:
        """The same as at the end of the round."""
        self.epoch += 1
        if self.epoch % self.every:
            return
        scorer = self.scorer
        k = self.client.id
        seed = derive(scorer.state.options.seed, "epochs", scorer.stage.name, self.client.round, k, self.epoch)
        with isolated(seed):
            network = personalised(scorer.state.fabric, scorer.client_model, self.client, derive(seed, "personalise"))
            found = scorer.on_own(network, scorer.reported_as, [k], self.client.round)
            if scorer.stage.reported_on_pooled:
                found.add(k, scorer.reported_as, "pooled", scorer.on_pooled(network, k))
        self.values += [(self.epoch, data, metric, value) for _, _, data, metric, value in found.values]


def scores_of_trained_copy(state: FederationState, stage: Stage, client: Client) -> Scores:
    """Scores of the loaded copy of a client on its own validation samples."""
    learner = stage.module or state.module
    network = learner if stage.own_models else learner.global_model()
    with isolated(derive(state.options.seed, "trained", stage.name, client.round, client.id)):
        return evaluate(state.fabric, network, client.val_batches(), state.measures)
