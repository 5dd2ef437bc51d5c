"""Who visits whom: clients where what stays with them is, and no process more than one client ahead of another."""

from collections.abc import Mapping, Sequence


def balanced(clients: Sequence[int], owner_ranks: Mapping[int, int], num_processes: int) -> list[int]:
    """The process of each client: at home while there is room, else where there are fewest.

    Every process has as many clients as every other, or one more.

    Args:
        clients: Of a round.
        owner_ranks: The process that has what stays with a client, of those that have something.
        num_processes: How many there are.

    Example:
        >>> balanced([3, 4, 5, 6, 7], owner_ranks={4: 1, 5: 1, 6: 1, 7: 1}, num_processes=2)
        [0, 1, 1, 1, 0]
    """
    least, num_more = divmod(len(clients), num_processes)
    loads = [0] * num_processes
    found: dict[int, int] = {}
    for k in clients:
        home = owner_ranks.get(k)
        if home is None:
            continue
        is_one_more = loads[home] == least and num_more > 0
        if loads[home] < least or is_one_more:
            found[k] = home
            loads[home] += 1
            num_more -= is_one_more
    for k in clients:
        if k not in found:
            found[k] = _emptiest(loads)
            loads[found[k]] += 1
    return [found[k] for k in clients]


def at_home(whose: Sequence[int | None], owner_ranks: Mapping[int, int], num_processes: int) -> list[int]:
    """The process of each task: its client's home, however many there are; of the others, where there are fewest.

    Args:
        whose: The client of each task; None is nobody's.
        homes: As in `balanced`.
        num_processes: How many there are.
    """
    owners = [None if k is None else owner_ranks.get(k) for k in whose]
    loads = [owners.count(rank) for rank in range(num_processes)]
    found: list[int] = []
    for owner in owners:
        if owner is None:
            owner = _emptiest(loads)
            loads[owner] += 1
        found.append(owner)
    return found


def _emptiest(loads: Sequence[int]) -> int:
    return min(range(len(loads)), key=lambda rank: (loads[rank], rank))
