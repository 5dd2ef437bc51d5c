"""The updates of a round: validated, then kept until they are aggregated and committed."""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlit.aggregation import NOTHING, RoundUploads, RunningMean, State, Upload, defect, weighted_mean
from fedlit.aggregation.uploads import out_of_proportion
from fedlit.data.client import SERVER
from fedlit.engine.client_store import ClientStore, SpillStore, UploadStore
from fedlit.engine.live_module import client_failure
from fedlit.engine.plan import ClientState, LocalResult, Plan, UsageError
from fedlit.engine.processes import broadcast
from fedlit.engine.state import Download, FederationState
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure


class UploadValidator:
    """Checks what the clients of one round return."""

    def __init__(self, state: FederationState, stage: Stage, number: int, plan_for: Callable[[int], Plan]) -> None:
        self.state = state
        self.stage = stage
        self.number = number
        self.plan_for = plan_for
        self.expected = state.expected_upload(SERVER)  # of everybody, unless clients are sent different states
        self.asks_method = is_overridden("check_upload", state.module, FederatedModule)

    def problem(self, outcome: LocalResult, sent: Download | None) -> Failure | None:
        """Why a client's result cannot be used, or None."""
        try:
            if outcome.validation_logs:
                self._check_names(outcome.validation_logs)
            problem = None if outcome.upload is None else self._defect(outcome.upload, sent)
            for kept in (outcome.client_state.state, outcome.client_state.residual):
                if kept and problem is None:
                    problem = defect(Upload(SERVER, kept), kept)
        except Exception as error:  # tensors of unknown kinds may refuse any operation
            return client_failure(error)
        return None if problem is None else Failure(f"unusable state: {problem}{hint(problem)}")

    def _defect(self, upload: Upload, sent: Download | None) -> str | None:
        if self.stage.upload == "collect":  # clients may differ in their shapes
            return defect(upload, upload.state)
        expected = self.expected if sent is None else self.state.expected_upload(upload.client, sent)
        problem = defect(upload, expected)
        if problem is None and self.asks_method:
            self._ask_method(upload)
        return problem

    def _ask_method(self, upload: Upload) -> None:
        """What a method knows of its uploads; it raises if one cannot be."""
        client = self.state.data.client(upload.client, self.number)
        available = len(client.train_batches(None, self.stage.samples, self.stage.public))
        num_steps = self.plan_for(upload.client).num_steps(available)
        self.state.module.check_upload(client, upload.state, num_steps)

    def _check_names(self, validation_logs: dict[str, float]) -> None:
        """Refuse names of validation logs that the federation uses for its own metrics."""
        for name in set(self.state.measures.names) & validation_logs.keys():
            raise UsageError(
                f"`self.log({name!r}, ...)` in validation: the federation measures {name!r} on the same samples; "
                "log under another name."
            )


def hint(problem: str) -> str:
    """What a user may check."""
    return " (is the lr too high, or the scale of the inputs?)" if problem.endswith("is not finite") else ""


class BufferedUploads(RoundUploads):
    """Uploads that are wanted together, or more than once, in client order.

    On several processes each lies on the rank that trained its client, and all ranks must ask for the same. Above the
    budget of the store they go to files. `like` has the names, shapes and dtypes of each, if they are all alike.
    """

    def __init__(self, fabric: Fabric, store: SpillStore, like: State | None) -> None:
        self.fabric = fabric
        self.like = like
        self.weights: dict[int, float] = {}
        self._ranks: dict[int, int] = {}
        self._own = UploadStore(store)

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[Upload]:
        """A copy of each: who changes one finds it next time as it came, as from another rank or from a file."""
        for k in sorted(self._ranks):
            own = self._own_upload(k).copy().state if k in self._own else None
            yield Upload(k, broadcast(self.fabric, own, self._ranks[k]), self.weights[k])

    def add(self, upload: Upload) -> None:
        """Keep a copy on this rank: the tensors may be the live ones."""
        self._own[upload.client] = upload.copy().state
        self.record_remote(upload.client, upload.weight, self.fabric.global_rank)

    def record_remote(self, client: int, weight: float, rank: int) -> None:
        """Note that a rank keeps a client's upload."""
        self._ranks[client] = rank
        self.weights[client] = weight

    def drop(self, client: int) -> None:
        """Forget a client's."""
        del self._ranks[client]
        del self.weights[client]
        self._own.forget(client)

    def mean(self) -> State:
        """The running sum goes from rank to rank in client order: the same additions as on one process."""
        if not self._ranks:
            raise ValueError(NOTHING)
        if self.like is None:
            return weighted_mean(iter(self))
        first = min(self._ranks)
        mean = RunningMean()
        mean_device = torch.device("cpu") if self.fabric.device.type == "mps" else None  # which has no float64
        for rank, clients in groupby(sorted(self._ranks), key=self._ranks.__getitem__):  # consecutive ones on one rank
            if rank == self.fabric.global_rank:
                for k in clients:
                    mean.add(self._own_upload(k))
            mean.sums, mean.total = broadcast(self.fabric, [mean.sums, mean.total], rank, mean_device)
            mean.first = mean.first or Upload(first, self.like, self.weights[first])
        return mean.mean()

    def _own_upload(self, k: int) -> Upload:
        return Upload(k, self._own[k], self.weights[k])


