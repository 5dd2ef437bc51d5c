"""Processes of a federation, forked from the one that tests: what takes seconds to import is there already."""

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from fedlit.engine import liveness
from fedlit.engine.liveness import ProcessLost


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def forked(work: Callable[[int], None], folder: Path, number: int = 2) -> list[int]:
    """Start `work(rank)` in so many processes; their ids. What they say is in `folder/rank_N.txt`."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
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
        alive = liveness.current()
        if alive is not None:
            alive.leave()
        return 0
    except ProcessLost as error:
        print(error)
        return liveness.LOST
    except SystemExit as error:
        return error.code
    except BaseException:
        traceback.print_exc()
        return 1
