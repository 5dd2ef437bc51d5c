"""Saves a run as a checkpoint and restores it: plain tensors, numbers and strings."""

import warnings
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection

from fedlit.callbacks import add_states
from fedlit.data.preprocessing import kept_preprocessing, prepare_as
from fedlit.engine.client_store import assign_owners
from fedlit.engine.plan import ClientState
from fedlit.engine.processes import broadcast
from fedlit.engine.run_setup import NOT_THERE, ResumePoint, changes, choices
from fedlit.engine.scheduling import Schedule
from fedlit.engine.state import FederationState
from fedlit.methods.base import twin
from fedlit.notices import Notice
from fedlit.records import client_files
from fedlit.records.checkpoint import FORMAT, WITH_FILES, Checkpoints
from fedlit.records.client_files import FILES
from fedlit.records.environment import environment
from fedlit.records.fit_log import FitLog
from fedlit.rng import isolated

RESIDUALS = "residuals"  # error feedback of the upload encoder, by client; only where there is some
COLLECTED = "collected"  # uploads that the server keeps, by client
MUCH = 64e6  # bytes of client states; with less, a checkpoint is one file
Numbers = tuple[int | None, int | None]  # of a client's state and of its collected upload


class SavedClients:
    """Files of clients beside the checkpoints of one fit, each written once."""

    def __init__(self, state: FederationState, checkpoints: Path, origin: Path | None, content: dict[str, Any]) -> None:
        self.state = state
        self.checkpoints = checkpoints
        self._written: dict[int, tuple[Numbers, str]] = {}  # by client: what it has, and the file of that
        names = content.get(client_files.FILES, {})
        is_ours = origin is not None and origin.resolve().parent == checkpoints.resolve()
        if is_ours and state.options.optimizer_state != "reset":  # else they have forgotten something since
            self._written = {k: (self._numbers(k), names[k]) for k in self._clients() if k in names}

    def save(self) -> dict[int, str] | None:
        """The file of every client that has a state; None if it goes into the checkpoint. Collective."""
        state = self.state
        fabric = state.fabric
        if fabric.world_size == 1 and state.memories.num_bytes + state.collected.num_bytes < MUCH:
            return None
        own: dict[int, str] = {}
        for k in self._clients():
            if state.owner_ranks.get(k, fabric.global_rank) == fabric.global_rank:
                own[k] = self._file(k)
        found: dict[int, str] = {}
        for source in range(fabric.world_size):
            found |= broadcast(fabric, own, source)
        return {k: found[k] for k in sorted(found)}

    def _clients(self) -> list[int]:
        """Clients with a state on this rank."""
        return sorted({*self.state.memories, *self.state.collected.here()})

    def _numbers(self, k: int) -> Numbers:
        """The numbers of a client's state and collected upload in the store."""
        memories = self.state.memories
        collected = self.state.collected
        memory = memories.number(k) if k in memories else None
        upload = collected.number(k) if k in collected.here() else None
        return memory, upload

    def _file(self, k: int) -> str:
        numbers = self._numbers(k)
        if k not in self._written or self._written[k][0] != numbers:
            kept = kept_of(self.state, k)
            self._written[k] = (numbers, client_files.write(kept, self.checkpoints, self.state.fabric.global_rank))
        return self._written[k][1]


def kept_of(state: FederationState, k: int) -> dict[str, Any]:
    """A client's state, by the keys under which a checkpoint has it of all clients."""
    kept: dict[str, Any] = {}
    if k in state.memories:
        memory = state.memories.peek(k)
        kept = {"personal_states": on_cpu(memory.state), "optimizer_states": on_cpu(memory.optimizer)}
        if memory.residual:
            kept[RESIDUALS] = on_cpu(memory.residual)
    if k in state.collected:
        kept[COLLECTED] = on_cpu(state.collected.peek(k))
    return kept


def on_cpu(value: Any) -> Any:
    """Tensors in containers, detached and on the CPU."""
    return apply_to_collection(value, torch.Tensor, lambda tensor: tensor.detach().cpu())