class RoundUpdates:
    """What the valid clients of a round return, until it is committed: uploads, and what stays with each client.

    On several processes tensors are kept on the rank that trained the client (`keep`); all ranks know whose (`know`).
    """

    def __init__(self, state: FederationState, stage: Stage, is_buffered: bool, owners: Mapping[int, int]) -> None:
        store = state.client_states.store
        self.state = state
        self.stage = stage
        self.owners = owners
        self.client_states = ClientStore(store)
        self.collected = UploadStore(store)
        self.norms: dict[int, float] = {}
        self.uploads: RunningMean | BufferedUploads = RunningMean()
        if is_buffered or owners:
            like = None if state.has_custom_download else state.expected_upload(SERVER)
            self.uploads = BufferedUploads(state.fabric, store, like)

    def keep(self, k: int, outcome: LocalResult) -> None:
        """Keep what a client of this rank returns."""
        if self._has_state(k, outcome.client_state):
            self.client_states[k] = outcome.client_state
        upload = outcome.upload
        if upload is None:
            return
        if self.stage.upload == "collect":
            self.collected[k] = upload.state
            return
        self.uploads.add(upload)
        if self.state.options.max_norm_ratio is not None:
            self.norms[k] = update_norm(upload.state, self.state.shared_state)

    def record_remote(self, k: int, outcome: LocalResult) -> None:
        """Note what the rank that trained a client keeps of it."""
        if self.owners[k] == self.state.fabric.global_rank:
            return
        if self._has_state(k, outcome.client_state):
            self.client_states.record_remote({k: tuple(outcome.client_state.state)})
        upload = outcome.upload
        if upload is None:
            return
        if self.stage.upload == "collect":
            self.collected.record_remote({k: tuple(upload.state)})
        elif isinstance(self.uploads, BufferedUploads):
            self.uploads.record_remote(k, upload.weight, self.owners[k])

    def _has_state(self, k: int, client_state: ClientState) -> bool:
        """Whether anything stays with a client; one that had something may have given all away."""
        is_something = bool(client_state.state or client_state.optimizer or client_state.residual)
        is_collected = self.stage.upload == "collect" and bool(self.owners)  # its rank is known by what it keeps
        return is_something or is_collected or k in self.state.client_states

    def outliers(self) -> dict[int, str]:
        """The clients whose weight or update is out of all proportion to the others', and why."""
        if isinstance(self.uploads, RunningMean):
            return {}
        options = self.state.options
        heavy = out_of_proportion(self.uploads.weights, options.max_weight_ratio, "max_weight_ratio", "weight")
        far = out_of_proportion(self.norms, options.max_norm_ratio, "max_norm_ratio", "update of norm")
        return far | heavy

    def drop(self, k: int) -> None:
        """Leave a client out."""
        assert isinstance(self.uploads, BufferedUploads)
        self.uploads.drop(k)
        self.client_states.forget(k)


def update_norm(state: State, before: State) -> float:
    """How far a client has moved: the norm of its differences to what the server holds, of what that holds.

    Example:
        >>> update_norm({"w": torch.tensor([3.0, 4.0])}, {"w": torch.zeros(2)})
        5.0
    """
    floating = [name for name, tensor in state.items() if name in before and tensor.is_floating_point()]
    for name in floating:
        if state[name].shape != before[name].shape:
            raise UsageError(
                f"`trainer.max_norm_ratio` compares uploads with what the server holds, but {name!r} is "
                f"{tuple(before[name].shape)} there and {tuple(state[name].shape)} in an upload."
            )
    moved = [state[name].double() - before[name].double() for name in floating]
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(moved)))) if moved else 0.0
