"""Rounds under `trainer.privacy`: whether an experiment can be private, how a round is noised, what has been spent."""

import warnings
from collections.abc import Iterable

from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlit.aggregation import Rule
from fedlit.data import FederatedData
from fedlit.engine.options import Options
from fedlit.engine.rounds.agreement import try_out
from fedlit.engine.states.state import FederationState, shared_names
from fedlit.engine.turns.schedule import Schedule
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.notices import Notice
from fedlit.privacy import Accountant, ClientLevelDP, NoisedMean
from fedlit.records.rows import POOLED, Row
from fedlit.rng import derive_key


class Budget:
    """What a run's rounds cost, and whether the next is allowed; without `trainer.privacy` all are.

    Args:
        schedule: Rounds of stages that average cost; what stays at home is not released.
        options: Of the federation.
    """

    def __init__(self, schedule: Schedule, options: Options) -> None:
        self.schedule = schedule
        self.accountant: Accountant | None = None
        if options.privacy is not None:
            self.accountant = Accountant(options.privacy, options.fraction_fit)

    def epsilon(self, number: int) -> float | None:
        """After so many rounds of the run."""
        if self.accountant is None:
            return None
        return self.accountant.epsilon(self._num_paid(number))

    def refusal(self, number: int) -> str | None:
        """Why a round would be one too many, if it would."""
        if self.accountant is None or self.accountant.allows(self._num_paid(number)):
            return None
        privacy = self.accountant.privacy
        return (
            f"round {number} would come to epsilon {self.epsilon(number):.4g}, beyond `trainer.privacy.target_epsilon` "
            f"of {privacy.target_epsilon}: the run ends after round {number - 1}, at {self.epsilon(number - 1):.4g}."
        )

    def _num_paid(self, number: int) -> int:
        """How many of the first rounds cost."""
        paid = 0
        for part in self.schedule.parts:
            if part.stage.upload == "aggregate":
                paid += min(max(number - part.before, 0), part.length)
        return paid

    def told(self, number: int) -> dict[str, float]:
        """What events.jsonl says of it when a fit begins after so many rounds."""
        spent = self.epsilon(number)
        return {} if spent is None else {"epsilon": spent}

    def rows(self, number: int) -> list[Row]:
        """What metrics.csv says of it after a round."""
        spent = self.epsilon(number)
        if spent is None:
            return []
        return [Row(number, self.schedule.stage(number).name, POOLED, "global", "server", "epsilon", spent)]


def noised(state: FederationState, stage: Stage, number: int) -> Rule | None:
    """The rule of a round under `trainer.privacy`."""
    options = state.options
    if options.privacy is None:
        return None
    seed = options.privacy.noise_seed if state.secret is None else state.secret  # neither where there is no noise
    key = derive_key(str(seed), "privacy", stage.name, number)
    return NoisedMean(options.privacy, expected_clients(state.data, options), state.shared, key)


def trial_rule(model: FederatedModule, options: Options) -> Rule | None:
    """A rule under `trainer.privacy`, to be tried before the first round."""
    if options.privacy is None:
        return None
    return NoisedMean(options.privacy, 1.0, shared_names(model, options.batch_norm), derive_key(0, "trial"))


def expected_clients(data: FederatedData, options: Options) -> float:
    """Clients of a round on average; how many have samples, or have not failed, does not enter."""
    return options.fraction_fit * (data.num_clients - data.unseen_clients)


def check_privacy(model: FederatedModule, stages: list[Stage], data: FederatedData, options: Options) -> None:
    """All that leaves a client is noised, and there is a budget for at least one round."""
    privacy = options.privacy
    if privacy is None:
        return
    name = type(model).__name__
    for stage in stages:
        if stage.upload == "collect":
            raise ValueError(f"`trainer.privacy`: {name} collects clients' states as they are in stage {stage.name!r}.")
        if stage.followed_by is not None:
            raise ValueError(f"`trainer.privacy`: {name} learns from clients' states as they are after {stage.name!r}.")
        if stage.keep_uploads:
            raise ValueError(f"`trainer.privacy`: {name} keeps clients' states as they are in stage {stage.name!r}.")
    for beside in model.upload_only:
        raise ValueError(f"`trainer.privacy`: noise is for what is shared, and {name} also uploads {beside!r}.")
    if is_overridden("select_clients", model, FederatedModule):
        raise ValueError(
            f"`trainer.privacy`: every client is drawn by itself, and `select_clients` of {name} chooses them."
        )
    if all(stage.upload == "none" for stage in stages):
        raise ValueError(f"`trainer.privacy`: {name} uploads nothing, so there is nothing to protect.")
    _check_counts(privacy, data, options)
    names = shared_names(model, options.batch_norm)
    _check_floating(model, names)
    if not Accountant(privacy, options.fraction_fit).allows(1):
        raise ValueError(
            f"`trainer.privacy.target_epsilon` of {privacy.target_epsilon} does not allow a single round; one costs "
            f"{Accountant(privacy, options.fraction_fit).epsilon(1):.4g}. Raise `trainer.privacy.noise_multiplier`."
        )
    rule = trial_rule(model, options)
    assert rule is not None  # there is privacy
    try_out(rule, "`trainer.privacy`", model, options, num_uploads=2)
    if privacy.noise_seed is not None and privacy.noise_multiplier:
        told = "`trainer.privacy.noise_seed`: whoever has it can subtract the noise; config.yaml holds it."
        warnings.warn(told, Notice, stacklevel=2)
    if model.weighting != "uniform":
        told = f"`trainer.privacy`: every client counts the same, not by its {model.weighting}."
        warnings.warn(told, Notice, stacklevel=2)


def _check_counts(privacy: ClientLevelDP, data: FederatedData, options: Options) -> None:
    """Who takes part is drawn for each client by itself, and delta is small against the number of clients."""
    if options.min_clients > 1:
        raise ValueError(
            f"`trainer.min_clients` is {options.min_clients}, but under `trainer.privacy` every client takes part by "
            "itself with probability `trainer.fraction_fit`."
        )
    if privacy.delta >= 1 / data.num_clients:
        raise ValueError(
            f"`trainer.privacy.delta` must be below 1 / `data.num_clients` = {1 / data.num_clients:.3g}, got "
            f"{privacy.delta}: else to tell all of one client would be private."
        )


def _check_floating(model: FederatedModule, names: Iterable[str]) -> None:
    state = model.state_dict()
    for name in names:
        if not state[name].is_floating_point():
            raise ValueError(
                f"`trainer.privacy`: {name!r} is a counter, which noise cannot hide; for BatchNorm set "
                "`trainer.batch_norm: local`, or take GroupNorm."
            )
