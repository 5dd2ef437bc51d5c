"""`trainer.server_optimizer`: a torch optimiser's step in place of what a round's uploads come to. Reddi et al., 2021.

    x' = step(x) with gradient x - combined

over what is shared, floating and trained; buffers, counters and frozen parameters take the combined value.
Law: SGD with rate 1 ends in the combined state (rounding).
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlit.aggregation import Mean, Rule, State, Upload, fewest_uploads
from fedlit.engine.module.freezing import trained_names
from fedlit.engine.options import Options
from fedlit.engine.plan import OptimizerState, is_plain
from fedlit.engine.rounds.agreement import try_out
from fedlit.engine.states.state import FederationState, shared_names
from fedlit.engine.visits.optimizers import check_settings, revived
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage

OPTION = "`trainer.server_optimizer`"


class ServerStep:
    """The rule of one round, with a step after it.

    Args:
        rule: From uploads to a state.
        factory: Builds the optimiser from parameters.
        names: Of what is stepped.
        momenta: What the optimiser held of them after the last round.

    Attributes:
        momenta: What it holds after this one; None before it is asked.
    """

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
        self.momenta = step(self.factory, parameters, self.before)
        return {**combined, **{name: parameter.detach() for name, parameter in parameters.items()}}


def step(factory: OptimizerCallable, parameters: Mapping[str, nn.Parameter], momenta: OptimizerState) -> OptimizerState:
    """One step of a new optimiser that goes on with what an earlier one held; what it holds afterwards, by name."""
    optimizer = _built(factory, parameters)
    names = {parameter: name for name, parameter in parameters.items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if names.get(parameter) in momenta:
                optimizer.state[parameter] = revived(momenta[names[parameter]], parameter, group)
    optimizer.step()
    found = {name: dict(optimizer.state[parameter]) for name, parameter in parameters.items()}
    if not is_plain(found):
        raise ValueError("it keeps what is neither tensor, number nor string.")
    return {name: values for name, values in found.items() if values}


def _built(factory: OptimizerCallable, parameters: Mapping[str, nn.Parameter]) -> Optimizer:
    optimizer = factory(parameters.values())
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"it must build an optimiser, got a {type(optimizer).__name__}.")
    return optimizer


def server_step(state: FederationState, stage: Stage, rule: Rule | None) -> ServerStep | None:
    """The rule of a round with a step after it; None without `trainer.server_optimizer`."""
    factory = state.options.server_optimizer
    if factory is None:
        return None
    names = trained_names(state.module, state.shared)
    return ServerStep(rule or Mean(), factory, names, state.server_momenta.get(stage.name, {}))


def check_server_optimizer(
    model: FederatedModule, stages: Sequence[Stage], options: Options, rule: Rule | None
) -> None:
    """The optimiser can be built and stepped, and what it makes is what the method asks for.

    Args:
        model: The method.
        stages: Of the method.
        options: Of the federation.
        rule: Before it; None is the mean.
    """
    factory = options.server_optimizer
    if factory is None:
        return
    shared = shared_names(model, options.batch_norm)
    names = trained_names(model, shared)
    if not names or all(stage.upload != "aggregate" for stage in stages):
        raise ValueError(f"{OPTION} would never be asked: {type(model).__name__} averages nothing that trains.")
    state = model.state_dict()
    try:
        parameters = {name: nn.Parameter(torch.zeros_like(state[name])) for name in names}
        check_settings(_built(factory, parameters), nn.Module())
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        step(factory, parameters, {})
    except Exception as error:  # an optimiser raises what it likes
        lines = str(error).splitlines() or [type(error).__name__]
        raise ValueError(lines[0] if OPTION[:-1] in lines[0] else f"{OPTION}: {lines[0]}") from error
    rule = rule or Mean()
    tried = ServerStep(rule, factory, names, {})
    try_out(tried, OPTION, model, options, num_uploads=max(2, fewest_uploads(rule)))


def check_kept(state: FederationState, stage: Stage, kept: Mapping[str, OptimizerState], path: str) -> None:
    """Refuse a checkpoint whose server optimiser held what this one does not know."""
    factory = state.options.server_optimizer
    momenta = kept.get(stage.name, {})
    if factory is None or not momenta:
        return
    theirs = {key for values in momenta.values() for key in values}
    problem = None
    try:
        ours = {key for values in step(factory, _zeros(state, momenta), {}).values() for key in values}
        if ours and not theirs & ours:
            problem = f"it keeps {', '.join(sorted(ours))}"
        else:
            step(factory, _zeros(state, momenta), momenta)
    except Exception as error:  # an optimiser raises what it likes
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    if problem is not None:
        raise ValueError(
            f"{OPTION} cannot go on from `--ckpt_path` {path}: what was kept is {', '.join(sorted(theirs))}; {problem}."
        )


def _zeros(state: FederationState, momenta: OptimizerState) -> dict[str, nn.Parameter]:
    parameters = {name: nn.Parameter(torch.zeros_like(state.global_state[name])) for name in momenta}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    return parameters
