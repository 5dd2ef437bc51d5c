"""Which model on whose data: the evaluations of a federation."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from fedlit.data.loaded import AnyBatches
from fedlit.engine.evaluations.found import Found, check_usage, found_of
from fedlit.engine.evaluations.jobs import SERVERS, Job, consecutive, each_at_home, looked
from fedlit.engine.evaluations.loading import loaded
from fedlit.engine.evaluations.personalising import make_its_own, personalises
from fedlit.engine.module.isolation import ModuleSnapshot
from fedlit.engine.module.log_sinks import check_own_names, noted
from fedlit.engine.module.modes import modes_of, restore
from fedlit.engine.scoring.outputs import outputs, predictions, sees_samples_apart
from fedlit.engine.scoring.scores import confusion, evaluate, scores_by_group
from fedlit.engine.scoring.tally import Scores
from fedlit.engine.states.state import FederationState
from fedlit.engine.turns.sampling import has_trained_or_may
from fedlit.methods.base import FederatedModule, task_of
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure
from fedlit.records.rows import POOLED, Row

DEV_SAMPLES = 64  # a development run evaluates on so many
FEW = 4  # of so many clients some samples are tried to see whether they may share a batch,
TRIED_SAMPLES = 16  # so many in all


class Scorer:
    """Evaluates the models that a federation holds, on several processes if there are.

    Args:
        state: Of the federation: its states, data and live module.
        stage: Whose module is evaluated; by default the one that the federation has come to.
    """

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
        """Of the module, before the first client is evaluated."""
        return self.state.live.snapshot()

    @property
    def has_complete_global_model(self) -> bool:
        """Whether the server alone holds every value that the global model needs."""
        held = self._held(self.network)
        return bool(held) and all(held)

    @cached_property
    def has_personal_models(self) -> bool:
        """Whether what a client uses differs from the global model; what it merely trains with is no model."""
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
        """Of each value of a network, whether the server holds it; what goes up only is nobody's."""
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
        looks: list[Found] = []
        for job, found in looked(self, self._jobs(round), round):
            rows += self._rows(found, round)
            if job.what in ("probe", "personal"):
                looks.append(found)
            if found.confused is not None:
                self.confused = found.confused
        check_usage(looks)
        return rows

    def own_job(self, what: str, k: int, round: int) -> Job:
        """An evaluation of one client, as its own host is asked for it."""
        evaluations: dict[str, Callable[[], Found]] = {
            "global": partial(self._global_on_own, [k], round),
            "probe": partial(self._probed, k, round),
            "personal": partial(self._personal_on_own, k, round),
            "personal pooled": partial(self._client_on_pooled, k, round),
        }
        return Job(what, k, evaluations[what])

    def _jobs(self, round: int) -> list[Job]:
        data = self.state.data
        assignment = data.at_round(round)
        own = [k for k in range(data.num_clients) if len(assignment.val[k])]
        if self.state.options.fast_dev_run:
            own = own[:2]
        jobs = self._global_jobs(own, round) if self.changes_global else []  # else the stage that made it has done it
        if not self.has_personal_models:
            if is_overridden("probe", self.personal, FederatedModule):
                jobs += [Job("probe", k, partial(self._probed, k, round)) for k in own]
            return jobs
        seen = [k for k in own if k < self._num_seen and self.has_model(k)]
        if self.stage.side == "clients":
            jobs += [Job("personal", k, partial(self._personal_on_own, k, round)) for k in seen]
        if self.stage.reported_on_pooled and not data.is_stand_in:
            jobs += [Job("personal pooled", k, partial(self._client_on_pooled, k, round)) for k in seen]
        return jobs

    def _global_jobs(self, clients: list[int], round: int) -> list[Job]:
        """None unless the server holds the whole model: with a client's own part it is that client's personal one."""
        if not self.has_complete_global_model:
            return []
        jobs = [] if self.state.data.is_stand_in else [Job(SERVERS, 0, self._global_on_pooled)]
        for group in self._groups(clients, round):
            jobs.append(Job("global", group[0], partial(self._global_on_own, group, round)))
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

    def _rows(self, found: Found, round: int) -> list[Row]:
        """What was found, as rows; of which clients it could not be is noted."""
        for k, told in found.failed.items():
            failure = Failure(**told)
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
        for found in each_at_home(self.state, clients, partial(self._client_on_pooled, round=self.state.round)):
            rows += self._rows(found, self.state.round)
        return rows

    def predict(self, client: int | None, batches: AnyBatches | None = None) -> tuple[list[Tensor], list[Any]]:
        """What the task takes outputs for, and targets, of each of some batches, else of the test set.

        By the network that `loaded` gives.
        """
        network = loaded(self, client)
        if batches is None:
            batches = self.state.data.test_batches(client)
        return predictions(self.state.fabric, network, batches, task_of(self.state.module))

    def _global_on_pooled(self) -> Found:
        self.state.load_global()
        found = Found()
        batches = self._limited(self.state.data.test_batches())
        if batches.num_samples and not self.measures.are_of_classes:
            found.add(POOLED, "global", "pooled", evaluate(self.state.fabric, self.network, batches, self.measures))
        elif batches.num_samples:
            logits, target = outputs(self.state.fabric, self.network, batches)
            [scores] = scores_by_group(logits, target, [len(target)], self.measures)
            found.add(POOLED, "global", "pooled", scores)
            found.confused = confusion(logits, target)
        return found

    def _global_on_own(self, clients: list[int], round: int) -> Found:
        """In one pass, unless somebody's samples are not for this network: then one by one."""
        try:
            return self._global_on_all(clients, round)
        except Exception:  # each will tell
            found = Found()
            for k in clients:
                one = found_of(self.state, self.before, k, partial(self._global_on_all, [k], round))
                found.values += one.values
                found.failed |= one.failed
            return found

    def _global_on_all(self, clients: list[int], round: int) -> Found:
        self.state.load_global()
        found = Found()
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
        """Of the global model, for clients whose samples lie end to end."""
        if len(sizes) == 1:
            return [evaluate(self.state.fabric, self.network, batches, self.measures)]
        logits, target = outputs(self.state.fabric, self.network, batches)
        return scores_by_group(logits, target, sizes, self.measures)

    def _personal_on_own(self, k: int, round: int) -> Found:
        """On the client's validation samples, and on its share of the test set if it has one."""

        def look() -> Found:
            found = Found()
            self.state.enter(k, "personal", round)
            make_its_own(self.state, self.stage, self.personal, k, round)
            batches, _ = self.state.data.val_batches([k], round)
            found.add(k, self._reported_as, self._whose(k), self._scores(self.personal, batches))
            if self._has_own_test(k, round):
                batches, _ = self.state.data.own_test_batches([k], round)
                found.add(k, self._reported_as, "own_test", self._scores(self.personal, batches))
            found.add(k, self._reported_as, self._whose(k), self._probe(k, round))
            return found

        return found_of(self.state, self.before, k, look)

    def _has_own_test(self, k: int, round: int) -> bool:
        own_test = self.state.data.at_round(round).own_test
        return bool(own_test) and len(own_test[k]) > 0 and self._whose(k) == "own"

    def _probed(self, k: int, round: int) -> Found:
        """What a method measures by itself where a client's model is the global one."""

        def look() -> Found:
            found = Found()
            self.state.enter(k, "server", round)
            found.add(k, "global", self._whose(k), self._probe(k, round))
            return found

        return found_of(self.state, self.before, k, look)

    def _client_on_pooled(self, k: int, round: int) -> Found:
        def look() -> Found:
            found = Found()
            self.state.enter(k, "personal")
            make_its_own(self.state, self.stage, self.personal, k, round)
            scores = self._scores(self.personal, self.state.data.test_batches(k))
            found.add(k, self._reported_as, "pooled", scores)
            return found

        return found_of(self.state, self.before, k, look)

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
        """What a method measures of a client's model by itself, returned or logged."""
        modes = modes_of(self.personal)
        self.personal.eval()
        with noted(self.personal) as logs:
            probed = self.personal.probe(self.state.data.client(k, round))
        restore(modes)
        scores = {str(name): float(value) for name, value in probed.items()}
        return check_own_names(logs.result() | scores, self.measures.names, self.personal)

    def _whose(self, k: int) -> str:
        return "own" if k < self.state.data.num_clients - self.state.data.unseen_clients else "unseen"
