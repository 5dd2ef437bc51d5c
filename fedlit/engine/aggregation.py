"""From the uploads of a round to the server's next state: rules, differential privacy, the server's optimiser."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.aggregation import RoundUploads, Rule, State, Upload, defect, weighted_mean
from fedlit.data.client import SERVER
from fedlit.engine.live_module import check_unchanged, trained_names
from fedlit.engine.logged_values import logging_to_means
from fedlit.engine.optimisation import restored_entry
from fedlit.engine.plan import OptimizerState, UsageError
from fedlit.engine.state import FederationState
from fedlit.methods.stage import Stage
from fedlit.privacy import NoisedMean, OpaqueUploads
from fedlit.records.plain_values import is_plain
from fedlit.records.round_record import failure
from fedlit.records.rows import POOLED, Row
from fedlit.rng import derive, derive_key, isolated

OPTION = "`trainer.server_optimizer`"


class RuleFailed(RuntimeError):
    """`trainer.aggregator` or `trainer.server_optimizer` could not make one state of the uploads of a round."""


class AggregationResult(NamedTuple):
    """The server's next state, what `trainer.server_optimizer` holds after it, and what `aggregate` has logged."""

    state: State
    momenta: dict[str, OptimizerState]
    rows: list[Row]


def aggregate_uploads(state: FederationState, stage: Stage, number: int, uploads: RoundUploads) -> AggregationResult:
    """What the method makes of the uploads of a round; what the server holds, if there are none."""
    options = state.options
    current = state.global_state
    module = state.module
    state.load_global()  # what `aggregate` may read of the module is the server's
    module.client = state.server(number)  # which has the round
    if stage.upload != "aggregate" or (not len(uploads) and options.privacy is None):
        return AggregationResult(current, state.server_optimizer_state, [])
    rule = RoundRule(state, stage, number)
    given_uploads = uploads if options.privacy is None else OpaqueUploads(uploads)  # to be passed on, not read
    constant = set(state.constant)
    copy = {name: tensor.clone() for name, tensor in current.items() if name not in constant}
    seed = derive(options.seed, "aggregate", stage.name, number)
    default = module._rule
    module._rule = rule
    try:
        with isolated(seed), logging_to_means(module) as logs:
            given = module.aggregate(given_uploads, copy)
    finally:
        module._rule = default
    rule.check_used()
    new_state = {**current, **given}
    if problem := defect(Upload(SERVER, new_state), current):
        raise UsageError(f"`aggregate` of {type(module).__name__} gave an impossible state: {problem}.")
    check_unchanged(new_state, state.constant_state, "in `aggregate`")
    # What was given may be the live module's tensors, in which the next client trains, or the method's own.
    own = {name: new_state[name].detach().clone() for name in given if name not in constant}
    momenta = state.server_optimizer_state if rule.momenta is None else {stage.name: rule.momenta}
    rows = [Row(number, stage.name, POOLED, "global", "server", name, value) for name, value in logs.result().items()]
    return AggregationResult({**current, **own}, momenta, rows)


class RoundRule:
    """What `combine` does in one round: the rule of the federation, then a step of `trainer.server_optimizer`.

    `momenta` are what the optimiser then holds.
    """

    def __init__(self, state: FederationState, stage: Stage, number: int) -> None:
        self.state = state
        self.stage = stage
        self.number = number
        self.momenta: OptimizerState | None = None
        self.was_used = False

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        options = self.state.options
        self.was_used = True
        combined = self._combined(uploads, current)
        if options.server_optimizer is None:
            return combined
        if self.momenta is not None:
            raise UsageError(f"{OPTION}: `aggregate` may combine uploads only once, its state is of one step a round.")
        names = trained_names(self.state.module, self.state.shared)
        parameters = {name: nn.Parameter(current[name].clone()) for name in names if name in combined}
        for name, parameter in parameters.items():
            parameter.grad = parameter.detach() - combined[name]
        try:
            self.momenta = self._step(options.server_optimizer, parameters)
        except Exception as error:  # an optimiser may raise anything
            raise RuleFailed(f"{OPTION} could not take a step: {failure(error).reason}") from error
        return {**combined, **{name: parameter.detach() for name, parameter in parameters.items()}}

    def check_used(self) -> None:
        """Refuse an `aggregate` that has not combined uploads by the rule that the user wants."""
        options = self.state.options
        wanted = [name for name in ("privacy", "aggregator", "server_optimizer") if getattr(options, name) is not None]
        if wanted and not self.was_used:
            option = f"`trainer.{wanted[0]}`"
            if options.aggregator is not None:
                option += f" {rule_name(options.aggregator)}"
            raise UsageError(
                f"{option} would be ignored: `aggregate` of {type(self.state.module).__name__} does not ask for it; it "
                "would by `self.combine(uploads, current)`."
            )

    def _combined(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        """By `trainer.privacy`, by `trainer.aggregator`, whose mistakes are reported as its own, or the mean."""
        state = self.state
        options = state.options
        if options.privacy is not None:
            # Neither where there is no noise.
            seed = options.privacy.noise_seed if state.secret is None else state.secret
            key = derive_key(str(seed), "privacy", self.stage.name, self.number)
            # How many clients have samples, or have not failed, does not enter.
            expected_clients = options.fraction_fit * (state.data.num_clients - state.data.unseen_clients)
            return NoisedMean(options.privacy, expected_clients, state.shared, key)(uploads, current)
        rule = options.aggregator
        if rule is None:
            return weighted_mean(uploads)
        expected = {name: current[name] for name in state.shared if name in current}
        received = uploads if isinstance(uploads, RoundUploads) else list(uploads)
        about = f"`trainer.aggregator` {rule_name(rule)} could not combine the {len(received)} uploads"
        about += f" of round {self.number}"
        try:
            new_state = rule(received, current)
            problem = defect(Upload(SERVER, new_state), expected)
        except (Exception, SystemExit) as error:  # a rule may raise anything
            raise RuleFailed(f"{about}: {failure(error).reason}") from error
        if problem is not None:
            raise RuleFailed(f"{about}: it gave an impossible state, {problem}")
        return new_state

    def _step(self, factory: OptimizerCallable, parameters: Mapping[str, nn.Parameter]) -> OptimizerState:
        """A step of a new optimiser that goes on with what the last one held; what it holds afterwards."""
        optimizer = factory(parameters.values())
        before = self.state.server_optimizer_state.get(self.stage.name, {})
        names = {parameter: name for name, parameter in parameters.items()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if held := before.get(names.get(parameter, "")):
                    optimizer.state[parameter] = restored_entry(held, parameter, group)
        optimizer.step()
        found = {name: dict(optimizer.state[parameter]) for name, parameter in parameters.items()}
        if not is_plain(found):
            raise ValueError("it keeps what is neither tensor, number nor string")
        return {name: values for name, values in found.items() if values}


def rule_name(rule: Rule) -> str:
    return getattr(rule, "__name__", type(rule).__name__)
