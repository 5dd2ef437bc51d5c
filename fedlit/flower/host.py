"""A client's own host: it is asked to join, to train and to evaluate, and answers with what may leave it.

What stays with the client (its personal state, its optimiser's) is read from and written to files of this host. An
answer holds the upload, numbers that were logged or measured, names of what is kept, or why there is nothing.
"""

import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedlit
from fedlit.data import FederatedData
from fedlit.data.preprocessing import kept_preprocessing
from fedlit.engine.client_runner import ClientResult, pack
from fedlit.engine.evaluation import EvaluationJob, Scorer
from fedlit.engine.live_module import client_failure
from fedlit.engine.plan import ClientState, LocalResult
from fedlit.engine.round import ClientRound
from fedlit.engine.scheduling import Schedule
from fedlit.engine.state import Download, FederationState
from fedlit.federation import Federation
from fedlit.flower import wire
from fedlit.flower.own_files import OwnFiles
from fedlit.methods.base import FederatedModule
from fedlit.records.progress import Progress
from fedlit.records.round_record import Failure
from fedlit.rng import preserved


class Host:
    """One client, on its own host.

    Args:
        federation: As the recipe has it; nothing is recorded here.
        model: The method.
        data: Of which only this client's samples are looked at.
        client: Its number.
        folder: Where what stays with it is kept.
        owns_data: Whether the data are the client's own, and not dealt out by the recipe.
    """

    def __init__(
        self,
        federation: Federation,
        model: FederatedModule,
        data: FederatedData,
        client: int,
        folder: Path,
        owns_data: bool = False,
    ) -> None:
        if not 0 <= client < data.num_clients:
            raise ValueError(f"`client` of the node must be 0 to {data.num_clients - 1}, got {client}.")
        federation.load(model, data)
        self.state = federation.state
        self.schedule = Schedule(model.configure_stages(), federation.options)
        self.client = client
        self.folder = folder
        self.owns_data = owns_data
        self._first = dict(self.state.global_state)

    def answer(self, what: str, letter: wire.Letter) -> bytes:
        """What this client says to a letter; whatever goes wrong is an answer, too."""
        answers = {"join": self._join, "train": self._train, "evaluate": self._evaluate}
        try:
            device = self.state.fabric.device
            common = wire.unpack(letter.common, device)
            asked = wire.unpack(letter.own, device)
            if asked["protocol"] != wire.PROTOCOL:
                raise ValueError(f"the server speaks protocol {asked['protocol']}, this host {wire.PROTOCOL}.")
            return wire.pack(answers[what](common, asked, letter.digest))
        except Exception as error:
            return wire.pack(_failure(client_failure(error)))

    def _join(self, common: dict[str, Any], asked: dict[str, Any], digest: str) -> dict[str, Any]:
        """Who this is, and what the server must know to plan its rounds: numbers of samples, and of what kind."""
        data = self.state.data
        assignment = data.assignment
        own_test = assignment.own_test[self.client] if assignment.own_test else ()
        return {
            "protocol": wire.PROTOCOL,
            "fedlit": fedlit.__version__,
            "client": self.client,
            "num_clients": data.num_clients,
            "train": len(assignment.train[self.client]),
            "opted_in": int(np.count_nonzero(assignment.opted_in[self.client])),
            "val": len(assignment.val[self.client]),
            "own_test": len(own_test),
            "owns_data": self.owns_data,
            "constant": digest_of(self.state),
            "preprocessing": kept_preprocessing(data),
        }

    def _train(self, common: dict[str, Any], asked: dict[str, Any], digest: str) -> dict[str, Any]:
        number = asked["round"]
        files = self._files(asked)
        before = self._before(files, asked["base"])
        done = files.read(number)
        if done is not None and done["digest"] == digest:
            return done["answer"]
        self._load(common, asked, before)
        with preserved():
            result = self._round(asked).runner.train(self.client)
        answer = self._answer(result)
        if result.outcome is not None and result.problem is None:
            client_state = vars(result.outcome.client_state)
            given = self._given(result.outcome, number, before)
            files.write(number, wire.compact({"digest": digest, "memory": client_state, "answer": answer, **given}))
        return answer

    def _round(self, asked: dict[str, Any]) -> ClientRound:
        number = asked["round"]
        plans = {self.client: self.schedule.plan(number, self.client)}
        silent = Progress(len(self.schedule), enabled=False)
        return ClientRound(self.state, number, self.schedule.stage(number), plans, asked["score"], silent)

    def _answer(self, result: ClientResult) -> dict[str, Any]:
        """What leaves this host."""
        if result.problem is not None:
            return _failure(result.problem)
        packed = pack(result)
        client_state = packed.pop("memory")
        return {**packed, "names": list(client_state["state"])}

    def _given(self, outcome: LocalResult, number: int, before: dict[str, Any]) -> dict[str, Any]:
        """What the client goes on with although it has given it to the server; its own copy is here."""
        stage = self.schedule.stage(number)
        collected = before.get("collected", {})
        uploaded = before.get("uploaded", {})
        upload = outcome.upload
        if upload is not None and stage.upload == "collect":
            collected = upload.state
        if upload is not None and stage.keep_uploads and self.state.has_custom_download:
            uploaded = upload.state
        return {"collected": collected, "uploaded": uploaded}

    def _evaluate(self, common: dict[str, Any], asked: dict[str, Any], digest: str) -> dict[str, Any]:
        number = asked["round"]
        self._load(common, asked, self._before(self._files(asked), asked["base"]))
        scorer = Scorer(self.state, self.schedule.stage(number))
        found = []
        for what in asked["jobs"]:
            one = scorer.run(EvaluationJob(what, [self.client]), number)
            one.failed = {k: {**failure, "details": ""} for k, failure in one.failed.items()}
            found.append(vars(one))
        return {"failed": False, "found": found}

    def _files(self, asked: dict[str, Any]) -> OwnFiles:
        keep = 2 * self.state.options.save_every_n_rounds + 1  # of `previous.ckpt`, and of the round under way
        return OwnFiles(self.folder, asked["experiment"], self.client, keep)

    def _before(self, files: OwnFiles, base: int) -> dict[str, Any]:
        """What the client has kept of its last round that counts."""
        if not base:
            return {}
        before = files.read(base)
        if before is None:
            raise ValueError(f"of round {base} nothing is kept in {files.folder.name}, only of {files.rounds()}.")
        return before

    def _load(self, common: dict[str, Any], asked: dict[str, Any], before: dict[str, Any]) -> None:
        """Be this client as it was, with what the server sends it; nothing is left of what was asked earlier."""
        state = self.state
        k = self.client
        apart = asked["sent"]
        state.own_download = Download(apart["state"], apart["received"]) if apart else None
        state.module.num_clients = asked["num_sharing"]
        state.round = asked["round"] - 1
        state.stage = next((stage for stage in self.schedule.stages if stage.name == asked["last_stage"]), None)
        state.global_state = {**self._first, **common["state"]}
        state.load_global()
        on_device = wire.to(before, state.fabric.device)
        for store in (state.client_states, state.collected, state.uploads):
            store.clear()
        if before:
            state.client_states[k] = ClientState(**on_device["memory"])
        if before and before["collected"]:
            state.collected[k] = on_device["collected"]
        if before and before["uploaded"]:
            state.uploads[k] = on_device["uploaded"]


def digest_of(state: FederationState) -> str:
    """Of what is frozen and the same for all: it does not travel, every host builds it by the recipe."""
    digest = sha256()
    for name, tensor in state.constant_state.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _failure(problem: Failure) -> dict[str, Any]:
    """Why there is no result, in a line; the traceback stays on this host."""
    if problem.details:
        sys.stderr.write(f"{problem.details}\n")
    return {"failed": True, "reason": problem.reason, "is_usage": problem.is_usage}
