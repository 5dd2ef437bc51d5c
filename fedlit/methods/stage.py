"""A part of a method's programme, such as federating, training at home, or distilling on the server."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fedlit.methods.base import FederatedModule


@dataclass(frozen=True)
class EarlyStopping:
    """Stop a visit on the client's own validation samples, and keep the best state.

    Attributes:
        metric: What is watched: `loss`, or one of the method's `metrics`, such as `acc`, which knows whether to rise.
        patience: Checks without improvement before a visit stops.
        check_every: Epochs between checks.
        first_check: The epoch after which the first check comes; 0 is before any training, so that the state which
            came may be the best.
    """

    metric: str = "loss"
    patience: int = 10
    check_every: int = 5
    first_check: int = 0

    def __post_init__(self) -> None:
        if self.first_check < 0:
            raise ValueError(f"`first_check` must be at least 0, got {self.first_check}.")
        if self.patience < 1 or self.check_every < 1:
            raise ValueError(
                f"`patience` and `check_every` must be at least 1, got {self.patience} and {self.check_every}."
            )

    def is_due(self, epoch: int) -> bool:
        """Whether there is a check after so many epochs.

        Example:
            >>> [epoch for epoch in range(20) if EarlyStopping(first_check=1).is_due(epoch)]
            [1, 6, 11, 16]
        """
        return epoch >= self.first_check and (epoch - self.first_check) % self.check_every == 0


@dataclass(frozen=True)
class Stage:
    """A part of a method's programme.

    Attributes:
        name: Shown in every record.
        module: The child whose `training_step` runs; None is the method itself.
        side: Who trains: the `clients`, or the `server`, on the public pool.
        rounds: How many; None is `trainer.num_rounds`.
        epochs: Local epochs of a visit; None is `trainer.local_epochs` or `trainer.local_steps`.
        samples: Train on `opted_in` samples only, or on `all` of the client's; what is uploaded must not know the rest.
        upload: `aggregate` the shared state; `collect` what the method names in `collected`, once, which the server
            keeps as it came; or `none`: nothing leaves a client, and every client is visited.
        public: Use of the public pool: `no`; `inputs`, mixed into a client's batches with target -1 or as the server's
            only samples; `labels`, which only a server may see, for an upper bound.
        needs: Prefix of state that a client must have trained in an earlier stage; one that failed there sits this out.
        early_stopping: When a visit stops before its last epoch; None is never.
        reported_as: What a client's model is called in the records; None: the stage trains nothing that classifies.
        reported_on_pooled: Evaluate the clients' models on the pooled test set, too.
    """

    name: str
    module: "FederatedModule | None" = None
    side: Literal["clients", "server"] = "clients"
    rounds: int | None = None
    epochs: int | None = None
    samples: Literal["opted_in", "all"] = "opted_in"
    upload: Literal["aggregate", "collect", "none"] = "aggregate"
    public: Literal["no", "inputs", "labels"] = "no"
    needs: str = ""
    early_stopping: EarlyStopping | None = None
    reported_as: str | None = "personal"
    reported_on_pooled: bool = False

    def __post_init__(self) -> None:
        if self.side == "clients" and self.public == "labels":
            raise ValueError(f"Stage {self.name!r}: clients never see the labels of the public pool.")
        if self.side == "server" and (self.upload != "none" or self.public == "no"):
            raise ValueError(f"Stage {self.name!r}: a server trains on the public pool and uploads nothing.")
