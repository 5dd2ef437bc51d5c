"""The uploads of a round: validated, then held until they are aggregated."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from math import sqrt
from statistics import median_low

import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fedlit.aggregation import NOTHING, RoundUploads, RunningMean, State, Upload, defect, weighted_mean
from fedlit.data.client import SERVER, Client
from fedlit.engine.client_store import SpillStore
from fedlit.engine.live_module import failed
from fedlit.engine.plan import ClientState, LocalResult, Plan, UsageError
from fedlit.engine.processes import broadcast
from fedlit.engine.state import Download, FederationState
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure

BATCHES = "num_batches_tracked"
BATCHES_A_SAMPLE = 100
MOST = 2**40


def counters_of(state: Mapping[str, Tensor]) -> list[str]:
    """Names of the integer tensors of a state; what is true or false counts nothing."""
    integers = [name for name, tensor in state.items() if not (tensor.is_floating_point() or tensor.is_complex())]
    return [name for name in integers if state[name].dtype != torch.bool]


def most_batches(client: Client, plan: Plan) -> int:
    """How many batches a BatchNorm can have seen in one local training."""
    samples = client.num_samples
    if plan.stage.public != "no":
        samples += len(client.data.public_pool)
    return BATCHES_A_SAMPLE * (samples * max(plan.epochs, 1) + (plan.steps or 0))


def overcounted(state: Mapping[str, Tensor], before: Mapping[str, Tensor], names: list[str], most: int) -> str | None:
    """Which counter has grown by more than one local training can have counted, and by how much.

    Args:
        state: Of an upload.
        before: What its client received.
        names: Of the counters.
        most: Batches that a BatchNorm can have seen.

    Example:
        >>> overcounted({"n": torch.tensor(2**62)}, {"n": torch.tensor(5)}, ["n"], most=100)
        "'n' has grown by 4.612e+18 in one round, by more than 1.1e+12"
    """
    for name in names:
        if name not in state:  # a client that was not sent all of it does not upload all of it
            continue
        limit = most if name.rpartition(".")[2] == BATCHES else MOST
        grown = float((state[name].double() - before[name].double()).max()) if state[name].numel() else 0.0
        if grown > limit:
            return f"{name!r} has grown by {grown:.4g} in one round, by more than {limit:.4g}"
    return None


class UploadValidator:
    """The checks of one round.

    Args:
        state: Of the federation before it.
        stage: Of the round.
        number: Of the round.
        plan_for: How a client trains.
    """

    def __init__(self, state: FederationState, stage: Stage, number: int, plan_for: Callable[[int], Plan]) -> None:
        self.state = state
        self.stage = stage
        self.number = number
        self.plan_for = plan_for
        self.counters = counters_of(state.shared_state)
        self.expected = state.expected_upload(SERVER)  # of everybody, unless clients are sent different states
        self.asks_method = is_overridden("check_upload", state.module, FederatedModule)

    def problem(self, outcome: LocalResult, sent: Download | None) -> Failure | None:
        """Why a client's result cannot be used, or None."""
        try:
            if outcome.validation_logs:
                self._check_names(outcome.validation_logs)
            if problem := self._unusable(outcome, sent):
                return Failure(f"unusable state: {problem}{hint(problem)}")
        except Exception as error:  # tensors of unknown kinds may refuse any operation
            return failed(error)
        return None

    def _unusable(self, outcome: LocalResult, sent: Download | None) -> str | None:
        """Of an upload, or of what a client would keep; what is collected differs in its shapes."""
        upload = outcome.upload
        if upload is not None:
            is_collected = self.stage.upload == "collect"
            expected = self.expected if sent is None else self.state.expected_upload(upload.client, sent)
            if is_collected:
                expected = upload.state
            if problem := defect(upload, expected):
                return problem
            if self.counters and self.stage.upload == "aggregate":
                plan = self.plan_for(upload.client)
                most = most_batches(self.state.data.client(upload.client, self.number), plan)
                if problem := overcounted(upload.state, expected, self.counters, most):
                    return problem
            if self.asks_method:
                self._ask_method(upload)
        for kept in (outcome.memory.state, outcome.memory.residual):
            if kept and (problem := defect(Upload(-1, kept), kept)):
                return problem
        return None

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


class StreamedUploads(RoundUploads):
    """Uploads of which only the mean is wanted.

    Args:
        names: Of what is averaged.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.weights: dict[int, float] = {}
        self._mean = RunningMean()

    def __len__(self) -> int:
        return len(self.weights)

    def __iter__(self) -> Iterator[Upload]:
        raise RuntimeError("These uploads were added up as they came; none was kept.")

    def add(self, upload: Upload) -> None:
        """Count one more."""
        self.weights[upload.client] = upload.weight
        if len(upload.state) != len(self.names):
            upload = replace(upload, state={name: upload.state[name] for name in self.names})
        self._mean.add(upload)

    def mean(self) -> State:
        return self._mean.mean()

    def without(self, prefixes: tuple[str, ...]) -> "StreamedUploads":
        return self

    def clear(self) -> None:
        """Forget all."""
        self.weights.clear()
        self._mean = RunningMean()


class BufferedUploads(RoundUploads):
    """Uploads in the order in which they came, as often as they are asked for.

    Args:
        store: Of what stays with clients: above its budget, uploads go to files as well.
        hidden: Prefixes of names that are left out.
    """

    def __init__(self, store: SpillStore, hidden: tuple[str, ...] = ()) -> None:
        self.store = store
        self.hidden = hidden
        self.weights: dict[int, float] = {}
        self._kept: dict[int, ClientState] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Upload]:
        """A copy of each: who changes one finds it next time as it came, as on several processes or from a file."""
        for client in list(self._kept):
            yield self[client].copy()

    def __getitem__(self, client: int) -> Upload:
        state = self.store.get(self._kept[client]).state
        return Upload(client, _without(state, self.hidden), self.weights[client])

    def __contains__(self, client: int) -> bool:
        return client in self._kept

    def add(self, upload: Upload) -> None:
        """Keep a copy of one more: its tensors may be the live ones."""
        self._kept[upload.client] = self.store.put(ClientState(upload.copy().state))
        self.weights[upload.client] = upload.weight

    def drop(self, client: int) -> None:
        """Forget a client's, if it is here."""
        self._kept.pop(client, None)
        self.weights.pop(client, None)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self.weights.clear()

    def mean(self) -> State:
        return weighted_mean(self[client] for client in self._kept)

    def without(self, prefixes: tuple[str, ...]) -> "BufferedUploads":
        shown = BufferedUploads(self.store, (*self.hidden, *prefixes))
        shown.weights = self.weights
        shown._kept = self._kept
        return shown


