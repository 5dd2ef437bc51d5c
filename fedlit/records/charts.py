"""How a round is shown in TensorBoard: scalars by name, and charts that gather them.

TensorBoard puts a card for every name into a group that is called like the name's first part: so there is a group of
means for every metric, one of bytes, and one each for all that is of single clients and of their range. A few clients
have a line each; of many, charts show mean, range and a histogram.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from fedlit.records.rows import POOLED, LedgerRow, Row, summary

MANY_CLIENTS = 20
# Groups of TensorBoard, beside one for every metric.
CLIENTS = "clients"
RANGE = "range"


def is_crowded(clients: int) -> bool:
    """Whether so many lines in one chart could not be told apart."""
    return clients > MANY_CLIENTS


def scalars(rows: list[Row]) -> dict[str, float]:
    """What loggers are given of a round, by name.

    Example:
        >>> scalars([Row(1, "s", "all", "global", "pooled", "acc", 0.5)])
        {'acc/global_on_pooled': 0.5}
        >>> list(scalars([Row(1, "s", 7, "global", "own", "acc", 0.5)]))[:2]
        ['clients/acc/global_on_own/client_07', 'acc/global_on_own/mean']
    """
    found = {}
    keys = [row.key for row in rows]
    counts = Counter(keys)
    for row, key in zip(rows, keys, strict=True):
        if row.client == POOLED:
            found[key] = row.value
        elif not is_crowded(counts[key]):
            found[f"{CLIENTS}/{key}/client_{row.client:02d}"] = row.value
    for key, parts in summary(row for row in rows if row.client != POOLED).items():
        found[f"{key}/mean"] = parts["mean"]
        for part in ("min", "max"):
            found[f"{RANGE}/{key}/{part}"] = parts[part]
    return found


def bytes_sent(rows: Iterable[LedgerRow]) -> dict[str, float]:
    """What crossed clients' borders in a round, each way, by name.

    Example:
        >>> bytes_sent([LedgerRow(1, 0, "up", "state", 40), LedgerRow(1, 1, "up", "state", 40)])
        {'bytes/up': 80}
    """
    found: dict[str, float] = {}
    for row in rows:
        name = f"bytes/{row.direction}"
        found[name] = found.get(name, 0) + row.bytes
    return found


def add_scalars(writer: Any, values: Mapping[str, float], round: int) -> None:
    """Write all scalars of a round as one event: one by one, they cost more than a round of small clients."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    writer.file_writer.add_summary(Summary(value=entries), round)


def layout(lines: Mapping[str, bool]) -> dict[str, dict[str, list[Any]]]:
    """TensorBoard charts per metric: all clients in one, where each has a line of its own, and their mean with range.

    Example:
        >>> list(layout({"acc/global_on_own": True})["acc"])
        ['global on own: every client', 'global on own: mean and range']
        >>> layout({"acc/global_on_own": False})["acc"]["global on own: mean and range"]
        ['Margin', ['acc/global_on_own/mean', 'range/acc/global_on_own/min', 'range/acc/global_on_own/max']]
    """
    charts: dict[str, dict[str, list[Any]]] = defaultdict(dict)
    for key, every_client in sorted(lines.items()):
        metric, _, what = key.rpartition("/")  # a method may log a name with a slash, such as train/loss
        title = what.replace("_", " ")
        if every_client:
            charts[metric][f"{title}: every client"] = ["Multiline", [f"{CLIENTS}/{key}/client_.*"]]
        mean_and_range = [f"{key}/mean", f"{RANGE}/{key}/min", f"{RANGE}/{key}/max"]
        charts[metric][f"{title}: mean and range"] = ["Margin", mean_and_range]
    return dict(charts)
