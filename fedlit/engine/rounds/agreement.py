"""How the uploads of a round become what all agree on: the rule of `trainer.aggregator`, handed to the method."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from fedlit.aggregation import Rule, Spread, State, Upload, defect, fewest_uploads
from fedlit.data import FederatedData
from fedlit.engine.module.log_sinks import noted
from fedlit.engine.options import Options
from fedlit.engine.states.state import shared_names
from fedlit.engine.turns.sampling import cohort_size, num_samples
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.methods.states import twin
from fedlit.privacy import Sealed
from fedlit.records.round_record import failure
from fedlit.rng import isolated


class RuleFailed(RuntimeError):
    """The rule of `trainer.aggregator` could not make one state of the uploads of a round."""


TRIED = 10  # so many uploads of a round are enough to see whether a rule works


@contextmanager
def combining_by(module: FederatedModule, rule: Rule | None) -> Iterator[None]:
    """Let a method's `combine` go by a rule; None is its mean."""
    before = module._rule
    if rule is not None:
        module._rule = partial(rule)  # not the rule itself: one that is a module would become a part of the method
    try:
        yield
    finally:
        module._rule = before


def watched_over(rule: Rule, round: int) -> Rule:
    """A rule whose mistakes are reported as its own."""

    def combined(uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        received = uploads if isinstance(uploads, Spread) else list(uploads)
        about = f"`trainer.aggregator` {_name(rule)} could not combine the {len(received)} uploads of round {round}"
        try:
            agreed = rule(received, current)
            problem = defect(Upload(-1, agreed), {key: current[key] for key in agreed if key in current})
        except (Exception, SystemExit) as error:  # a rule raises what it likes
            raise RuleFailed(f"{about}: {failure(error).reason}") from error
        if problem is not None:
            raise RuleFailed(f"{about}: it gave an impossible state, {problem}")
        return agreed

    return combined


def sealed(uploads: Iterable[Upload], options: Options) -> Iterable[Upload]:
    """Under `trainer.privacy` a method may pass uploads on, and look at none."""
    return uploads if options.privacy is None else Sealed(uploads)


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
    smallest = min(_largest_cohort(stage, data, options) for stage in averaged)
    if smallest < needed:
        raise ValueError(
            f"`trainer.aggregator` {name} needs {needed} uploads in a round, but a round has {smallest} clients; see "
            "`trainer.fraction_fit`, `trainer.min_clients` and `data.num_clients`."
        )
    try_out(rule, f"`trainer.aggregator` {name}", model, options, min(smallest, max(needed, TRIED)))


def _name(rule: Rule) -> str:
    return getattr(rule, "__name__", type(rule).__name__)


def _largest_cohort(stage: Stage, data: FederatedData, options: Options) -> int:
    """Clients of a round in which nobody fails."""
    seen = range(data.num_clients - data.unseen_clients)
    candidates = [k for k in seen if num_samples(data.assignment, k, stage)]
    return cohort_size(options, len(candidates))


def try_out(rule: Rule, option: str, model: FederatedModule, options: Options, num_uploads: int) -> None:
    """A copy of the method agrees on what it was made with; whoever does not ask the rule would ignore it."""
    trial = twin(model)
    names = shared_names(trial, options.batch_norm)
    state = trial.state_dict()
    shared = {name: state[name].clone() for name in names}
    elsewhere = trial.server_only + trial.download_only
    kept = {name: tensor.clone() for name, tensor in state.items() if name.startswith(elsewhere)}
    current = {**shared, **kept}
    sent = {**shared, **{name: tensor for name, tensor in state.items() if name.startswith(trial.upload_only)}}
    answers: list[State] = []

    def watched(uploads: Iterable[Upload], held: Mapping[str, Tensor]) -> State:
        answers.append(rule(uploads, held))
        return answers[-1]

    uploads = [Upload(k, dict(sent)) for k in range(num_uploads)]
    problem = None
    try:
        with isolated(0), noted(trial), combining_by(trial, watched):
            trial.aggregate(sealed(iter(uploads), options), current)
    except (Exception, SystemExit) as error:  # a rule raises what it likes
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    for answer in answers:
        problem = problem or defect(Upload(-1, answer), shared)
    if problem is None and not answers:
        raise ValueError(
            f"{option} would be ignored: `aggregate` of {type(model).__name__} does not ask for it; "
            "it would by `self.combine(uploads, current)`."
        )
    if problem is not None:
        raise ValueError(f"{option}, tried on uploads that are all equal: {problem}")
