"""From the uploads of a round to the server's next state: rules, differential privacy, the server's optimiser."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from fedlit.aggregation import Mean, RoundUploads, Rule, State, Upload, defect, fewest_uploads
from fedlit.data import FederatedData
from fedlit.data.client import SERVER
from fedlit.engine.live_module import check_unchanged, trained_names
from fedlit.engine.logged_values import logging_to_means
from fedlit.engine.optimisation import check_settings, revived
from fedlit.engine.options import Options
from fedlit.engine.plan import OptimizerState, UsageError
from fedlit.engine.scheduling import cohort_size, eligible
from fedlit.engine.state import FederationState, shared_names
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.methods.states import twin
from fedlit.notices import Notice
from fedlit.privacy import Accountant, NoisedMean, OpaqueUploads
from fedlit.records.plain_values import is_plain
from fedlit.records.round_record import failure
from fedlit.records.rows import POOLED, Row
from fedlit.rng import derive, derive_key, isolated


class RuleFailed(RuntimeError):
    """The rule of `trainer.aggregator` could not make one state of the uploads of a round."""


class Aggregate(NamedTuple):
    """The server's next state, what `trainer.server_optimizer` holds after it, and what `aggregate` has logged."""

    state: State
    momenta: dict[str, OptimizerState]
    rows: list[Row]


def aggregated(state: FederationState, stage: Stage, number: int, uploads: RoundUploads) -> Aggregate:
    """What the method makes of the uploads of a round; what the server holds, if there are none."""
    options = state.options
    current = state.global_state
    module = state.module
    state.load_global()  # what `aggregate` may read of the module is the server's
    module.client = state.live.client  # and the round
    if stage.upload != "aggregate" or (not len(uploads) and options.privacy is None):
        return Aggregate(current, state.server_momenta, [])
    rule = noised(state, stage, number)
    if options.aggregator is not None:
        rule = with_rule_errors(options.aggregator, number)
    step = None
    if options.server_optimizer is not None:
        names = trained_names(module, state.shared)
        step = ServerStep(rule or Mean(), options.server_optimizer, names, state.server_momenta.get(stage.name, {}))
    constant = set(state.constant)
    copy = {name: tensor.clone() for name, tensor in current.items() if name not in constant}
    seed = derive(options.seed, "aggregate", stage.name, number)
    with isolated(seed), logging_to_means(module) as logs, combining_by(module, step or rule):
        given = module.aggregate(opaque(uploads, options), copy)
    agreed = {**current, **given}
    if problem := defect(Upload(SERVER, agreed), current):
        raise UsageError(f"`aggregate` of {type(module).__name__} gave an impossible state: {problem}.")
    check_unchanged(agreed, state.constant_state, "in `aggregate`")
    # What was given may be the live module's tensors, in which the next client trains, or the method's own.
    own = {name: agreed[name].detach().clone() for name in given if name not in constant}
    momenta = state.server_momenta if step is None or step.momenta is None else {stage.name: step.momenta}
    rows = [Row(number, stage.name, POOLED, "global", "server", name, value) for name, value in logs.result().items()]
    return Aggregate({**current, **own}, momenta, rows)


TRIED = 10  # so many uploads of a round are enough to see whether a rule works


@contextmanager
def combining_by(module: FederatedModule, rule: Rule | None) -> Iterator[None]:
    """Within, a method's `combine` uses a rule; None is its mean."""
    before = module._rule
    if rule is not None:
        module._rule = partial(rule)  # not the rule itself: one that is a module would become a part of the method
    try:
        yield
    finally:
        module._rule = before


