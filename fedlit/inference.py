"""After a fit: evaluations as printed, predictions, networks to deploy, and new clients that adapt a model."""

import copy
import csv
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn

from fedlit.data.datasets import OwnImages
from fedlit.data.preprocessing import Preprocessing
from fedlit.engine.client_store import copy_to_all_ranks
from fedlit.engine.evaluation import Scorer, personalised
from fedlit.engine.live_module import client_failure
from fedlit.engine.local_training import train
from fedlit.engine.metrics import MetricSet, Scores, each_output, evaluate
from fedlit.engine.plan import ClientState, Plan, UsageError
from fedlit.engine.precision import convert_input
from fedlit.engine.scheduling import TooFewClients
from fedlit.engine.state import FederationState
from fedlit.fast.memory import lay_out
from fedlit.inputs import applied, tensors
from fedlit.methods.base import FederatedModule, task_of
from fedlit.methods.stage import Stage
from fedlit.methods.states import twin
from fedlit.modes import evaluating
from fedlit.notices import Notice
from fedlit.records.best import BestTracker
from fedlit.records.files import write_whole
from fedlit.records.progress import score_rows, table
from fedlit.records.round_record import Failure
from fedlit.records.rows import CONVERGENCE, Row, lines, summary
from fedlit.rng import derive, isolated, preserved
from fedlit.tasks import Classification

Predictions = Tensor | list[Tensor]


def loaded(scorer: Scorer, client: int | None) -> nn.Module:
    """The global model, or that of a client as it would use it."""
    state = scorer.state
    if client is None:
        if not scorer.has_complete_global_model:
            raise ValueError(
                f"{type(state.module).__name__} has no global model; name one of its clients with `--client`, in "
                "Python with `client=`."
            )
        state.load_global()
        return scorer.network
    if not isinstance(client, Integral) or not 0 <= client < state.data.num_clients:
        raise ValueError(
            f"`--client` must be 0 to {state.data.num_clients - 1}, got {client!r}; in Python it is `client=`."
        )
    if not scorer.has_model(client):
        raise ValueError(f"`--client` {client} has trained no model of its own in stage {scorer.stage.name!r}.")
    copy_to_all_ranks(state, [client])
    return scorer.load_own(client, state.round)


def report(
    rows: Sequence[Row],
    name: str,
    round: int,
    folder: Path | None,
    failures: Mapping[int, Failure] | None = None,
    text: str | None = None,
) -> None:
    """Print a table and the clients that it lacks, and write the rows into the folder of the evaluated run.

    Args:
        rows: What was measured.
        name: Of their file.
        round: That was evaluated.
        folder: Of its run; None leaves nothing.
        failures: Clients that the rows are without.
        text: The table to print; by default, means over clients.
    """
    print_evaluated(round, folder)
    print(text or table(score_rows(summary(rows))))
    for k, failure in (failures or {}).items():
        print(f"without client {k}: {failure.reason}")
    if folder is not None:
        write_whole(folder / name, "".join([",".join(Row._fields) + "\n", *lines(rows)]))


def print_evaluated(round: int, folder: Path | None) -> None:
    """Print which round of which run is evaluated: `last` and `best` may mean another run than the user thinks."""
    of_run = "" if folder is None else f" of {folder}"
    print(f"Evaluating {f'round {round}{of_run}' if round else 'an untrained model'}.", file=sys.stderr)


def predict(state: FederationState, client: int | None, own: OwnImages | None, folder: Path | None) -> Predictions:
    """Predictions of the task; rank 0 writes predictions_* and prints where.

    Class probabilities ``[N, C]`` of a classification; batches that differ in shape, as texts do in length, are a list.

    Args:
        state: Of the federation.
        client: Whose model; None is the global one.
        own: Images in place of the test set.
        folder: Of the run; the current folder if there is none.
    """
    scorer = Scorer(state)
    batches = state.data.test_batches(client) if own is None else own.batches(state.data, client)
    task = task_of(state.module)
    parts: list[Tensor] = []
    targets: list[Any] = []
    with state.live.restored(scorer.before):
        for output, target in each_output(state.fabric, loaded(scorer, client), batches):
            parts.append(task.prediction(output).cpu())
            targets.append(move_data_to_device(target, torch.device("cpu")))
    predictions: Predictions = together(parts)
    if not state.fabric.is_global_zero:
        return predictions
    print_evaluated(state.round, folder)
    whose = "global" if client is None else f"client_{client}"
    target = together(targets)
    more = {}
    if own is not None:
        whose += f"_{own.name}"
        target = None
        more = {} if own.files is None else {"file": own.files}
    path = (folder or Path()) / f"predictions_{whose}.csv"
    if isinstance(task, Classification) and isinstance(predictions, Tensor):
        print(write_predictions(path, predictions, target, more))
    else:
        print(write_outputs(path, predictions, target, more))
    return predictions


