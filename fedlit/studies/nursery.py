"""The process that runs are forked from: `python -m fedlit.studies.nursery CHANNEL MODULE`.

It imports the module, and from then on only forks when it is asked to, and tells who has ended. It ends when whoever
asks has ended, and so do its children: the system sends each a SIGTERM, after which a run saves itself.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from importlib import import_module
from runpy import run_module

from fedlit.studies.launcher import MESSAGE, end_with_parent

PAUSE = 0.05  # seconds between two looks at the children


def main() -> None:
    """Fork until the channel is closed."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    import_module(sys.argv[2])
    gc.freeze()  # forks go on sharing what no collector walks through
    while True:
        _tell_ended(channel)
        if not select.select([channel], [], [], PAUSE)[0]:
            continue
        message, files, _, _ = socket.recv_fds(channel, MESSAGE, 2)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            channel.close()
            return _become(json.loads(message), *files)
        for file in files:
            os.close(file)
        _tell(channel, {"born": pid})


def _become(arguments: list[str], log: int, claim: int) -> None:
    """Run `python -m` with the arguments; the claim stays open until the process ends."""
    parent = os.getppid()
    end_with_parent()
    if os.getppid() != parent:  # it died before we had asked
        raise SystemExit(128 + signal.SIGTERM)
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    module = arguments[0]
    sys.argv[1:] = arguments[1:]
    run_module(module, run_name="__main__", alter_sys=True)


def _tell_ended(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there are none
            return
        if pid == 0:
            return
        _tell(channel, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(channel: socket.socket, what: dict[str, int]) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever asked has ended; the next read tells
        channel.send(json.dumps(what).encode())


if __name__ == "__main__":
    main()
