"""Processes of a federation, forked from the one that tests: what takes seconds to import is there already."""

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from fedlit.engine.cluster import endings, heartbeat
from fedlit.engine.cluster.processes import ProcessLost
from fedlit.engine.cluster.rendezvous import MEETING_PLACE


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def forked(work: Callable[[int], None], folder: Path, by_file: bool = True, number: int = 2) -> list[int]:
    """Start `work(rank)` in so many processes; their ids. What they say is in `folder/rank_N.txt`.

    They meet by a file, as those that fedlit starts, or by a port, as those that a person starts one by one.
    """
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    if by_file:
        (folder / "meeting").mkdir()
        place = {MEETING_PLACE: str(folder / "meeting")}
    return [_forked(work, folder, rank, place) for rank in range(number)]


def exit_codes(processes: list[int]) -> list[int]:
    """Of processes that have ended; minus the signal for one that was killed."""
    return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]


def _forked(work: Callable[[int], None], folder: Path, rank: int, place: dict[str, str]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.environ.update(place, LOCAL_RANK=str(rank))
        sys.stdout = sys.stderr = (folder / f"rank_{rank}.txt").open("w", buffering=1)
        code = _exit_code(work, rank)
    finally:
        sys.stdout.flush()
        os._exit(code)  # pytest's own end is not for this process


def _exit_code(work: Callable[[int], None], rank: int) -> int:
    try:
        work(rank)
        heart = heartbeat.current()
        if heart is not None:
            heart.leave()
        return 0
    except ProcessLost as error:
        print(error)
        return endings.LOST
    except BaseException:
        traceback.print_exc()
        return 1
