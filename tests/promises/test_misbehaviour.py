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
from promises.held_states import same, states
from promises.misbehaviour import KINDS, Kind
from promises.trials import BAD, ROUNDS, TRIALS, Act, Own, hooked_method
from toys import fitted, toy_data

from fedlit import methods
from fedlit.engine.scheduling import ClientSampler
from fedlit.methods import FederatedModule

QUICK = [
    ("double", "FML"),
    ("sys.exit(0)", "FedAvg"),
    ("sys.exit in its network", "DLAD"),
    ("an error with half a letter", "FedAvg"),
    ("meta", "Own"),
    ("weight 1e300", "FedProx"),
    ("huge values that cancel out", "FedAvg"),
    ("attributes, and dies", "Own"),
    ("raises in probe", "Own"),
    ("nan made in inference mode", "FedAvg"),
    ("segmentation fault", "FML"),
    ("counts below 0", "FD"),
    ("a norm of almost nothing", "FedNova"),
    ("nan", "FedAvg with FedAdam"),
    ("raises in personalise", "PerFedAvg"),
]


def run(name: str, kind: Kind | None):
    """A federation in which client BAD misbehaves in one round, or nobody does."""
    trial = TRIALS[name]
    data = toy_data(size=48, num_clients=3, public=trial.public)
    method = hooked_method(trial, None if kind is None else kind.where)
    timeout = None if kind is None else kind.timeout
    Act.begin(None if kind is None else kind.action, trial.round)
    try:
        return fitted(method, data, client_timeout=timeout, num_rounds=ROUNDS, **trial.options)
    finally:
        Act.action = None


@cache
def expected(name: str, is_left_out: bool):
    """What a run ends with in which nobody misbehaves, and client BAD may be missing in the round."""
    drawn = ClientSampler.candidates

    def without_it(self, stage, round):
        return [k for k in drawn(self, stage, round) if (k, round) != (BAD, TRIALS[name].round)]

    with pytest.MonkeyPatch.context() as patch:
        if is_left_out:
            patch.setattr(ClientSampler, "candidates", without_it)
        federation = run(name, None)
    assert left_out_events(federation) == []
    return states(federation)


def left_out_events(federation) -> list[dict]:
    lines = Path(federation.log_dir, "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "left_out"]


def surroundings() -> tuple:
    return os.getcwd(), dict(os.environ), torch.is_grad_enabled(), torch.get_default_dtype()


def broken(name: str, method: str) -> str | None:
    """What of the promise does not hold, or that the client did not do what it was to do."""
    kind = KINDS[name]
    before = surroundings()
    try:
        with redirect_stdout(open(os.dup(1), "w")):  # which it may close
            federation = run(method, kind)
    except BaseException as error:
        return f"the run ended: {type(error).__name__}: {error}"
    if Act.ended() != kind.ends:
        return f"it was to end as {kind.ends!r}, and ended as {Act.ended()!r}"
    if surroundings() != before:
        return "the process is not as it was"
    events = left_out_events(federation)
    outcome = kind.outcome
    if outcome == "either":
        outcome = "left out" if events else "fine"
    if not same(states(federation), expected(method, outcome == "left out")):
        return f"the states differ, with {len(events)} events"
    told = [(event["client"], event["round"]) for event in events]
    if told != ([] if outcome == "fine" else [(BAD, TRIALS[method].round)]):
        return f"events {[(event['client'], event['round'], event['reason']) for event in events]}"
    return None


def kinds_of(method: str) -> list[str]:
    """Those that its clients can come to."""
    return [name for name, kind in KINDS.items() if not kind.only or method in kind.only]


@pytest.mark.parametrize(("kind", "method"), QUICK)
def test_a_client_that_misbehaves_is_as_one_that_was_not_drawn(kind, method, capfd):
    assert broken(kind, method) is None


@pytest.mark.parametrize("method", ["FedAvg", "Own"])
def test_it_would_be_seen_if_a_client_were_left_out_or_not(method):
    assert not same(expected(method, True), expected(method, False))


def test_a_client_that_did_something_else_would_be_seen(monkeypatch):
    """The sibling: one that never acts, and one whose act fails for another reason."""
    monkeypatch.setitem(KINDS, "never", Kind("no_such_hook", lambda _: None))
    assert broken("never", "FedAvg") == "it was to end as 'returned', and ended as ''"
    monkeypatch.setitem(KINDS, "mistaken", Kind("on_client_end", lambda module: module.no_such_part))
    assert broken("mistaken", "FedAvg") == "it was to end as 'returned', and ended as 'AttributeError'"


def test_every_method_and_one_of_a_users_own_is_tried_with_sixty_kinds():
    ours = {kind for kind in vars(methods).values() if isinstance(kind, type) and issubclass(kind, FederatedModule)}
    assert {trial.kind for trial in TRIALS.values()} == ours - {FederatedModule} | {Own}
    assert all(len(kinds_of(method)) >= 60 for method in TRIALS)


@pytest.mark.slow
@pytest.mark.parametrize("method", TRIALS)
def test_every_kind_of_misbehaviour(method):
    never = TRIALS[method].never
    found = {name: broken(name, method) for name in kinds_of(method)}
    silent = {name for name in found if KINDS[name].where in never}
    bad = {name: problem for name, problem in found.items() if problem and name not in silent}
    acted = [name for name in silent if not str(found[name]).endswith("ended as ''")]
    print(f"\n{method}: {len(found) - len(silent) - len(bad)} of {len(found) - len(silent)} kinds held {bad}")
    for where, why in never.items():
        print(f"  {sum(KINDS[name].where == where for name in silent)} in {where} do not apply: {why}")
    assert bad == {}
    assert acted == []