def write_predictions(path: Path, probabilities: Tensor, label: Any, more: Mapping[str, Sequence[object]]) -> Path:
    """Write the likeliest class of every sample and its probability, ``[N, C]``, in order; returns the path.

    Args:
        path: The CSV to write.
        probabilities: Of classes.
        label: The true classes, if they are known.
        more: Further columns, such as names of files.
    """
    confidence, predicted = probabilities.max(dim=1)
    columns = {"predicted": predicted.tolist(), "probability": [f"{p:.6f}" for p in confidence.tolist()]}
    if isinstance(label, Tensor):
        columns["label"] = label.tolist()
    return _write_table(path, {**columns, **more})


def write_outputs(path: Path, outputs: Predictions, target: Any, more: Mapping[str, Sequence[object]]) -> Path:
    """Write a model's output for every sample, in order; returns the path.

    Numbers of a sample are columns of a CSV, beside those of its target; what has more dimensions, such as a map of
    pixels, is a torch file (.pt) with `predictions` and `targets`.

    Args:
        path: The CSV to write.
        outputs: ``[N]`` or ``[N, D]``, or of any shape; a list of batches that differ in theirs.
        target: Likewise, if there is one.
        more: Further columns, such as names of files.
    """
    columns = _columns("predicted", outputs)
    if columns is None:
        path = path.with_suffix(".pt")
        torch.save({"predictions": outputs, "targets": target, **more}, path)
        return path
    return _write_table(path, {**columns, **(_columns("target", target) or {}), **more})


def _columns(name: str, values: Any) -> dict[str, list[Any]] | None:
    """A column for each number of a sample; None if a table is not the place for them."""
    if not isinstance(values, Tensor) or values.ndim > 2:
        return None
    width = 1 if values.ndim == 1 else values.shape[1]
    names = [name] if width == 1 else [f"{name}_{i}" for i in range(width)]
    shown = values.reshape(-1, width).T.tolist()
    if values.is_floating_point():
        shown = [[f"{value:.9g}" for value in column] for column in shown]
    return dict(zip(names, shown, strict=True))


