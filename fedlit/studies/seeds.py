"""The pairs of seeds of a study: of training and of the partition, the same in every cell."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedlit.studies.reading import check_keys

MOST = 2**32  # seeds lie below


class SeedPair(NamedTuple):
    """What a run draws its randomness from."""

    training: int
    partition: int

    @property
    def name(self) -> str:
        """Of a run's folder.

        Example:
            >>> SeedPair(3, 3).name, SeedPair(3, 1).name
            ('seed_3', 'seed_3_partition_1')
        """
        if self.training == self.partition:
            return f"seed_{self.training}"
        return f"seed_{self.training}_partition_{self.partition}"


def read_seeds(given: Any) -> tuple[SeedPair, ...]:
    """Pairs from a number (so many), a list, or `training` and `partition`, one of which may be pinned.

    Example:
        >>> read_seeds(2)
        (SeedPair(training=1, partition=1), SeedPair(training=2, partition=2))
        >>> read_seeds({"training": [5, 6], "partition": 0})
        (SeedPair(training=5, partition=0), SeedPair(training=6, partition=0))
    """
    if not isinstance(given, Mapping):
        seeds = _many(given, "`seeds`")
        return tuple(SeedPair(seed, seed) for seed in seeds)
    check_keys(given, ("training", "partition"), "`seeds`")
    if set(given) != {"training", "partition"}:
        raise ValueError("`seeds` must give both `training` and `partition`, or a number or list for both.")
    return _pairs(given["training"], given["partition"])


def _pairs(training: Any, partition: Any) -> tuple[SeedPair, ...]:
    if not isinstance(training, list) and not isinstance(partition, list):
        raise ValueError("`seeds`: give a list for `training`, for `partition` or for both; a number pins the other.")
    if not isinstance(training, list):
        pinned = _seed(training, "`seeds.training`")
        return tuple(SeedPair(pinned, seed) for seed in _many(partition, "`seeds.partition`"))
    if not isinstance(partition, list):
        pinned = _seed(partition, "`seeds.partition`")
        return tuple(SeedPair(seed, pinned) for seed in _many(training, "`seeds.training`"))
    if len(training) != len(partition):
        raise ValueError(
            f"`seeds.training` and `seeds.partition` must have equally many, got {len(training)} and {len(partition)}."
        )
    firsts = [_seed(seed, "`seeds.training`") for seed in training]
    seconds = [_seed(seed, "`seeds.partition`") for seed in partition]
    pairs = tuple(SeedPair(*pair) for pair in zip(firsts, seconds, strict=True))
    if len(set(pairs)) < len(pairs):
        raise ValueError("`seeds` names a pair twice; the same run would be counted twice.")
    return pairs


def _many(given: Any, where: str) -> list[int]:
    if isinstance(given, list):
        seeds = [_seed(seed, where) for seed in given]
        if not seeds:
            raise ValueError(f"{where} must name at least one seed.")
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{where} names a seed twice; the same run would be counted twice.")
        return seeds
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 1000:
        raise ValueError(f"{where} must be a number of seeds from 1 to 1000, or a list of them, got {given!r}.")
    return list(range(1, given + 1))


def _seed(given: Any, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < MOST:
        raise ValueError(f"{where}: a seed must be 0 to {MOST - 1}, got {given!r}.")
    return given
