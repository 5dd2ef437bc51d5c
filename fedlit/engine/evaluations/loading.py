"""The network that predicts: the global model or a client's own, with its values in the live module."""

from typing import TYPE_CHECKING

from torch import nn

from fedlit.engine.evaluations.personalising import make_its_own
from fedlit.engine.states.homes import bring

if TYPE_CHECKING:
    from fedlit.engine.evaluations.evaluation import Scorer


def loaded(scorer: "Scorer", client: int | None) -> nn.Module:
    """The global model, or that of a client as it would use it."""
    state = scorer.state
    if client is None:
        if not scorer.has_complete_global_model:
            method = type(state.module).__name__
            told = f"{method} has no global model; name one of its clients with `--client`"
            raise ValueError(f"{told}, in Python with `client=`.")
        state.load_global()
        return scorer.network
    _check_has_model(scorer, client)
    bring(state, [client])
    state.enter(client, "personal")
    make_its_own(state, scorer.stage, scorer.personal, client, state.round)
    return scorer.personal


def _check_has_model(scorer: "Scorer", client: int) -> None:
    number = scorer.state.data.num_clients
    if not 0 <= client < number:
        raise ValueError(f"`--client` must be 0 to {number - 1}, got {client}.")
    if not scorer.has_model(client):
        raise ValueError(f"`--client` {client} has trained no model of its own in stage {scorer.stage.name!r}.")