TO_EVALUATE = ("method", "num_clients", "shared state")  # what must agree to evaluate
UPLOADS = "uploads"  # the last of every client; only where a stage keeps them
ATTRIBUTES = "attributes"  # of the method, that the server's side has changed; only where it has
HOSTS = "hosts"  # of the clients; only where they have some of their own
SECRET = "privacy_secret"  # of noise and sampling; only where `trainer.privacy` has one
RECEIVED_CONSTANTS = "equipped"  # clients that have the constant entries; only where there are some
CHECKED_CLIENTS = 50


def fingerprint(state: FederationState, schedule: Schedule) -> dict[str, Any]:
    """What must agree for a run to be resumed: method, seed, stages, clients, their data, shapes."""
    options = state.options
    privacy = None
    if options.privacy is not None:  # with other noise or another fraction, epsilon could not be computed
        privacy = f"{options.privacy!r} at `fraction_fit` {options.fraction_fit}"
    return {
        "method": type(state.module).__name__,
        "stages": [stage.name for stage in schedule.stages],
        "seed": options.seed,
        "num_clients": state.data.num_clients,
        "shared state": _shapes(state.global_state),
        "partition": state.partition_hash,
        "privacy": privacy,
    }


def run_with(state: FederationState) -> dict[str, Any]:
    """Versions and options of a run, as a checkpoint holds them; computed once a fit."""
    return {"made_with": environment(), "choices": choices(state)}


def take(
    state: FederationState, schedule: Schedule, run_with: Mapping[str, Any], files: Mapping[int, str] | None
) -> dict[str, Any]:
    """The content of a checkpoint after a round."""
    uploads = state.uploads.memories
    rare: dict[str, Any] = {}
    if files is not None:
        rare = {FILES: dict(files), "format": WITH_FILES}
    here = {k: kept_of(state, k) for k in state.memories} if files is None else {}
    if uploads:
        rare[UPLOADS] = {k: on_cpu(uploads.peek(k).state) for k in uploads}
    residuals = {k: kept[RESIDUALS] for k, kept in here.items() if RESIDUALS in kept}
    if residuals:
        rare[RESIDUALS] = residuals
    if state.attributes.noted:
        rare[ATTRIBUTES] = state.attributes.noted
    if state.received_constants:
        rare[RECEIVED_CONSTANTS] = sorted(state.received_constants)
    if state.secret is not None:
        rare[SECRET] = state.secret
    if state.hosts is not None:
        rare[HOSTS] = state.hosts.kept()
    return {
        "format": FORMAT,
        "round": state.round,
        "stages": [schedule.stage(number).name for number in range(1, state.round + 1)],
        "global_state": on_cpu(state.global_state),
        "personal_states": {k: kept["personal_states"] for k, kept in here.items()},
        "optimizer_states": {k: kept["optimizer_states"] for k, kept in here.items()},
        COLLECTED: {k: on_cpu(state.collected.peek(k)) for k in state.collected} if files is None else {},
        "server_optimizer": on_cpu(state.server_memory.optimizer),
        "server_momenta": on_cpu(state.server_momenta),
        "initial_state": on_cpu({n: t for n, t in state.initial.items() if n not in state.global_state}),
        "last": state.scores.last,
        "best": state.scores.best,
        "fingerprint": fingerprint(state, schedule),
        "preprocessing": kept_preprocessing(state.data),
        **rare,
        **run_with,
    }


def resume(state: FederationState, resume_point: ResumePoint, schedule: Schedule, training: bool) -> None:
    """Resume from a checkpoint; a fit warns of every option that has changed."""
    restore(state, resume_point.content, str(resume_point.checkpoint), schedule, training)
    if training:
        resume_point.changes = changes(resume_point.content, **run_with(state))
        _check_optimizers(state, resume_point)
        resume_point.warn_of_changes()


def _check_optimizers(state: FederationState, resume_point: ResumePoint) -> None:
    """Refuse an optimiser of another class where the checkpoint holds the state of one."""
    content = resume_point.content
    of_clients = [*content["optimizer_states"].values(), content["server_optimizer"]]
    has_state = {
        "model.optimizer": state.options.optimizer_state != "reset" and any(any(kept.values()) for kept in of_clients),
        "trainer.server_optimizer": any(content.get("server_momenta", {}).values()),
    }
    for change in resume_point.changes:
        option = change.option.partition("[")[0]  # a method may have several
        before, now = (text.partition("(")[0] for text in (change.before, change.now))
        if has_state.get(option) and now not in (before, NOT_THERE):
            hint = "; `--trainer.optimizer_state reset` discards it" if option == "model.optimizer" else ""
            raise ValueError(
                f"`{option}` is {now} and cannot use the state of {before} in `--ckpt_path` "
                f"{resume_point.checkpoint}{hint}."
            )