class ShardedUploads(RoundUploads):
    """Uploads of a round on several processes; whatever is asked of them must be asked by every process.

    Args:
        fabric: Launched.
        own: Those of this process.
        like: Of the names, shapes and dtypes of an upload; None if they are not all alike.
        hidden: Prefixes of names that are left out.
    """

    def __init__(self, fabric: Fabric, own: BufferedUploads, like: State | None, hidden: tuple[str, ...] = ()) -> None:
        self.fabric = fabric
        self.own = own
        self.like = None if like is None else _without(like, hidden)
        self.hidden = hidden
        self.ranks: dict[int, int] = {}
        self.weights: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self.ranks)

    def __iter__(self) -> Iterator[Upload]:
        for k, rank in self.ranks.items():
            own = None if rank != self.fabric.global_rank else self._own(k).state
            yield Upload(k, broadcast(self.fabric, own, rank), self.weights[k])

    def register(self, client: int, weight: float, rank: int) -> None:
        """Note that a rank has a client's upload; on that rank it is in `own`."""
        self.ranks[client] = rank
        self.weights[client] = weight

    def drop(self, client: int) -> None:
        """Forget a client's."""
        self.own.drop(client)
        self.ranks.pop(client, None)
        self.weights.pop(client, None)

    def clear(self) -> None:
        """Forget all."""
        self.own.clear()
        self.ranks.clear()
        self.weights.clear()

    def without(self, prefixes: tuple[str, ...]) -> "ShardedUploads":
        shown = ShardedUploads(self.fabric, self.own, self.like, (*self.hidden, *prefixes))
        shown.ranks = self.ranks
        shown.weights = self.weights
        return shown

    def mean(self) -> State:
        """The running sum goes from rank to rank in client order: the same additions as on one process."""
        if not self.ranks:
            raise ValueError(NOTHING)
        if self.like is None:
            return weighted_mean(iter(self))
        first = next(iter(self.ranks))
        mean = RunningMean()
        device = torch.device("cpu") if self.fabric.device.type == "mps" else None  # which has no float64
        for rank, clients in groupby(self.ranks, key=self.ranks.__getitem__):  # consecutive ones are on one rank
            if rank == self.fabric.global_rank:
                for k in clients:
                    mean.add(self._own(k))
            mean.sums, mean.total = broadcast(self.fabric, [mean.sums, mean.total], rank, device)
            mean.first = mean.first or Upload(first, self.like, self.weights[first])
        return mean.mean()

    def _own(self, k: int) -> Upload:
        upload = self.own[k]
        return Upload(k, _without(upload.state, self.hidden), upload.weight)


def _without(state: State, prefixes: tuple[str, ...]) -> State:
    if not prefixes:
        return state
    return {name: tensor for name, tensor in state.items() if not name.startswith(prefixes)}


def update_norm(state: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> float:
    """How far a client has moved from what it received: the norm of all differences together.

    Example:
        >>> update_norm({"w": torch.tensor([3.0, 4.0])}, {"w": torch.zeros(2)})
        5.0
    """
    squares = 0.0
    for name, tensor in state.items():
        if tensor.shape != before[name].shape:
            raise UsageError(
                f"`trainer.max_norm_ratio` compares uploads with what the server holds, but {name!r} is "
                f"{tuple(before[name].shape)} there and {tuple(tensor.shape)} in an upload."
            )
        if tensor.is_floating_point():
            squares += float(torch.linalg.vector_norm(tensor.double() - before[name].double())) ** 2
    return sqrt(squares)


def out_of_proportion(values: Mapping[int, float], ratio: float | None, option: str, what: str) -> dict[int, str]:
    """The clients whose value is more than `ratio` times the median (of two in the middle, the smaller), and why.

    Where half of the clients have 0 there is no proportion to keep.

    Example:
        >>> out_of_proportion({0: 1.0, 1: 2.0, 2: 90.0}, 10, "max_weight_ratio", "weight")
        {2: 'weight 90 is 45 times the median of the round, 2; `trainer.max_weight_ratio` is 10'}
        >>> out_of_proportion({0: 0.0, 1: 0.0, 2: 90.0}, 10, "max_weight_ratio", "weight")
        {}
    """
    if ratio is None or not values:
        return {}
    middle = median_low(values.values())
    found = {}
    for client, value in values.items():
        if middle > 0 and value > ratio * middle:
            times = f"{value:.4g} is {value / middle:.4g} times the median of the round, {middle:.4g}"
            found[client] = f"{what} {times}; `trainer.{option}` is {ratio:g}"
    return found
