"""Who takes part in a round."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlit.aggregation import fewest_uploads
from fedlit.data.assignment import Assignment
from fedlit.engine.cluster.processes import broadcast
from fedlit.engine.module.log_sinks import refused
from fedlit.engine.options import Options
from fedlit.engine.states.state import FederationState
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.rng import derive, generator, isolated


class ClientSampler:
    """Draws the clients of a round.

    Args:
        state: Of the federation: its data, and who has done what.
    """

    def __init__(self, state: FederationState) -> None:
        self.state = state
        self._eligible: dict[str, tuple[Assignment, list[int]]] = {}  # by what a stage trains on

    def sample(self, stage: Stage, round: int, attempt: int = 1, failed: Collection[int] = ()) -> list[int]:
        """The clients of a round, in order of their ids: a fraction of those that may; all if nothing is averaged.

        Args:
            stage: That it belongs to.
            round: Its number, from 1.
            attempt: At this round: every one draws its own clients.
            failed: Who has failed in earlier attempts; they are the last to be drawn again.
        """
        if stage.side == "server":
            return []
        candidates = self.candidates(stage, round)
        if stage.upload == "aggregate":
            chosen = self._selected(candidates, stage, round, attempt, failed)
            candidates = self._drawn(candidates, stage, round, attempt, failed) if chosen is None else chosen
        return self._few(candidates) if self.state.options.fast_dev_run else candidates

    def candidates(self, stage: Stage, round: int) -> list[int]:
        """Who may be drawn. Nobody uploads twice what the server collects: who has done that has no more to do."""
        may = self.eligible(stage, round)
        if not may:
            raise ValueError(f"No client may train in stage {stage.name!r}: all have opted out (see `data.opt_out`).")
        collected = self.state.collected
        return [k for k in may if k not in collected and self.state.has_trained(k, stage.needs)]

    def _few(self, candidates: list[int]) -> list[int]:
        """As many as tell whether it runs: two, or what the rule of the federation needs."""
        rule = self.state.options.aggregator
        needed = 1 if rule is None else fewest_uploads(rule)
        return candidates[: max(2, needed)]

    def _selected(
        self, candidates: Sequence[int], stage: Stage, round: int, attempt: int, failed: Collection[int]
    ) -> list[int] | None:
        """Whom the method chooses, on the first process for all; None if it does not."""
        module = self.state.module
        if not is_overridden("select_clients", module, FederatedModule):
            return None
        may = [k for k in candidates if k not in failed]
        self.state.load_global()
        module.stage = stage
        seed = derive(self.state.options.seed, "select", stage.name, round, attempt)
        with isolated(seed), refused(module, "select_clients"):
            chosen = module.select_clients(round, may)
        chosen = broadcast(self.state.fabric, None if chosen is None else [int(k) for k in chosen])
        if chosen is not None:
            _check_selected(chosen, may, type(module).__name__, round)
            chosen = sorted(chosen)
        return chosen

    def _drawn(
        self, candidates: Sequence[int], stage: Stage, round: int, attempt: int, failed: Collection[int]
    ) -> list[int]:
        options = self.state.options
        again = () if attempt == 1 else (attempt,)
        seed = options.seed if self.state.secret is None else self.state.secret
        stream = generator(seed, "sample", stage.name, round, *again)
        if options.privacy is not None:  # each by itself, whoever else is there: what amplification by sampling needs
            draws = torch.rand(self.state.data.num_clients, generator=stream)
            return [k for k in candidates if draws[k] < options.fraction_fit]
        size = cohort_size(options, len(candidates))
        order = [candidates[i] for i in torch.randperm(len(candidates), generator=stream).tolist()]
        order.sort(key=lambda k: k in failed)  # else as they were drawn
        return sorted(order[:size])

    def eligible(self, stage: Stage, round: int) -> list[int]:
        """The clients that may take part: those with samples to train on, and none of the unseen ones."""
        data = self.state.data
        assignment = data.at_round(round)
        known = self._eligible.get(stage.samples)
        if known is None or known[0] is not assignment:
            seen = range(data.num_clients - data.unseen_clients)
            found = [k for k in seen if num_samples(assignment, k, stage)]
            known = (assignment, found)
            self._eligible[stage.samples] = known
        return known[1]


def _check_selected(chosen: Sequence[int], may: Sequence[int], method: str, round: int) -> None:
    told = f"`select_clients` of {method} in round {round} must choose clients that may take part, each once"
    if not chosen:
        raise ValueError(f"{told}, got none of {len(may)}; None leaves it to `trainer.fraction_fit`.")
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(may):
        raise ValueError(f"{told}, got {list(chosen)} of {list(may)}.")


def cohort_size(options: Options, num_candidates: int) -> int:
    """Clients of a round that averages, of so many that may take part."""
    wanted = max(options.min_clients, int(options.fraction_fit * num_candidates + 0.5), 1)
    return min(wanted, num_candidates)


def fewest_usable(options: Options, stage: Stage, num_clients: int) -> int:
    """How many clients of a round must bring something usable: `trainer.min_clients`, or what the rule needs.

    Under `trainer.privacy` none: a round that depended on who came would tell who did.
    """
    if stage.upload != "aggregate":
        return min(options.min_clients, num_clients)
    if options.privacy is not None:
        return 0
    needed = 1 if options.aggregator is None else fewest_uploads(options.aggregator)
    return min(max(options.min_clients, needed), num_clients)


def num_samples(assignment: Assignment, k: int, stage: Stage) -> int:
    """How many samples of its own a client may train on in a stage; who shares none has nothing to do with the pool."""
    if stage.samples == "all":
        return len(assignment.train[k])
    return int(np.count_nonzero(assignment.opted_in[k]))


def has_trained_or_may(state: FederationState, k: int, stage: Stage) -> bool:
    """Whether a client has something of its own, or may still come to have; one that opted out of a stage has not."""
    return bool(state.memories.names(k)) or num_samples(state.data.assignment, k, stage) > 0
