"""Predictions of the test set, or of a user's own images, and where they are left."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from fedlit.data.own_images import OwnImages
from fedlit.engine.evaluation import Scorer
from fedlit.engine.state import FederationState
from fedlit.records.reports import tell_which, write_predictions


def predict(state: FederationState, client: int | None, own: OwnImages | None, folder: Path | None) -> Tensor:
    """Class probabilities ``[N, C]``; the first process writes predictions_*.csv and says where.

    Args:
        state: Of the federation.
        client: Whose model; None is the global one.
        own: Images in place of the test set.
        folder: Of the run; where the user stands if there is none.
    """
    whose = "global" if client is None else f"client_{client}"
    more: dict[str, Sequence[object]] = {}
    if own is None:
        probabilities, target = Scorer(state).predict(client)
        more["label"] = target.tolist()
    else:
        probabilities, _ = Scorer(state).predict(client, own.batches(state.data, client))
        whose += f"_{own.name}"
        if own.files is not None:
            more["file"] = own.files
    if state.fabric.is_global_zero:
        tell_which(state.round, folder)
        print(write_predictions(folder or Path(), whose, probabilities, more))
    return probabilities
