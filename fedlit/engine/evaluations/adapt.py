"""A new client joins: it trains on its own samples from what the server holds, and sends nothing back.

Each is followed epoch by epoch beside two others of the global model's architecture, trained by the method's `loss`:
one that starts from the global model (`finetuned`), one from the weights that the federation started from (`scratch`).
How soon each is there is told as `epochs_to_converge`: the first epoch whose accuracy is within 0.005 of its best, or
whatever the task measures first.
"""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from fedlit.engine.evaluations.evaluation import Scorer
from fedlit.engine.evaluations.personalising import personalised
from fedlit.engine.plan import Memory, Plan
from fedlit.engine.scoring.measures import Measures, measures_classes
from fedlit.engine.scoring.scores import evaluate
from fedlit.engine.scoring.tally import Scores
from fedlit.engine.states.scoreboard import Scoreboard
from fedlit.engine.states.state import FederationState
from fedlit.engine.turns.quorum import TooFewClients
from fedlit.engine.usage import UsageError
from fedlit.engine.visits.visit import visit
from fedlit.methods.base import FederatedModule, task_of, twin
from fedlit.methods.stage import Stage
from fedlit.notices import Notice
from fedlit.records.pictures import draw_curves
from fedlit.records.progress import epochs_table
from fedlit.records.round_record import Failure
from fedlit.records.rows import CONVERGENCE, Row, summary
from fedlit.rng import derive, isolated

STAGE = Stage("adapt", samples="all", upload="none")
CONVERGED = 0.005  # half a point below the best accuracy is as good as the best; of what is above 1, this share


class Alone(FederatedModule):
    """One network, and the loss of a method."""

    def __init__(self, network: nn.Module, method: FederatedModule) -> None:
        super().__init__(method.optimizer, task=task_of(method))
        self.network = network
        if not measures_classes(method):
            self.loss = method.loss  # type: ignore[method-assign]


def adapt(state: FederationState, epochs: int) -> tuple[list[Row], dict[int, Failure]]:
    """Let every unseen client join, on its own; neither the server nor another client notices. And who could not.

    Args:
        state: Restored from where the federation ended.
        epochs: Passes over the client's samples.
    """
    unseen = state.data.unseen_clients
    if epochs < 1:
        raise ValueError(f"`--epochs` must be at least 1, got {epochs}.")
    if not unseen:
        raise ValueError("`data.unseen_clients` must be at least 1: no client was kept out, so none can join.")
    rows: list[Row] = []
    failures: dict[int, Failure] = {}
    before = state.live.snapshot()
    for k in range(state.data.num_clients - unseen, state.data.num_clients):
        found = state.live.attempt(partial(_rows, state, k, epochs), before)
        if isinstance(found, Failure):
            failures[k] = found
        else:
            rows += found
    if not rows and failures:
        k, failure = next(iter(failures.items()))
        if failure.is_usage:
            raise UsageError(failure.reason.partition(": ")[2])
        raise TooFewClients(f"No unseen client could join; client {k}: {failure.told}\n{failure.details}")
    if not rows:
        raise ValueError("no unseen client has validation samples to be measured on; see `data.val_size`.")
    return rows, failures


def _rows(state: FederationState, k: int, epochs: int) -> list[Row]:
    """What became of a new client, by epoch."""
    rows = []
    for name, learner in _learners(state, k):
        followed = _followed(state, learner, k, epochs)
        for epoch, scores in enumerate(followed):
            rows += [Row(epoch, STAGE.name, k, name, "unseen", metric, value) for metric, value in scores.items()]
        first = state.measures.first
        values = [scores[first] for scores in followed if first in scores]
        if len(values) == len(followed):  # a client may have no validation samples
            needed = epochs_to_converge(values, state.measures.rises(first))
            rows.append(Row(epochs, STAGE.name, k, name, "unseen", CONVERGENCE, needed))
    return rows


def epochs_to_converge(values: list[float], rises: bool = True) -> int:
    """The first epoch whose value is within 0.005 of the best; `values` begin before training, with epoch 0.

    Example:
        >>> epochs_to_converge([0.1, 0.5, 0.798, 0.79, 0.8])
        2
    """
    losses = [-value if rises else value for value in values]
    best = min(losses)
    enough = best + CONVERGED * max(1.0, abs(best))
    return next(epoch for epoch, loss in enumerate(losses) if loss <= enough)


def table_of_epochs(rows: list[Row], measures: Measures) -> str:
    """Means over new clients: before any training, after the last epoch, and in the best.

    Args:
        rows: Of `adapt`, whose rounds are epochs.
        measures: Which know whether a higher value is better.
    """
    measured = [row for row in rows if row.metric != CONVERGENCE]
    board = Scoreboard(measures, None)
    before: dict[str, float] = {}
    for epoch in sorted({row.round for row in measured}):
        board.note(epoch, [row for row in measured if row.round == epoch])
        for key, parts in board.last.items():
            before.setdefault(key, parts["mean"])
    after = {key: parts["mean"] for key, parts in board.last.items()}
    told = epochs_table(before, after, board.rated)
    needed = summary(row for row in rows if row.metric == CONVERGENCE)
    if needed:
        words = [f"{_model(key)} {parts['mean']:.1f}" for key, parts in needed.items()]
        told += f"\nepochs to converge, until a client is within {CONVERGED} of its own best: {', '.join(words)}"
    return told


def _model(key: str) -> str:
    return key.rpartition("/")[2].partition("_on_")[0]


def _learners(state: FederationState, k: int) -> Iterator[tuple[str, FederatedModule]]:
    """The method itself, and the two it is compared with, each as client k would start it."""
    state.enter(k, "server")
    complete = Scorer(state, STAGE).has_complete_global_model
    yield "personal", twin(state.module)
    if complete:
        network = copy.deepcopy(state.module.global_model())
        yield "finetuned", Alone(network, state.module).to(state.fabric.device)
    state.live.original.restore_structure()
    state.live.put(state.initial)
    new = twin(state.module)
    new.on_client_start(None)  # its own frozen copies, if it has any
    yield "scratch", Alone(new.global_model(), state.module).to(state.fabric.device)


def _followed(state: FederationState, learner: FederatedModule, k: int, epochs: int) -> list[Scores]:
    """Scores on the client's validation samples before training and after each epoch."""
    client = replace(state.data.client(k, 1), samples=STAGE.samples)
    found: list[Scores] = []

    def score() -> None:
        seed = derive(state.options.seed, "adapt", k)
        with isolated(seed), personalised(state.fabric, learner, client, derive(seed, "personalise")):
            found.append(evaluate(state.fabric, learner, client.val_batches(), state.measures))

    learner.stage = STAGE
    learner.on_client_start(client)  # it may start from what the server holds
    score()
    # One visit: what a method freezes is what the client received, not its own last epoch.
    plan = Plan(STAGE, state.options.seed, epochs, after_epoch=score)
    outcome = visit(state.fabric, learner, client, plan, (), Memory())
    if outcome.overflowed:
        why = f"gradients overflowed and every step ({outcome.overflowed}) was skipped (`trainer.precision` 16-mixed)"
        warnings.warn(f"Client {k} was not trained: {why}.", Notice, stacklevel=2)
    return found


def draw_adaptation(folder: Path, measures: Measures, title: str) -> None:
    """adapt.png, of what stands in adapt.csv."""
    draw_curves(
        folder / "adapt.csv",
        folder / "adapt.png",
        metric=measures.first,
        title=f"{title}: new clients of {folder.name}",
        told_as="epoch",
    )
