"""Who trains when: stages over rounds, the clients of a round, and whether enough of them returned."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.cli import LRSchedulerCallable
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedlit.aggregation import fewest_uploads
from fedlit.data import FederatedData
from fedlit.data.assignment import Assignment
from fedlit.data.client import SERVER
from fedlit.engine.logged_values import refusing_logs
from fedlit.engine.options import Options, refusing
from fedlit.engine.plan import KeepOptimizer, Plan
from fedlit.engine.processes import broadcast
from fedlit.engine.state import FederationState
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure, RoundRecord
from fedlit.rng import derive, generator, isolated


class StageRounds(NamedTuple):
    """The rounds of a stage, which come after those `before`, and the factor of the learning rate in each."""

    stage: Stage
    before: int
    length: int
    lr_factors: list[float]


class Schedule:
    """Which stage a round belongs to, and how it trains; rounds are counted from 1 through all stages.

    Args:
        stages: The programme of the method.
        options: `num_rounds` is for stages that do not say how many; `lr_schedule` begins anew with every stage.
    """

    def __init__(self, stages: list[Stage], options: Options) -> None:
        self.stages = stages
        self.options = options
        self.parts: list[StageRounds] = []
        for stage in stages:
            length = options.num_rounds if stage.rounds is None else stage.rounds
            if options.fast_dev_run:
                length = min(length, 1)
            before = len(self) if self.parts else 0
            self.parts.append(StageRounds(stage, before, length, lr_factors(options.lr_schedule, length)))

    def __len__(self) -> int:
        return self.parts[-1].before + self.parts[-1].length

    def stage(self, number: int) -> Stage:
        """The stage of a round; before the first round, the first stage."""
        return self._part(number).stage

    def is_last(self, number: int) -> bool:
        """Whether the round is the last of its stage."""
        part = self._part(number)
        return number == part.before + part.length

    def num_averaging(self, number: int) -> int:
        """How many of the first `number` rounds average, each of which spends privacy budget."""
        averaging = [part for part in self.parts if part.stage.upload == "aggregate"]
        return sum(min(max(number - part.before, 0), part.length) for part in averaging)

    def _part(self, number: int) -> StageRounds:
        within = min(max(number, 1), len(self))
        return next(part for part in self.parts if within <= part.before + part.length)

    def plan(self, number: int, client: int, **plan_callbacks: Any) -> Plan:
        """How a client trains in a round; `plan_callbacks` holds the functions of a plan."""
        part = self._part(number)
        lr_factor = part.lr_factors[number - part.before - 1] if part.lr_factors else 1.0
        is_over = self.is_last(number) and part.stage is not self.stages[-1]  # which may be made longer later
        optimizer_state = "reset" if is_over else self.options.optimizer_state
        return self._plan(part.stage, client, optimizer_state, lr_factor, **plan_callbacks)

    def plans(self, number: int, clients: Sequence[int], **plan_callbacks: Any) -> dict[int, Plan]:
        """How each client trains in a round; clients with as many local epochs have one plan."""
        epochs = {k: self.options.epochs_of(k) for k in clients}
        alike = {num: self.plan(number, k, **plan_callbacks) for k, num in epochs.items()}
        return {k: alike[num] for k, num in epochs.items()}

    def follow_up(self, number: int, **plan_callbacks: Any) -> Plan | None:
        """How the server trains at the end of a round of clients, if it does."""
        follower = self._part(number).stage.followed_by
        if follower is None:
            return None
        # What it trains was overwritten by the clients' since.
        return self._plan(
            follower, SERVER, "keep" if self.options.optimizer_state == "keep" else "reset", **plan_callbacks
        )

    def _plan(
        self, stage: Stage, client: int, optimizer_state: KeepOptimizer, lr_factor: float = 1.0, **plan_callbacks: Any
    ) -> Plan:
        options = self.options
        epochs = options.epochs_of(client) if stage.epochs is None else stage.epochs
        steps = options.local_steps if stage.epochs is None else None
        if options.fast_dev_run:
            steps = 1 if epochs else steps
            epochs = min(epochs, 1)
        limit = options.overfit_batches if options.limit_train_batches is None else options.limit_train_batches
        return Plan(
            stage=stage,
            seed=options.seed,
            epochs=epochs,
            steps=steps,
            lr_factor=lr_factor,
            optimizer_state=optimizer_state,
            gradient_clip_val=options.gradient_clip_val,
            limit_batches=limit,
            is_shuffled=options.overfit_batches is None,
            **plan_callbacks,
        )


def lr_factors(schedule: LRSchedulerCallable | None, rounds: int) -> list[float]:
    """What the schedule multiplies the learning rate by in each round of a stage; empty without a schedule.

    Example:
        >>> lr_factors(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5), 5)
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    if schedule is None:
        return []
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    factors: list[float] = []
    with refusing("`trainer.lr_schedule`"):  # some end after so many steps; one's own may raise anything
        stepper = schedule(optimizer)
        if isinstance(stepper, ReduceLROnPlateau):
            raise ValueError("it is stepped by rounds; ReduceLROnPlateau waits for a metric.")
        for _ in range(rounds):
            factors.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            stepper.step()
    return factors


