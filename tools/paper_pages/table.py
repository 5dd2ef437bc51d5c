"""Tables of Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells as they stand.

    Example:
        >>> print(table(("a", "b"), [("1", "2")]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