def restore(state: FederationState, content: dict[str, Any], path: str, schedule: Schedule, training: bool) -> None:
    """Restore a checkpoint of the same experiment; to evaluate, only the shapes must agree."""
    theirs = content.get("fingerprint", {})
    _check_fingerprint(theirs, fingerprint(state, schedule), path, training, state.data.is_placeholder)
    if training:
        _check_stages(content, schedule, path)
        _check_hosts(state, content, path)
    elif "preprocessing" in content:  # else it is of before
        prepare_as(state.data, content["preprocessing"])
    own = {name: tensor for name, tensor in state.initial.items() if name not in state.global_state}
    if _shapes(content["initial_state"]) != _shapes(own):
        raise ValueError(f"`--ckpt_path` {path} is of another experiment: its personal state differs.")
    _check_personal(state, content["personal_states"], path)
    _check_personal(state, content[COLLECTED], path)
    _check_personal(state, content.get(UPLOADS, {}), path)
    device = state.fabric.device
    stage = next((s for s in schedule.stages if s.name in content["stages"][-1:]), None)
    state.resume(
        content["round"],
        stage,
        global_state=_on_device(content["global_state"], device),
        initial=_on_device(content["initial_state"], device),
    )
    state.scores.resume(content["last"], content["best"])
    if state.secret is not None:
        state.secret = str(content.get(SECRET, state.secret))  # older files have none, and go on with a new one
    momenta = content["optimizer_states"]
    if state.options.optimizer_state == "reset":
        momenta = {k: {} for k in momenta}
    server_momenta = content.get("server_momenta", {})  # older files have none
    server_memory = ClientState(optimizer=_copied(content["server_optimizer"]))
    _restore_clients(state, content, momenta)
    state.resume_server(server_memory, _copied(server_momenta))
    state.attributes.put(content.get(ATTRIBUTES, {}), f"`--ckpt_path` {path}")
    if state.hosts is not None:
        state.memories.know(state.hosts.resume(content[HOSTS]))
    elif HOSTS in content:
        state.memories.know({k: tuple(names) for k, names in content[HOSTS]["names"].items()})


def _restore_clients(state: FederationState, content: dict[str, Any], momenta: Mapping[int, Any]) -> None:
    """Client states and collected uploads; on several ranks, of the clients that this rank owns."""
    several = state.fabric.world_size > 1
    personal = content["personal_states"]
    residuals = content.get(RESIDUALS, {})
    collected = content[COLLECTED]
    names = {k: tuple(own) for k, own in personal.items()}
    if several:
        names = {**dict.fromkeys(collected, ()), **names}  # who keeps nothing else has an owner, too
    mine = assign_owners(state, names)

    def memory(k: int) -> ClientState:
        return ClientState(_copied(personal.get(k, {})), _copied(momenta.get(k, {})), _copied(residuals.get(k, {})))

    here = [k for k in collected if k in mine or not several]
    state.resume_clients(
        memories=((k, memory(k)) for k in mine),
        collected=((k, _copied(collected[k])) for k in here),
        uploads=((k, _copied(uploaded)) for k, uploaded in content.get(UPLOADS, {}).items()),
        received_constants=content.get(RECEIVED_CONSTANTS, ()),
    )
    state.collected.know({k: tuple(collected[k]) for k in collected if k not in here})


def _check_fingerprint(
    theirs: dict[str, Any], ours: dict[str, Any], path: str, training: bool, is_placeholder: bool
) -> None:
    for key in ours if training else TO_EVALUATE:
        if theirs.get(key) != ours[key]:
            detail = f" ({theirs.get(key)} there, {ours[key]} here)"
            if key in ("partition", "shared state"):  # too long to print
                detail = ""
            raise ValueError(f"`--ckpt_path` {path} is of another experiment: its {key} differs{detail}.")
    if not training and theirs.get("partition") != ours["partition"] and not is_placeholder:
        warnings.warn(f"The data are dealt out otherwise than in the run of {path}.", Notice, stacklevel=2)


