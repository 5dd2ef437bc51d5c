"""How the copy that a client has just trained does on its own validation samples."""

from fedlit.engine.scoring.scores import evaluate
from fedlit.engine.scoring.tally import Scores
from fedlit.engine.states.state import FederationState
from fedlit.methods.stage import Stage
from fedlit.rng import derive, isolated


def scores_of_copy(state: FederationState, stage: Stage, round: int, k: int) -> Scores:
    """Of the copy of client k, which is loaded."""
    learner = stage.module or state.module
    network = learner if stage.own_models else learner.global_model()
    client = state.data.client(k, round)
    with isolated(derive(state.options.seed, "trained", stage.name, round, k)):
        return evaluate(state.fabric, network, client.val_batches(), state.measures)
