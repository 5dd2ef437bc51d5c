"""A part of a method's programme, such as federating, training at home, or distilling on the server."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fedlit.methods.base import FederatedModule


@dataclass(frozen=True)
class Stage:
    """A part of a method's programme.

    Attributes:
        name: Shown in every record.
        module: The child whose `training_step` runs; None is the method itself.
        side: Who trains: the `clients`, or the `server`, on the public pool.
        rounds: How many; None is `trainer.num_rounds`.
        epochs: Local epochs of a visit; None is `trainer.local_epochs` or `trainer.local_steps`.
        split: Train on `shared` samples only, or on `all` of the client's; what is uploaded must not know the others.
        exchange: Upload and aggregate the shared state; without it nothing leaves a client and every client is visited.
        collect: Upload what the method names in `collected`, once: the server keeps it as it came.
        public: Use of the public pool: `no`; `inputs`, mixed into a client's batches with target -1 or as the server's
            only samples; `labels`, which only a server may see, for an upper bound.
        needs: Prefix of state that a client must have trained in an earlier stage; one that failed there sits this out.
        monitor: Stop a visit early on the client's own validation `loss` or `acc`, and keep the best state.
        patience: Checks without improvement before a visit stops.
        check_every: Epochs between checks.
        model: What a client's model is called in the records; None: the stage trains nothing that classifies.
        pooled: Evaluate the clients' models on the pooled test set, too.
    """

    name: str
    module: "FederatedModule | None" = None
    side: Literal["clients", "server"] = "clients"
    rounds: int | None = None
    epochs: int | None = None
    split: Literal["shared", "all"] = "shared"
    exchange: bool = True
    collect: bool = False
    public: Literal["no", "inputs", "labels"] = "no"
    needs: str = ""
    monitor: Literal["loss", "acc"] | None = None
    patience: int = 10
    check_every: int = 5
    model: str | None = "personal"
    pooled: bool = False

    def __post_init__(self) -> None:
        if self.side == "clients" and self.public == "labels":
            raise ValueError(f"Stage {self.name!r}: clients never see the labels of the public pool.")
        if self.side == "server" and (self.exchange or self.collect or self.public == "no"):
            raise ValueError(f"Stage {self.name!r}: a server trains on the public pool and exchanges nothing.")
        if self.exchange and self.collect:
            raise ValueError(f"Stage {self.name!r}: uploads are aggregated or collected, not both.")