def _write_table(path: Path, columns: Mapping[str, Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["index", *columns])
        writer.writerows([index, *row] for index, row in enumerate(zip(*columns.values(), strict=True)))
    return path


def together(parts: list[Any]) -> Any:
    """All batches as one tensor, where they fit; else a list of them."""
    are_tensors = all(isinstance(part, Tensor) for part in parts)
    if are_tensors and len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(parts)
    return parts


def own_network(scorer: Scorer, client: int | None, with_preprocessing: bool) -> nn.Module:
    """A copy of the network that `predict` uses, on the CPU in evaluation mode."""
    data = scorer.state.data
    with scorer.state.live.restored(scorer.before):  # a fit may go on
        network = loaded(scorer, client)
        x = next(iter(data.test_batches(client).first(2)))[0]
        if with_preprocessing and not isinstance(x, Tensor):
            raise ValueError(f"`with_preprocessing` is for inputs that are one tensor, these are a {type(x).__name__}.")
        if isinstance(network, FederatedModule):
            fabric = scorer.state.fabric
            network = behind(network, convert_input(fabric, move_data_to_device(x, fabric.device)))
        methods = [part for part in network.modules() if isinstance(part, FederatedModule)]
        stays = {id(thing): None for part in methods for thing in (part.fabric, part.client)}  # with the federation
        own = copy.deepcopy(network, stays).cpu().eval()
    lay_out(own, torch.contiguous_format)
    for parameter in own.parameters():
        parameter.grad = None
    if not with_preprocessing:
        return own
    floating = [p.dtype for p in own.parameters() if p.is_floating_point()]
    steps = Preprocessing(data.inputs, client, floating[0] if floating else torch.float32)
    return nn.Sequential(steps, own).eval()


@torch.no_grad()
def behind(method: FederatedModule, x: Any) -> nn.Module:
    """The part of a method that does all that its `forward` does; the method itself if `forward` does more.

    It is found by running `forward`: it is given the same inputs, its output is returned, and by itself it returns the
    same (a method may call it with other weights by `torch.func.functional_call`).
    """
    heard: list[tuple[nn.Module, Any]] = []
    wanted = [*map(id, tensors(x))]

    def listen(part: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if [*map(id, tensors((given, named)))] == wanted:
            heard.append((part, output))

    def counted(output: Any) -> Tensor:
        return task_of(method).output(output)

    parts = [part for part in method.modules() if not isinstance(part, FederatedModule)]
    handles = [part.register_forward_hook(listen, with_kwargs=True) for part in parts]
    try:
        with evaluating(method):
            result = method(x)
            found = [part for part, output in heard if output is result]
            alike = [part for part in found if torch.equal(counted(applied(part, x)), counted(result))]
    finally:
        for handle in handles:
            handle.remove()
    return alike[-1] if alike else method  # the last to end is the outermost


STAGE = Stage("adapt", samples="all", upload="none")
CONVERGED = 0.005  # half a point below the best accuracy is as good as the best; of what is above 1, this share


class Alone(FederatedModule):
    """One network, and the loss of a method."""

    def __init__(self, network: nn.Module, method: FederatedModule) -> None:
        super().__init__(method.optimizer, task=task_of(method))
        self.network = network
        if not MetricSet(method, {}).are_of_classes:
            self.loss = method.loss  # type: ignore[method-assign]


def adapt(state: FederationState, epochs: int) -> tuple[list[Row], dict[int, Failure]]:
    """Let every unseen client join, on its own, without changing server or other clients; rows, and failures."""
    unseen = state.data.unseen_clients
    if epochs < 1:
        raise ValueError(f"`--epochs` must be at least 1, got {epochs}.")
    if not unseen:
        raise ValueError("`data.unseen_clients` must be at least 1: no client was kept out, so none can join.")
    rows: list[Row] = []
    failures: dict[int, Failure] = {}
    before = state.live.snapshot()
    for k in range(state.data.num_clients - unseen, state.data.num_clients):
        try:
            with state.live.restored(before):
                rows += _rows(state, k, epochs)
        except (Exception, SystemExit) as error:
            failures[k] = client_failure(error)
    if rows:
        return rows, failures
    for k, failure in failures.items():
        if failure.is_usage:
            raise UsageError(failure.reason.partition(": ")[2])
        raise TooFewClients(f"No unseen client could join; client {k}: {failure.summary}\n{failure.details}")
    raise ValueError("no unseen client has validation samples to be measured on; see `data.val_size`.")


def _rows(state: FederationState, k: int, epochs: int) -> list[Row]:
    """Scores of a new client by epoch."""
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


def table_of_epochs(rows: list[Row], measures: MetricSet) -> str:
    """Means over new clients: before any training, after the last epoch, and in the best."""
    measured = [row for row in rows if row.metric != CONVERGENCE]
    board = BestTracker(measures.directions, None)
    scores: dict[str, dict[str, float]] = {}
    for epoch in sorted({row.round for row in measured}):
        board.note(epoch, [row for row in measured if row.round == epoch])
        for key, parts in board.last.items():
            scores.setdefault(key, {"before": parts["mean"]})["after"] = parts["mean"]
    text = table(score_rows(scores, board.best_with_direction, columns=("before", "after"), over="epoch"))
    needed: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.metric == CONVERGENCE:
            needed[row.model].append(row.value)
    if needed:
        means = ", ".join(f"{model} {fmean(values):.1f}" for model, values in needed.items())
        text += f"\nepochs to converge, until a client is within {CONVERGED} of its own best: {means}"
    return text


def _learners(state: FederationState, k: int) -> Iterator[tuple[str, FederatedModule]]:
    """The method itself, and the two it is compared with, each as client k would start it."""
    state.load_client(k, "server")
    complete = Scorer(state, STAGE).has_complete_global_model
    yield "personal", twin(state.module)
    if complete:
        network = copy.deepcopy(state.module.global_model())
        yield "finetuned", Alone(network, state.module).to(state.fabric.device)
    state.live.original.restore_structure()
    state.live.load(state.initial)
    new = twin(state.module)
    new.on_client_start(None)  # its own frozen copies, if it has any
    yield "scratch", Alone(new.global_model(), state.module).to(state.fabric.device)


def _followed(state: FederationState, learner: FederatedModule, k: int, epochs: int) -> list[Scores]:
    """Scores on the client's validation samples before training and after each epoch."""
    client = replace(state.data.client(k, 1), samples=STAGE.samples)
    found: list[Scores] = []

    def score() -> None:
        seed = derive(state.options.seed, "adapt", k)
        with isolated(seed):
            network = personalised(state.fabric, learner, client, derive(seed, "personalise"))
            found.append(evaluate(state.fabric, network, client.val_batches(), state.measures))

    learner.stage = STAGE
    learner.on_client_start(client)  # it may start from what the server holds
    score()
    # One local training: what a method freezes is what the client received, not its own last epoch.
    plan = Plan(STAGE, state.options.seed, epochs, after_epoch=score)
    with preserved():
        trained = train(state.fabric, learner, client, plan, ClientState())
    if trained.overflowed:
        why = f"gradients overflowed and every step ({trained.overflowed}) was skipped (`trainer.precision` 16-mixed)"
        warnings.warn(f"Client {k} was not trained: {why}.", Notice, stacklevel=2)
    return found
