"""Predictions of the test set, or of a user's own images, and where they are left."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlit.data.own_images import OwnImages
from fedlit.engine.evaluations.evaluation import Scorer
from fedlit.engine.states.state import FederationState
from fedlit.methods.base import task_of
from fedlit.records.reports import tell_which, write_outputs, write_predictions
from fedlit.tasks import Classification

Predictions = Tensor | list[Tensor]


def predict(state: FederationState, client: int | None, own: OwnImages | None, folder: Path | None) -> Predictions:
    """What the task takes outputs for; the first process writes predictions_* and says where.

    Class probabilities ``[N, C]`` of a classification; batches that differ in shape, as texts do in length, are a list.

    Args:
        state: Of the federation.
        client: Whose model; None is the global one.
        own: Images in place of the test set.
        folder: Of the run; where the user stands if there is none.
    """
    whose = "global" if client is None else f"client_{client}"
    batches = None
    if own is not None:
        batches = own.batches(state.data, client)
        whose += f"_{own.name}"
    found, targets = Scorer(state).predict(client, batches)
    predictions = together(found)
    if state.fabric.is_global_zero:
        tell_which(state.round, folder)
        target = together(targets) if own is None else None
        files = None if own is None else own.files
        print(_written(state, folder or Path(), whose, predictions, target, files))
    return predictions


def together(parts: list[Any]) -> Any:
    """Of all batches as one, where they are tensors that fit; else a list of them."""
    are_tensors = all(isinstance(part, Tensor) for part in parts)
    if are_tensors and len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(parts)
    return parts


def _written(
    state: FederationState, folder: Path, whose: str, predictions: Predictions, target: Any, files: list[str] | None
) -> Path:
    """Where they are left: classes with their probabilities, or outputs as they are."""
    more = {} if files is None else {"file": files}
    if isinstance(task_of(state.module), Classification) and isinstance(predictions, Tensor):
        if isinstance(target, Tensor):
            more = {"label": target.tolist(), **more}
        return write_predictions(folder, whose, predictions, more)
    return write_outputs(folder, whose, predictions, target, more)
