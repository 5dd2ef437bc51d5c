"""`--data.partition.help` without a name: which partitions there are."""

import inspect
from collections.abc import Iterator

from fedlit.cli.tables import wrapped
from fedlit.data import Saved
from fedlit.partition import Partition

OPTION = "--data.partition.help"


def tell_partitions(args: list[str]) -> None:
    """Print the partitions and end, if that is what was asked for; of one by its name, the parser tells."""
    for place, arg in enumerate(args):
        is_last = place + 1 == len(args) or args[place + 1].startswith("-")
        if arg == OPTION and is_last:
            print(table())
            raise SystemExit(0)


def table() -> str:
    """One row a partition, with the first line that it says of itself."""
    rows = [["partition", "who holds what", "options"]]
    for kind in sorted(set(_kinds(Partition)), key=lambda kind: kind.__name__):
        first = (inspect.getdoc(kind) or "").splitlines()[0]
        rows.append([kind.__name__, first, ", ".join(inspect.signature(kind).parameters)])
    return f"{wrapped(rows)}\n\nOf one: {OPTION} {Saved.__name__}"


def _kinds(kind: type) -> Iterator[type]:
    """Those that can be given, of fedlit and of a user's modules that are imported."""
    for inner in kind.__subclasses__():
        if not inspect.isabstract(inner):
            yield inner
        yield from _kinds(inner)