def select_clients(
    state: FederationState, stage: Stage, round: int, attempt: int, failed: Collection[int]
) -> list[int]:
    """The clients of a round, in order of their ids: a fraction of those that may; all if nothing is averaged.

    Each attempt at a round draws its own clients; those that have failed in earlier ones are the last to be drawn.
    """
    clients = candidates(state, stage, round)
    if stage.upload == "aggregate":
        chosen = _chosen_by_method(state, stage, round, attempt, [k for k in clients if k not in failed])
        again = () if attempt == 1 else (attempt,)
        stream = generator(state.secret or state.options.seed, "sample", stage.name, round, *again)
        clients = _drawn_at_random(state, clients, failed, stream) if chosen is None else chosen
    if state.options.fast_dev_run:  # two, or as many as the rule of the federation needs
        clients = clients[: max(2, fewest_uploads(state.options.aggregator))]
    return clients


def candidates(state: FederationState, stage: Stage, round: int) -> list[int]:
    """Clients that may be drawn; those whose upload the server has collected are done."""
    may = [k for k in eligible(state.data, stage, round) if k not in state.collected]
    return [k for k in may if state.has_trained(k, stage.needs)] if stage.needs else may


def _chosen_by_method(
    state: FederationState, stage: Stage, round: int, attempt: int, may: list[int]
) -> list[int] | None:
    """Whom the method chooses, on the first process for all; None leaves it to `trainer.fraction_fit`."""
    module = state.module
    if not is_overridden("select_clients", module, FederatedModule):
        return None
    state.load_global()
    module.stage = stage
    seed = derive(state.options.seed, "select", stage.name, round, attempt)
    with isolated(seed), refusing_logs(module, "select_clients"):
        chosen = module.select_clients(round, may)
    chosen = broadcast(state.fabric, None if chosen is None else [int(k) for k in chosen])
    if chosen is None:
        return None
    rule = f"`select_clients` of {type(module).__name__} in round {round} must choose clients that may take part"
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(may):
        raise ValueError(f"{rule}, each once, or None for `trainer.fraction_fit`; got {chosen} of {may}.")
    return sorted(chosen)


def _drawn_at_random(
    state: FederationState, clients: list[int], failed: Collection[int], stream: torch.Generator
) -> list[int]:
    options = state.options
    if options.privacy is not None:  # each by itself, whoever else is there: what amplification by sampling needs
        draws = torch.rand(state.data.num_clients, generator=stream)
        return [k for k in clients if draws[k] < options.fraction_fit]
    order = [clients[i] for i in torch.randperm(len(clients), generator=stream).tolist()]
    order.sort(key=lambda k: k in failed)  # else as they were drawn
    return sorted(order[: cohort_size(options, len(clients))])


def check_retry(
    state: FederationState, stage: Stage, number: int, record: RoundRecord, failed: Mapping[int, Failure]
) -> None:
    """Refuse another attempt at a round if there were enough, or if too few clients have not failed yet."""
    options = state.options
    needed = fewest_usable(options, stage, len(record.clients))
    others = [k for k in candidates(state, stage, number) if k not in failed]
    if record.attempt <= options.max_round_retries and len(others) >= needed:
        return
    usable = len(record.clients) - len(record.failures)
    what = f"Every client of round {number} failed"
    if usable:
        what = f"Only {usable} of the {len(record.clients)} clients of round {number} were usable, {needed} are needed"
    if record.attempt > 1:
        what += f", at attempt {record.attempt}"
    client, failure = next(iter(record.failures.items()))
    raise TooFewClients(f"{what}; client {client}: {failure.summary}\n{failure.details}".rstrip())


def eligible(data: FederatedData, stage: Stage, round: int = 0) -> list[int]:
    """The clients that may take part in a round: those with samples to train on, and none of the unseen ones."""
    assignment = data.at_round(round)
    seen = range(data.num_clients - data.unseen_clients)
    return [k for k in seen if _has_samples(assignment, k, stage)]


def _has_samples(assignment: Assignment, k: int, stage: Stage) -> bool:
    """Whether a client has samples of its own that it may train on in a stage; without one it takes no part."""
    if stage.samples == "all":
        return len(assignment.train[k]) > 0
    return assignment.num_opted_in[k] > 0


def has_trained_or_may(state: FederationState, k: int, stage: Stage) -> bool:
    """Whether a client has a state of its own, or may still get one in this stage."""
    return bool(state.client_states.names(k)) or _has_samples(state.data.assignment, k, stage)


def cohort_size(options: Options, num_candidates: int) -> int:
    """Clients of a round that averages, of so many that may take part."""
    wanted = max(options.min_clients, int(options.fraction_fit * num_candidates + 0.5), 1)
    return min(wanted, num_candidates)


def fewest_usable(options: Options, stage: Stage, num_clients: int) -> int:
    """Minimum number of valid updates of a round: `trainer.min_clients`, or what the rule needs.

    Under `trainer.privacy` none: a round that depended on who took part would reveal it.
    """
    needed = options.min_clients
    if stage.upload == "aggregate":
        needed = 0 if options.privacy is not None else max(needed, fewest_uploads(options.aggregator))
    return min(needed, num_clients)


class TooFewClients(RuntimeError):
    """Too few clients of a round returned a valid update, or no new client could join."""
