"""Slow, stopped and dead processes, told apart: two real ones, whose work is to wait and to compute."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedlit.engine.cluster.heartbeat import Heartbeat

TIMEOUT = 2.0  # a busy machine may keep a process from its beat for a while
SCRIPT = """
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from fedlit.engine.cluster import heartbeat


def say(line):
    print(line, flush=True)


there = Path(__file__).with_name("there")  # the second has come in
rank, what, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
children = {}
heart = heartbeat.Heartbeat(rank, 2, TIMEOUT, say, children)
if rank == 0:
    where = heart.listen("127.0.0.1")
    children[1] = subprocess.Popen([sys.executable, __file__, "1", *sys.argv[2:4], *map(str, where)])
    while not there.exists():
        sleep(0.01)
    say(f"pid {children[1].pid}")
else:
    heart.connect("127.0.0.1", int(sys.argv[4]), int(sys.argv[5]))
    there.touch()
heartbeat.begin(heart)

end = monotonic() + seconds + 0.5 * rank  # who waits is not to be left alone at the end
if what == "refuse":
    sleep(0.1 * rank)
    if heart.refuse("nothing will do"):
        say("nothing will do")
    sys.exit(2)
if what == "fail" and rank == 1:
    raise RuntimeError("a defect")
if what == "leave" and rank == 1:
    sys.exit(0)
if rank == 1:
    while monotonic() < end and heart.loss is None:
        pass  # a thread gives signs of life also while Python computes
elif what == "stuck":
    sleep(60)
else:
    with heart.waiting():
        heart.lost.wait(max(0, end - monotonic()))
if heart.loss is not None:
    heart.answered.set()
    if heart.loss.is_ours_to_say:
        say(heart.loss.line)
    sys.exit(3)
say(f"rank {rank} is done")
"""


class Pair:
    """Rank 0 of a script and the rank 1 that it has started."""

    def __init__(self, folder: Path, what: str, seconds: float) -> None:
        script = folder / "script.py"
        script.write_text(SCRIPT.replace("TIMEOUT", str(TIMEOUT)))
        command = [sys.executable, str(script), "0", what, str(seconds)]
        self.first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said = ""
        told = None
        while told is None:  # the second may speak before, or into the line
            line = self.first.stdout.readline()
            assert line, f"it has ended without a word of the second: {self.said}"
            self.said += line
            told = re.search(r"pid (\d+)", self.said)
        self.second = int(told[1])
        self.start = time.monotonic()
        time.sleep(0.1)

    def end(self) -> tuple[str, int, float]:
        """What both have said (it is one pipe), the exit code of the first, and the seconds that it took."""
        said, _ = self.first.communicate(timeout=20)
        return self.said + said, self.first.returncode, time.monotonic() - self.start


@pytest.mark.slow
def test_a_slow_process_is_waited_for_by_name_far_beyond_the_timeout(tmp_path):
    said, code, seconds = Pair(tmp_path, "compute", 2.5 * TIMEOUT).end()
    assert seconds > 2.5 * TIMEOUT
    assert code == 0, said
    assert "waiting for rank 1, which is alive and at work" in said
    assert "no sign" not in said
    assert {"rank 0 is done", "rank 1 is done"} <= {*said.splitlines()}


def test_a_killed_process_is_named_at_once(tmp_path):
    pair = Pair(tmp_path, "compute", 60)
    os.kill(pair.second, signal.SIGKILL)
    said, code, seconds = pair.end()
    assert "rank 1 of 2 has died (by SIGKILL); the run goes on from its last checkpoint" in said
    assert code == 3
    assert seconds < 5


def test_the_others_hear_of_the_death_of_rank_0(tmp_path):
    pair = Pair(tmp_path, "compute", 60)
    pair.first.kill()
    said, _, seconds = pair.end()  # the pipe is closed when both have ended
    assert said.count("rank 0 of 2 has died") == 1
    assert seconds < 5


@pytest.mark.slow
def test_a_stopped_process_is_missed_and_waited_for(tmp_path):
    pair = Pair(tmp_path, "compute", 2 * TIMEOUT)
    os.kill(pair.second, signal.SIGSTOP)
    time.sleep(0.6 * TIMEOUT)
    os.kill(pair.second, signal.SIGCONT)
    said, code, _ = pair.end()
    assert "no sign of rank 1 for" in said
    assert code == 0, said


def test_one_that_stays_stopped_is_taken_for_dead_and_cleared_away(tmp_path):
    pair = Pair(tmp_path, "compute", 60)
    os.kill(pair.second, signal.SIGSTOP)
    said, code, _ = pair.end()
    assert f"rank 1 of 2 gave no sign of life for {TIMEOUT:g} s (`trainer.process_timeout`)" in said
    assert code == 3


@pytest.mark.slow
def test_a_run_that_was_stopped_as_a_whole_has_missed_nothing(tmp_path):
    pair = Pair(tmp_path, "compute", 3 * TIMEOUT)
    both = (pair.first.pid, pair.second)
    for process in both:
        os.kill(process, signal.SIGSTOP)
    time.sleep(1.6 * TIMEOUT)
    for process in both:
        os.kill(process, signal.SIGCONT)
    said, code, _ = pair.end()
    assert code == 0, said


def test_a_process_that_is_stuck_is_ended_all_the_same(tmp_path):
    pair = Pair(tmp_path, "stuck", 60)
    os.kill(pair.second, signal.SIGKILL)
    said, code, seconds = pair.end()
    assert code == 3
    assert said.count("rank 1 of 2 has died") == 1
    assert seconds < 5


@pytest.mark.parametrize(
    ("what", "how"), [("fail", "has died (exit code 1)"), ("leave", "has ended before the others")]
)
def test_a_process_that_ends_while_it_is_waited_for_is_lost(what, how, tmp_path):
    said, code, _ = Pair(tmp_path, what, 60).end()
    assert how in said
    assert code == 3


def test_one_that_has_left_in_peace_is_not_missed(tmp_path):
    said, code, _ = Pair(tmp_path, "leave", 0.3 * TIMEOUT).end()
    assert code == 0, said


def test_what_all_refuse_is_said_once(tmp_path):
    said, code, seconds = Pair(tmp_path, "refuse", 1).end()
    assert said.count("nothing will do") == 1
    assert code == 2
    assert seconds < 4  # the second was told to end, and did not have to say it itself


def test_a_stranger_is_not_let_in():
    heart = Heartbeat(0, 2, 60, print, {})
    port, number = heart.listen("127.0.0.1")
    heart.start()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        stranger.sendall(f"{number + 1} 1\nrefused no\n".encode())
        assert stranger.recv(10) == b""
    assert heart.loss is None
    assert heart.peers[1].link is None
    with socket.create_connection(("127.0.0.1", port), timeout=5) as friend:
        friend.sendall(f"{number} 1\n".encode())
        assert friend.recv(10).startswith(b"work")
        friend.sendall(b"bye\n")
