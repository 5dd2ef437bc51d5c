"""A client's model on its way through the epochs of a visit at home, such as the curves before a distillation."""

from collections.abc import Iterator

from fedlit.data.client import Client
from fedlit.data.loaded import AnyBatches
from fedlit.engine.evaluations.personalising import personalised
from fedlit.engine.scoring.scores import evaluate
from fedlit.engine.states.state import FederationState
from fedlit.methods.stage import Stage
from fedlit.rng import derive, isolated

EpochValues = list[tuple[int, str, str, float]]  # epoch, data, metric and value


def is_followed(stage: Stage) -> bool:
    """Whether a stage trains a client's own model that classifies; a copy that is averaged has rounds to be told by."""
    return stage.side == "clients" and stage.upload != "aggregate" and stage.reported_as is not None


class EpochScores:
    """Evaluates the live model when an epoch has ended; training goes on as if it had not.

    Args:
        state: Of the federation; its live module is in the middle of a visit.
        stage: What is trained.
        client: Who trains.
        every: Epochs between evaluations.
    """

    def __init__(self, state: FederationState, stage: Stage, client: Client, every: int) -> None:
        self.state = state
        self.stage = stage
        self.client = client
        self.every = every
        self.epoch = 0
        self.values: EpochValues = []

    def __call__(self) -> None:
        self.epoch += 1
        if self.epoch % self.every:
            return
        learner = self.stage.module or self.state.module
        seed = derive(self.state.options.seed, "epochs", self.stage.name, self.client.round, self.client.id, self.epoch)
        personal = personalised(self.state.fabric, learner, self.client, derive(seed, "personalise"))
        with isolated(seed), personal:
            for data, batches in self._samples():
                scores = evaluate(self.state.fabric, learner, batches, self.state.measures)
                self.values += [(self.epoch, data, metric, value) for metric, value in scores.items()]

    def _samples(self) -> Iterator[tuple[str, AnyBatches]]:
        """What it is evaluated on when the visit is over, too."""
        data = self.state.data
        k = self.client.id
        yield "own", self.client.val_batches()
        if data.at_round(self.client.round).own_test:
            batches, _ = data.own_test_batches([k], self.client.round)
            yield "own_test", batches
        if self.stage.reported_on_pooled:
            yield "pooled", data.test_batches(k)
