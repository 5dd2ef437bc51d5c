"""Signals: the first is reported at once, a second ends the process."""

import signal
import subprocess
import sys
import time
from functools import partial

SCRIPT = """
import sys, time
from fedlit.records.stop_signals import stop_signals

def stop(number):
    print("stopping", number, flush=True)

with stop_signals(stop):
    print("ready", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        sum(range(10**6))
"""


def started(*wrapper: str):
    command = [*wrapper, sys.executable, "-c", SCRIPT]
    listens = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # though the tests run under nohup
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=listens)
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_first_is_reported_at_once_and_a_second_ends_without_a_traceback():
    process = started()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopping 15\n"
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert (process.returncode, rest) == (128 + signal.SIGINT, "")


def test_one_that_is_passed_on_twice_counts_once():
    process = started()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping 2\n"
    time.sleep(0.2)
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_a_terminal_that_is_closed_stops_a_run_as_sigterm_does_unless_it_is_ignored():
    process = started()
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "stopping 1\n"
    process.kill()
    process.communicate()
    process = started("nohup")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopping 15\n"
    process.kill()
    process.communicate()
