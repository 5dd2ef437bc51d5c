"""The server's side: what clients on other hosts are asked, and what the engine is given of their answers.

An answer is taken for what anybody might have sent: its size, its parts and their kinds are looked at before the
engine's own checks of states. Answers are passed on in the order of client ids, whatever order they come in.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from fedlit.aggregation import State, num_bytes
from fedlit.engine.child_process import unusable
from fedlit.engine.client_runner import ClientResult, has_download, unpack_untrusted
from fedlit.engine.evaluation import EvaluationResult, Scorer, received_result
from fedlit.engine.round import ClientRound
from fedlit.engine.state import Download, FederationState, Names
from fedlit.flower import wire
from fedlit.flower.host import digest_of
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure, reported

BESIDE = 2**24  # bytes of an answer beside its tensors
MOST = 2**31  # bytes of an answer whose tensors are not known beforehand


class Post(Protocol):
    """Carries letters to clients and brings answers back."""

    def ask(self, what: str, letters: Mapping[int, wire.Letter]) -> Iterator[tuple[int, bytes | Failure]]:
        """The answer of each client, or why there is none, in the order in which they come."""


class RemoteHosts:
    """All clients of a federation, by post.

    Args:
        post: By which they are reached.
        joined: What each said of itself when it joined.

    Attributes:
        experiment: What clients keep their files under; a run that is resumed goes on with its own.
        rounds: Each client's last round that counts.
    """

    def __init__(self, post: Post, joined: Mapping[int, Mapping[str, Any]]) -> None:
        self.post = post
        self.joined = joined
        self.experiment = secrets.token_hex(16)
        self.rounds: dict[int, int] = {}
        self.names: Names = {}
        self._digest: str | None = None
        self._answered: Names = {}  # in the round that is under way

    def state_dict(self) -> dict[str, Any]:
        names = {k: list(names) for k, names in self.names.items()}
        return {"experiment": self.experiment, "rounds": dict(self.rounds), "names": names}

    def resume(self, kept: Mapping[str, Any]) -> Names:
        self.experiment = kept["experiment"]
        self.rounds = dict(kept["rounds"])
        self.names = {k: tuple(names) for k, names in kept["names"].items()}
        return self.names

    def commit(self, round: int, clients: Sequence[int]) -> Names:
        found = {k: self._answered[k] for k in clients}
        self.rounds |= dict.fromkeys(clients, round)
        self.names |= found
        return found

    def train(self, round: ClientRound) -> Iterator[tuple[int, ClientResult, Download | None]]:
        """Let all train at once; results are yielded in client order."""
        state = round.state
        stage = round.stage
        is_apart = state.has_custom_download and has_download(state, stage)
        sent = {k: state.download_for(k, round.number) for k in round.clients} if is_apart else {}
        common = wire.pack({"state": {} if is_apart else travelling(state)})
        letters = {}
        for k in round.clients:
            asked = self._asked(state, k, round.number, sent.get(k))
            letters[k] = wire.Letter(common, wire.pack({**asked, "score": round.runner.is_scored}))
        for k, data in self._answers("train", letters):
            result = self._result(state, stage, k, data)
            if k in sent:
                result = result._replace(sent=num_bytes({**sent[k].state, **sent[k].received}))
            yield k, result, sent.get(k)

    def evaluate(self, scorer: Scorer, round: int, asked: Sequence[tuple[str, int]]) -> list[EvaluationResult]:
        """Let all evaluate at once, each with one letter for all that is asked of it."""
        state = scorer.state
        jobs: dict[int, list[str]] = {}
        for what, k in asked:
            jobs.setdefault(k, []).append(what)
        common = wire.pack({"state": {**travelling(state), **evaluated(scorer)}})
        letters = {}
        for k in sorted(jobs):
            sent = state.download_for(k, round) if state.has_custom_download else None
            one = {**self._asked(state, k, round, sent), "jobs": jobs[k]}
            letters[k] = wire.Letter(common, wire.pack(one))
        answers = {k: _found(k, jobs[k], data) for k, data in self._answers("evaluate", letters)}
        return [answers[k][what] for what, k in asked]

    def _asked(self, state: FederationState, k: int, round: int, sent: Download | None) -> dict[str, Any]:
        return {
            "protocol": wire.PROTOCOL,
            "experiment": self.experiment,
            "round": round,
            "base": self.rounds.get(k, 0),
            "last_stage": None if state.stage is None else state.stage.name,
            "num_sharing": state.module.num_clients,
            "sent": None if sent is None else {"state": sent.state, "received": sent.received},
        }

    def _constant(self, state: FederationState) -> str:
        """Of what is frozen; it is so for the whole run."""
        if self._digest is None:
            self._digest = digest_of(state)
        return self._digest

    def _answers(self, what: str, letters: Mapping[int, wire.Letter]) -> Iterator[tuple[int, bytes | Failure]]:
        """In the order of the letters."""
        waiting = list(letters)
        early: dict[int, bytes | Failure] = {}
        for k, data in self.post.ask(what, letters):
            early[k] = data
            while waiting and waiting[0] in early:
                first = waiting.pop(0)
                yield first, early.pop(first)
        for k in waiting:
            yield k, early.get(k, Failure("no answer came."))

    def _result(self, state: FederationState, stage: Stage, k: int, data: bytes | Failure) -> ClientResult:
        """What an answer says, or what is wrong with it."""
        if isinstance(data, Failure):
            return ClientResult(None, {}, data)
        if self.joined[k]["constant"] != self._constant(state):
            problem = "what is frozen and the same for all differs on its host from the server's."
            return ClientResult(None, {}, Failure(problem))
        try:
            most = BESIDE + 2 * num_bytes(state.expected_upload(k)) if stage.upload == "aggregate" else MOST
            answer = wire.unpack(data, state.fabric.device, most)
            if answer["failed"]:
                return ClientResult(None, {}, reported(answer))
            names = tuple(map(str, answer.pop("names")))
            result = unpack_untrusted({**answer, "memory": {}}, stage, k)
            self._answered[k] = names
            return result
        except Exception as error:  # it may hold anything
            return ClientResult(None, {}, unusable(error))


def travelling(state: FederationState) -> State:
    """What any client is sent."""
    return {**state.shared_state, **state.sent_state}


def evaluated(scorer: Scorer) -> State:
    """Of what the server holds, the global model that clients evaluate on their own samples."""
    state = scorer.state
    live = state.live.tensors()
    own = {id(tensor) for tensor in scorer.network.state_dict(keep_vars=True).values()}
    constant = set(state.constant)
    held = {name: value for name, value in state.global_state.items() if name not in constant}
    return {name: value for name, value in held.items() if name in live and id(live[name]) in own}


def _found(k: int, jobs: list[str], data: bytes | Failure) -> dict[str, EvaluationResult]:
    """A client's evaluation results, by job; its answer may report on itself alone."""
    try:
        if isinstance(data, Failure):
            problem = data
        else:
            answer = wire.unpack(data, most=BESIDE)
            if not answer["failed"]:
                founds = [received_result(k, one) for one in answer["found"]]
                return dict(zip(jobs, founds, strict=True))
            problem = reported(answer)
    except Exception as error:  # it may hold anything
        problem = unusable(error)
    return {what: EvaluationResult(failed={k: vars(problem)}) for what in jobs}
