"""Stages of a method, such as federating, training on the client alone, or distilling on the server."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fedlit.data import FederatedData
    from fedlit.methods.base import FederatedModule


@dataclass(frozen=True)
class EarlyStopping:
    """Stop local training on the client's own validation samples, and keep the best state.

    Attributes:
        metric: `loss`, or one of the method's `metrics`, such as `acc`.
        patience: Checks without improvement before training stops.
        check_every: Epochs between checks.
        first_check: The epoch after which the first check comes; 0 is before any training, so that the first state may
            be the best.
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
        side: The `clients` train, or the `server`, on the public pool.
        rounds: Number of rounds; None is `trainer.num_rounds`.
        epochs: Local epochs in a round; None is `trainer.local_epochs` or `trainer.local_steps`.
        samples: Train on `opted_in` samples only, on `all` of the client's, which must not shape an upload, or on the
            `public` pool alone.
        upload: `aggregate` the shared state; `collect` what the method names in `collected`, once, which the server
            keeps for each client; or `none`: nothing leaves a client, and every client trains.
        public: Use of the public pool: `no`; `inputs`, mixed into a client's batches with target -1 or as the server's
            only samples; `labels`, for a server, as an upper bound, and for clients if the method has `labelled_pool`.
        needs: Prefix of state that a client must have trained in an earlier stage; one that failed there is left out.
        early_stopping: When training stops before its last epoch; None is never.
        reported_as: Name of a client's model in the records; None if the stage trains nothing that can be evaluated.
        reported_on_pooled: Evaluate the clients' models on the pooled test set, too.
        followed_by: A stage of the server at the end of every round, with this round's uploads and from the aggregated
            state; the round is evaluated after it. Its optimiser is new in every round, and at a constant rate, unless
            `trainer.optimizer_state` keeps all.
        keep_uploads: The server keeps every client's last upload, for the method's `download`; where that is
            overridden, a client's model is the one that it has uploaded last.
        own_models: Clients' models differ although the server holds all of them (networks of several architectures):
            they are evaluated as `reported_as`, too.
    """

    name: str
    module: "FederatedModule | None" = None
    side: Literal["clients", "server"] = "clients"
    rounds: int | None = None
    epochs: int | None = None
    samples: Literal["opted_in", "all", "public"] = "opted_in"
    upload: Literal["aggregate", "collect", "none"] = "aggregate"
    public: Literal["no", "inputs", "labels"] = "no"
    needs: str = ""
    early_stopping: EarlyStopping | None = None
    reported_as: str | None = "personal"
    reported_on_pooled: bool = False
    followed_by: "Stage | None" = None
    keep_uploads: bool = False
    own_models: bool = False

    def __post_init__(self) -> None:
        if self.side == "clients" and self.public == "labels" and self.samples != "public":
            raise ValueError(f"Stage {self.name!r}: clients never see the labels of the public pool among their own.")
        if self.side == "clients" and self.public == "no" and self.samples == "public":
            raise ValueError(f"Stage {self.name!r}: `samples: public` needs a `public` of inputs or labels.")
        if self.side == "server" and (self.upload != "none" or self.public == "no"):
            raise ValueError(f"Stage {self.name!r}: a server trains on the public pool and uploads nothing.")
        if self.keep_uploads and self.upload != "aggregate":
            raise ValueError(f"Stage {self.name!r}: `keep_uploads` is for uploads that are aggregated.")
        if self.followed_by is not None:
            self._check_follower(self.followed_by)

    def _check_follower(self, follower: "Stage") -> None:
        """It is the server's, and has this stage's rounds."""
        if self.side == "server" or self.upload != "aggregate":
            raise ValueError(f"Stage {self.name!r}: `followed_by` is for clients whose uploads are aggregated.")
        if follower.side == "clients" or follower.followed_by is not None or follower.rounds is not None:
            raise ValueError(
                f"Stage {self.name!r}: `followed_by` must be a stage of the server, without `rounds` and `followed_by`."
            )


def with_followers(stages: Iterable[Stage]) -> list[Stage]:
    """The stages of a method, each before the one that it is followed by.

    Example:
        >>> distil = Stage("distil", side="server", upload="none", public="inputs")
        >>> [stage.name for stage in with_followers([Stage("federate", followed_by=distil)])]
        ['federate', 'distil']
    """
    found: list[Stage] = []
    for stage in stages:
        found.append(stage)
        if stage.followed_by is not None:
            found.append(stage.followed_by)
    return found


def check_stages(stages: Sequence[Stage], model: "FederatedModule", data: "FederatedData") -> None:
    """Refuse stages without different names or a batch to train on, and those that use samples which they must not."""
    names = [stage.name for stage in with_followers(stages)]
    if not stages or len(set(names)) < len(names):
        raise ValueError(f"`configure_stages` of {type(model).__name__} must give stages of different names.")
    _check_trainable(stages, data)
    _check_opt_out(stages, data)
    _check_public(with_followers(stages), model, data)


def _check_trainable(stages: Sequence[Stage], data: "FederatedData") -> None:
    """Refuse stages in which no client has a batch to train on."""
    for stage in stages:
        if stage.side == "server":
            continue
        sizes = data.assignment.sizes.tolist() if stage.samples == "all" else data.assignment.num_opted_in
        sizes = sizes[: data.num_clients - data.unseen_clients]
        if not any(sizes):
            raise ValueError(f"No client may train in stage {stage.name!r}: all have opted out (see `data.opt_out`).")
        if (
            data.drop_last is True
            and stage.samples != "public"
            and not any(size >= data.batch_size_of(k) for k, size in enumerate(sizes))
        ):
            raise ValueError(f"`data.drop_last` leaves no client a batch in stage {stage.name!r}.")


def _check_opt_out(stages: Sequence[Stage], data: "FederatedData") -> None:
    """Refuse stages that upload what was trained on opted-out samples, then or in an earlier stage."""
    if all(mask.all() for mask in data.assignment.opted_in):
        return
    seen_all = False
    for stage in stages:
        if stage.upload != "none" and (stage.samples == "all" or seen_all):
            raise ValueError(
                f"Stage {stage.name!r} would upload what opted-out samples have shaped (see `data.opt_out`); "
                "upload first, and train on all samples afterwards."
            )
        seen_all |= stage.samples == "all"


def _check_public(stages: Sequence[Stage], model: "FederatedModule", data: "FederatedData") -> None:
    """Refuse stages that need a public pool which is not there, or labels of it that are not public."""
    for stage in stages:
        if stage.public == "no":
            continue
        if not data.public_pool:
            raise ValueError(f"Stage {stage.name!r} needs a public pool; set `data.public`, such as 0.8.")
        if stage.side == "clients" and stage.public == "labels" and not model.labelled_pool:
            raise ValueError(
                f"Stage {stage.name!r}: clients never see the labels of the public pool, unless the method declares "
                "them public (`labelled_pool = True`)."
            )
        is_alone = stage.side == "server" or stage.samples == "public"
        if is_alone and data.drop_last is True and len(data.public_pool) < data.batch_size:
            raise ValueError(f"`data.drop_last` leaves no batch of the pool in stage {stage.name!r}.")
