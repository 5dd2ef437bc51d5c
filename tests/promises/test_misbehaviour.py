"""Whatever a client does, the round is that of the others, to the bit: kinds of misbehaviour x methods.

The full form tries every kind with every method and prints how many held:
python -m pytest tests/promises/test_misbehaviour.py -m slow -s
"""

import json
import os
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import equal, fitted, toy_data
from promises.misbehaviour import BAD, KINDS, METHODS, ROUND, Kind, Stage, hooked_method

from fedlit.engine.turns.sampling import ClientSampler

QUICK = [
    ("double", "FML"),
    ("double", "LocalOnly"),
    ("sys.exit(0)", "FedAvg"),
    ("os._exit(0)", "DLAD"),
    ("an error without a text", "Own"),
    ("an error with half a letter", "FedAvg"),
    ("meta", "Own"),
    ("weight 1e300", "FedProx"),
    ("huge values that cancel out", "FedAvg"),
    ("attributes, and dies", "Own"),
    ("hooks, and dies", "FML"),
    ("replaced functions, and dies", "FedAvg"),
    ("a device's context", "Own"),
    ("raises in probe", "Own"),
    ("nan made in inference mode", "FedAvg"),
    ("segmentation fault", "FML"),
]


def run(method: str, kind: Kind | None, where: str, timeout: float | None = None):
    """A federation in which client BAD misbehaves in round ROUND, or nobody does."""
    Stage.action = None if kind is None else kind.action
    Stage.acted = 0
    data = toy_data(size=80, num_clients=4, public=0.25 if method == "DLAD" else 0.0)
    try:
        return fitted(hooked_method(method, where), data, client_timeout=timeout, num_rounds=3)
    finally:
        Stage.action = None


@cache
def expected(method: str, where: str, is_left_out: bool):
    """What a run ends with in which nobody misbehaves, and client BAD may be missing in round ROUND."""
    drawn = ClientSampler.candidates

    def without_it(self, stage, round):
        return [k for k in drawn(self, stage, round) if (k, round) != (BAD, ROUND)]

    with pytest.MonkeyPatch.context() as patch:
        if is_left_out:
            patch.setattr(ClientSampler, "candidates", without_it)
        return states(run(method, None, where))


def states(federation):
    """What server and clients hold, by owner: values and momenta."""
    held = {"server": federation.global_state, **federation.personal_states}
    for k, memory in federation.state.memories.items():
        for stage, momenta in memory.optimizer.items():
            for name, values in momenta.items():
                held[k, stage, name] = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
    return held


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(equal(a[owner], b[owner]) for owner in a)


def left_out_events(federation) -> list[dict]:
    lines = Path(federation.log_dir, "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "left_out"]


def broken(name: str, method: str) -> str | None:
    """What of the promise does not hold; "does not apply" if a method never comes there."""
    kind = KINDS[name]
    surroundings = (os.getcwd(), dict(os.environ), torch.is_grad_enabled(), torch.get_default_dtype())
    try:
        with redirect_stdout(open(os.dup(1), "w")):  # which it may close
            federation = run(method, kind, kind.where, kind.timeout)
    except BaseException as error:
        return f"the run ended: {type(error).__name__}"
    if not Stage.acted and kind.timeout is None:
        return "does not apply"
    if surroundings != (os.getcwd(), dict(os.environ), torch.is_grad_enabled(), torch.get_default_dtype()):
        return "the process is not as it was"
    events = left_out_events(federation)
    if kind.timeout is not None and not events:  # it acts in another process, where nobody counts
        return "does not apply"
    outcome = kind.outcome
    if outcome == "either":
        outcome = "left out" if events else "fine"
    if not same(states(federation), expected(method, kind.where, outcome == "left out")):
        return "the states differ"
    if outcome == "fine":
        return "there is an event" if events else None
    if [(event["client"], event["round"]) for event in events] != [(BAD, ROUND)]:
        return f"events {[(event['client'], event['round'], event['reason']) for event in events]}"
    return None


@pytest.mark.parametrize(("kind", "method"), QUICK)
def test_a_client_that_misbehaves_is_as_one_that_was_not_drawn(kind, method, capfd):
    assert broken(kind, method) is None


@pytest.mark.parametrize("method", ["FedAvg", "Own"])
def test_it_would_be_seen_if_a_client_were_left_out_or_not(method):
    assert not same(expected(method, "on_client_end", True), expected(method, "on_client_end", False))


def test_there_are_sixty_kinds_for_every_method_and_one_of_a_users_own():
    assert len(KINDS) >= 60
    assert len(METHODS) == 10


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_kind_of_misbehaviour(method):
    found = {name: broken(name, method) for name in KINDS}
    silent = [name for name, problem in found.items() if problem == "does not apply"]
    bad = {name: problem for name, problem in found.items() if problem and problem != "does not apply"}
    held = len(found) - len(silent) - len(bad)
    print(f"\n{method}: {held} of {len(found) - len(silent)} kinds held; does not apply: {len(silent)} {silent} {bad}")
    assert bad == {}