def _check_stages(content: dict[str, Any], schedule: Schedule, path: str) -> None:
    here = [schedule.stage(number).name for number in range(1, content["round"] + 1)][: len(schedule)]
    if content["stages"] != here:
        raise ValueError(
            f"`--ckpt_path` {path} has done {_counted(content['stages'])}; with these options it would have been "
            f"{_counted(here)}: a stage that is over cannot be made longer or shorter."
        )


def _check_hosts(state: FederationState, content: dict[str, Any], path: str) -> None:
    """Client states are in the checkpoint, or on hosts of their own."""
    if state.hosts is None and HOSTS in content:
        raise ValueError(f"`--ckpt_path` {path} is of a run whose clients have hosts of their own; resume it there.")
    if state.hosts is not None and HOSTS not in content:
        raise ValueError(f"`--ckpt_path` {path} is of a simulation; it cannot be resumed with clients on other hosts.")


def _check_personal(state: FederationState, states: dict[int, dict[str, torch.Tensor]], path: str) -> None:
    """The networks of the first clients, as they are built here, take the states they had there."""
    trial = twin(state.module)
    for k in sorted(states)[:CHECKED_CLIENTS]:
        with isolated(0):
            trial.configure_client(state.data.client(k))
        shapes = _shapes(trial.state_dict())
        if any(shapes.get(name) != shape for name, shape in _shapes(states[k]).items()):
            raise ValueError(f"`--ckpt_path` {path} is of another experiment: the network of client {k} differs.")


def _counted(names: list[str]) -> str:
    return ", ".join(f"{len(list(same))} rounds of {name!r}" for name, same in groupby(names)) or "no rounds"


def _on_device(tensors: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}


def _shapes(state: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in state.items()}


def _copied(value: Any) -> Any:
    """Tensors in memory: a checkpoint is a mapped file, which may be overwritten."""
    return apply_to_collection(value, torch.Tensor, torch.clone)


class Saving:
    """Writes the checkpoints of one fit; its methods are collective.

    Args:
        state: Of the federation.
        schedule: The programme of its rounds.
        folder: Of the run; None saves nothing, as `trainer.enable_checkpointing` false does.
        call: Calls a hook of every callback, with details.
        resume_point: What the fit begins from.

    Attributes:
        run_with: What its rounds are run with.
        round: Of the last checkpoint.
    """

    def __init__(
        self,
        state: FederationState,
        schedule: Schedule,
        folder: Path | None,
        call: Callable[..., None],
        resume_point: ResumePoint,
    ) -> None:
        self.state = state
        self.schedule = schedule
        self.call = call
        self.run_with = run_with(state)
        self.round = state.round
        self._clients: SavedClients | None = None
        self.is_enabled = state.options.enable_checkpointing
        if folder is not None and self.is_enabled:
            self._clients = SavedClients(state, folder / "checkpoints", resume_point.checkpoint, resume_point.content)
            self._go_back(Checkpoints(folder / "checkpoints"), resume_point.checkpoint)

    def _go_back(self, checkpoints: Checkpoints, origin: Path | None) -> None:
        """A run that resumes another checkpoint than its last makes that one its last."""
        if origin is None or origin.resolve() == checkpoints.last.resolve():
            return
        files = self._files()
        if self.state.fabric.is_global_zero:
            checkpoints.go_back(self._content(files), origin)

    @property
    def can_be_alone(self) -> bool:
        """Whether this process has all that there is to save, so that others need not be there."""
        return self.is_enabled and not self.state.owner_ranks

    def save(self, log: FitLog, improved: bool) -> None:
        """A checkpoint of the rounds so far, if there are to be any."""
        files = self._files()
        if log.checkpoints is not None:
            log.checkpoints.save(self._content(files), improved)
        self.round = self.state.round

    def _files(self) -> dict[int, str] | None:
        is_nothing_anywhere = self.state.fabric.world_size > 1 and not self.state.owner_ranks
        if self._clients is None or is_nothing_anywhere:  # other ranks, which may be lost, need not be asked
            return None
        return self._clients.save()

    def _content(self, files: dict[int, str] | None) -> dict[str, Any]:
        content = take(self.state, self.schedule, self.run_with, files)
        add_states(content, self.state.options.callbacks)
        self.call("on_save_checkpoint", content)
        return content
