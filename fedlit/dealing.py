"""Dealing samples out to clients: checks of what is asked for, and the draws that partitions share."""

from typing import get_args

import numpy as np

from fedlit.bounds import check_count
from fedlit.rng import stream

# Of DLAD's settings: the classes of five clients, which repeat over the others.
CLASS_SETS = {
    "niid1": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
    "niid2": [[0, 1, 2, 3, 4, own] for own in (5, 6, 7, 8, 9)],
    "niid3": [[0, 1, 2, 3], [0, 4, 5, 6], [1, 4, 7, 8], [2, 5, 7, 9], [3, 6, 8, 9]],
}


def require(ok: bool, message: str) -> None:
    """Refuse bad input: a ValueError with `message` unless `ok`."""
    if not ok:
        raise ValueError(message)


def at_least(name: str, value: int, least: int = 1) -> int:
    return check_count(name, value, least)


def one_of(name: str, value: str, choices: object) -> str:
    allowed = get_args(choices)
    require(value in allowed, f"`{name}` must be one of {', '.join(allowed)}, got {value!r}.")
    return value


def enough(num_samples: int, num_clients: int, option: str, each: int = 1) -> None:
    told = f"`{option}`: {num_clients} clients with {each} or more each need {num_clients * each} samples"
    require(num_clients * each <= num_samples, f"{told}, there are {num_samples}.")


def even_parts(total: int, number: int) -> np.ndarray:
    """Numbers that differ by at most one and add up to `total`, the smaller first."""
    return (total + np.arange(number)) // number


def checked_labels(labels: np.ndarray, num_clients: int, num_classes: int) -> np.ndarray:
    labels = np.asarray(labels)
    at_least("num_clients", num_clients)
    require(labels.ndim == 1 and labels.size > 0, f"`labels` must be [N] with N > 0, got {list(labels.shape)}.")
    low, high = labels.min(), labels.max()
    require(low >= 0 and high < num_classes, f"`labels` must lie in [0, {num_classes}), got {low} to {high}.")
    return labels.astype(np.int64, copy=False)


def grouped(values: np.ndarray, owners: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """The values of each client, in their given order."""
    ends = np.cumsum(np.bincount(owners, minlength=num_clients))
    return np.split(values[np.argsort(owners, kind="stable")], ends[:-1])


def dealt(labels: np.ndarray, counts: np.ndarray, seed: int) -> list[np.ndarray]:
    """Random disjoint samples, `counts` ``[C, K]`` of each class for each client."""
    num_classes, num_clients = counts.shape
    rng = stream(seed, "samples")
    taken = []
    for c in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == c))
        taken.append(members[: counts[c].sum()])
    owners = np.repeat(np.tile(np.arange(num_clients), num_classes), counts.ravel())
    return grouped(np.concatenate(taken), owners, num_clients)


def kept(parts: list[np.ndarray], samples_per_client: int | None, seed: int) -> list[np.ndarray]:
    """So many samples of each client's part, drawn at random; None keeps all."""
    if samples_per_client is None:
        return parts
    some = []
    for client, part in enumerate(parts):
        told = f"`samples_per_client`={samples_per_client}, but the shards of client {client} hold {len(part)}."
        require(samples_per_client <= len(part), told)
        order = stream(seed, "kept", client).permutation(len(part))
        some.append(part[np.sort(order[:samples_per_client])])
    return some


def distinct_owners(rng: np.random.Generator, num_clients: int, num_classes: int, pieces: int) -> np.ndarray:
    """The owners of `pieces` shards of each class, ``[C pieces]``: equally many for all, no two of a class for anybody.

    Class by class, in random order. Who needs a shard of every class that is left gets one for sure: at most `pieces`
    clients do, for together all need as many as there are. So it always comes out even.
    """
    needs = np.full(num_clients, num_classes * pieces // num_clients)
    owners = np.empty((num_classes, pieces), dtype=np.int64)
    for position, c in enumerate(rng.permutation(num_classes)):
        rank = rng.random(num_clients)
        rank[needs == num_classes - position] = -1
        rank[needs == 0] = 2
        owners[c] = np.argsort(rank, kind="stable")[:pieces]
        needs[owners[c]] -= 1
    return owners.ravel()


def log_dirichlet(rng: np.random.Generator, alpha: float, shape: tuple[int, int]) -> np.ndarray:
    """Logarithms of rows drawn from Dir(alpha), which may be too small for a float themselves."""
    # Gamma(a) = Gamma(a + 1) U^(1/a), in logarithms: for small alpha rng.dirichlet underflows to 0 / 0
    log_g = np.log(rng.standard_gamma(alpha + 1, shape))
    log_g -= rng.standard_exponential(shape) / alpha
    log_g -= log_g.max(axis=1, keepdims=True)
    return log_g - np.log(np.exp(log_g).sum(axis=1, keepdims=True))


def row_shares(weights: np.ndarray) -> np.ndarray:
    """Each row of ``[K, C]`` divided by its sum; 0 where there is nothing to share.

    Example:
        >>> row_shares(np.array([[1.0, 3.0], [0.0, 0.0]])).tolist()
        [[0.25, 0.75], [0.0, 0.0]]
    """
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)


def top_up(counts: np.ndarray, log_q: np.ndarray, min_samples: int) -> None:
    """Change `counts` ``[C, K]`` until nobody is short of `min_samples`: first of the classes that one drew most of.

    Args:
        counts: Samples of each class at each client.
        log_q: Logarithms of the clients' shares of each class, ``[C, K]``.
        min_samples: What each client holds at least.
    """
    totals = counts.sum(axis=0)
    for k in np.flatnonzero(totals < min_samples).tolist():
        for c in np.argsort(-log_q[:, k]):
            _take(k, counts[c], totals, min_samples)


def _take(k: int, held: np.ndarray, totals: np.ndarray, min_samples: int) -> None:
    """Let client k take samples of one class, of which clients have `held` ``[K]``, as long as it is short."""
    while totals[k] < min_samples:
        spare = np.minimum(held, totals - min_samples)
        donor = spare.argmax()
        if spare[donor] <= 0:
            return
        moved = min(spare[donor], min_samples - totals[k])
        held[[donor, k]] += (-moved, moved)
        totals[[donor, k]] += (-moved, moved)