def with_rule_errors(rule: Rule, round: int) -> Rule:
    """A rule whose mistakes are reported as its own."""

    def combined(uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        received = uploads if isinstance(uploads, RoundUploads) else list(uploads)
        about = f"`trainer.aggregator` {_name(rule)} could not combine the {len(received)} uploads of round {round}"
        try:
            agreed = rule(received, current)
            problem = defect(Upload(-1, agreed), {key: current[key] for key in agreed if key in current})
        except (Exception, SystemExit) as error:  # a rule may raise anything
            raise RuleFailed(f"{about}: {failure(error).reason}") from error
        if problem is not None:
            raise RuleFailed(f"{about}: it gave an impossible state, {problem}")
        return agreed

    return combined


def opaque(uploads: RoundUploads | list[Upload], options: Options) -> Iterable[Upload]:
    """Under `trainer.privacy` a method may pass uploads on, but read none."""
    return uploads if options.privacy is None else OpaqueUploads(uploads)


def check_aggregator(model: FederatedModule, stages: list[Stage], data: FederatedData, options: Options) -> None:
    """The rule is asked by this method, can be called, and a round is large enough for it."""
    rule = options.aggregator
    if rule is None:
        return
    name = _name(rule)
    averaged = [stage for stage in stages if stage.upload == "aggregate"]
    if not averaged:
        raise ValueError(f"`trainer.aggregator` {name} would never be asked: {type(model).__name__} averages nothing.")
    needed = fewest_uploads(rule)
    smallest = min(cohort_size(options, len(eligible(data, stage))) for stage in averaged)
    if smallest < needed:
        raise ValueError(
            f"`trainer.aggregator` {name} needs {needed} uploads in a round, but a round has {smallest} clients; see "
            "`trainer.fraction_fit`, `trainer.min_clients` and `data.num_clients`."
        )
    try_out(rule, f"`trainer.aggregator` {name}", model, options, min(smallest, max(needed, TRIED)))


def _name(rule: Rule) -> str:
    return getattr(rule, "__name__", type(rule).__name__)


def try_out(rule: Rule, option: str, model: FederatedModule, options: Options, num_uploads: int) -> None:
    """Let a copy of the method aggregate equal uploads; refuse a rule that fails, or that `aggregate` ignores."""
    trial = twin(model)
    state = {name: tensor.clone() for name, tensor in trial.state_dict().items()}
    shared = {name: state[name] for name in shared_names(trial, options.batch_norm)}
    beside = trial.server_only + trial.download_only
    held = shared | {name: tensor for name, tensor in state.items() if name.startswith(beside)}
    sent = shared | {name: tensor for name, tensor in state.items() if name.startswith(trial.upload_only)}
    answers: list[State] = []

    def noted(uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        answers.append(rule(uploads, current))
        return answers[-1]

    uploads = [Upload(k, dict(sent)) for k in range(num_uploads)]
    try:
        with isolated(0), logging_to_means(trial), combining_by(trial, noted):
            trial.aggregate(opaque(uploads, options), held)
        problem = next(filter(None, (defect(Upload(SERVER, answer), shared) for answer in answers)), None)
    except (Exception, SystemExit) as error:  # a rule may raise anything
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if problem is not None:
        raise ValueError(f"{option}, tried on uploads that are all equal: {problem}")
    if not answers:
        raise ValueError(
            f"{option} would be ignored: `aggregate` of {type(model).__name__} does not ask for it; "
            "it would by `self.combine(uploads, current)`."
        )


def noised(state: FederationState, stage: Stage, number: int) -> Rule | None:
    """The rule of a round under `trainer.privacy`."""
    options = state.options
    if options.privacy is None:
        return None
    seed = options.privacy.noise_seed if state.secret is None else state.secret  # neither where there is no noise
    key = derive_key(str(seed), "privacy", stage.name, number)
    # How many clients have samples, or have not failed, does not enter.
    expected_clients = options.fraction_fit * (state.data.num_clients - state.data.unseen_clients)
    return NoisedMean(options.privacy, expected_clients, state.shared, key)


def trial_rule(model: FederatedModule, options: Options) -> Rule | None:
    """A rule under `trainer.privacy`, to be tried before the first round."""
    if options.privacy is None:
        return None
    return NoisedMean(options.privacy, 1.0, shared_names(model, options.batch_norm), derive_key(0, "trial"))


def check_privacy(model: FederatedModule, stages: list[Stage], data: FederatedData, options: Options) -> None:
    """All that leaves a client is noised, and there is a budget for at least one round."""
    privacy = options.privacy
    rule = trial_rule(model, options)
    if privacy is None or rule is None:
        return
    if problem := _unprotected(model, stages, options):
        raise ValueError(f"`trainer.privacy`: {problem}")
    if options.min_clients > 1:
        raise ValueError(
            f"`trainer.min_clients` is {options.min_clients}, but under `trainer.privacy` every client takes part by "
            "itself with probability `trainer.fraction_fit`."
        )
    if privacy.delta >= 1 / data.num_clients:
        raise ValueError(
            f"`trainer.privacy.delta` must be below 1 / `data.num_clients` = {1 / data.num_clients:.3g}, got "
            f"{privacy.delta}: else publishing all data of one client would count as private."
        )
    accountant = Accountant(privacy, options.fraction_fit)
    if not accountant.allows(1):
        raise ValueError(
            f"`trainer.privacy.target_epsilon` of {privacy.target_epsilon} does not allow a single round; one costs "
            f"{accountant.epsilon(1):.4g}. Raise `trainer.privacy.noise_multiplier`."
        )
    try_out(rule, "`trainer.privacy`", model, options, num_uploads=2)
    if privacy.noise_seed is not None and privacy.noise_multiplier:
        message = "`trainer.privacy.noise_seed`: whoever has it can subtract the noise; config.yaml holds it."
        warnings.warn(message, Notice, stacklevel=2)
    if model.weighting != "uniform":
        message = f"`trainer.privacy`: every client counts the same, not by its {model.weighting}."
        warnings.warn(message, Notice, stacklevel=2)


def _unprotected(model: FederatedModule, stages: list[Stage], options: Options) -> str | None:
    """What would leave a client without noise, or could not be noised."""
    name = type(model).__name__
    for stage in stages:
        if stage.upload == "collect":
            return f"{name} collects clients' states as they are in stage {stage.name!r}."
        if stage.followed_by is not None or stage.keep_uploads:
            return f"{name} uses clients' states as they are after stage {stage.name!r}."
    if model.upload_only:
        return f"noise is for what is shared, and {name} also uploads {model.upload_only[0]!r}."
    if is_overridden("select_clients", model, FederatedModule):
        return f"every client is drawn by itself, and `select_clients` of {name} chooses them."
    if all(stage.upload == "none" for stage in stages):
        return f"{name} uploads nothing, so there is nothing to protect."
    state = model.state_dict()
    for entry in shared_names(model, options.batch_norm):
        if not state[entry].is_floating_point():
            return (
                f"{entry!r} is a counter, which noise cannot hide; for BatchNorm set `trainer.batch_norm: local`, or "
                "take GroupNorm."
            )
    return None


OPTION = "`trainer.server_optimizer`"


class ServerStep:
    """The rule of one round, with a step of `trainer.server_optimizer` after it; `momenta` are what that then holds."""

    def __init__(self, rule: Rule, factory: OptimizerCallable, names: Sequence[str], momenta: OptimizerState) -> None:
        self.rule = rule
        self.factory = factory
        self.names = names
        self.before = momenta
        self.momenta: OptimizerState | None = None

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        if self.momenta is not None:
            raise ValueError(f"{OPTION}: `aggregate` may combine uploads only once, its state is of one step a round.")
        combined = self.rule(uploads, current)
        parameters = {name: nn.Parameter(current[name].clone()) for name in self.names if name in combined}
        for name, parameter in parameters.items():
            parameter.grad = parameter.detach() - combined[name]
        self.momenta = self._step(parameters)
        return {**combined, **{name: parameter.detach() for name, parameter in parameters.items()}}

    def _step(self, parameters: Mapping[str, nn.Parameter]) -> OptimizerState:
        """A step of a new optimiser that goes on with what the last one held; what it holds afterwards."""
        optimizer = self.factory(parameters.values())
        names = {parameter: name for name, parameter in parameters.items()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                held = self.before.get(names.get(parameter, ""))
                if held is not None:
                    optimizer.state[parameter] = revived(held, parameter, group)
        optimizer.step()
        found = {name: dict(optimizer.state[parameter]) for name, parameter in parameters.items()}
        if not is_plain(found):
            raise ValueError("it keeps what is neither tensor, number nor string.")
        return {name: values for name, values in found.items() if values}


def check_server_optimizer(
    model: FederatedModule, stages: Sequence[Stage], options: Options, rule: Rule | None
) -> None:
    """The optimiser can be built and stepped, and what it makes is what the method asks for."""
    factory = options.server_optimizer
    if factory is None:
        return
    names = trained_names(model, shared_names(model, options.batch_norm))
    if not names or all(stage.upload != "aggregate" for stage in stages):
        raise ValueError(f"{OPTION} would never be asked: {type(model).__name__} averages nothing that trains.")
    state = model.state_dict()
    try:
        check_settings(factory([nn.Parameter(state[name].clone()) for name in names]), nn.Module())
    except Exception as error:  # an optimiser may raise anything
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(line if OPTION[:-1] in line else f"{OPTION}: {line}") from error
    rule = rule or Mean()
    try_out(ServerStep(rule, factory, names, {}), OPTION, model, options, num_uploads=max(2, fewest_uploads(rule)))
