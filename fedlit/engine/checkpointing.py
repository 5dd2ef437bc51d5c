"""Saves a run as a checkpoint and restores it: plain tensors, numbers and strings."""

import warnings
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from lightning_utilities.core.apply_func import apply_to_collection

from fedlit.callbacks import add_states
from fedlit.data.preprocessing import kept_preprocessing, prepare_as
from fedlit.engine.plan import ClientState
from fedlit.engine.processes import all_gather, in_blocks
from fedlit.engine.run_setup import ResumePoint
from fedlit.engine.scheduling import Schedule
from fedlit.engine.state import FederationState
from fedlit.methods.states import twin
from fedlit.notices import Notice
from fedlit.records.checkpoint import FILES, FORMAT, WITH_FILES, Checkpoints, write_client
from fedlit.records.choices import NOT_THERE, changes, choices, environment
from fedlit.rng import isolated

# By client.
PERSONAL = "personal_states"
OPTIMIZERS = "optimizer_states"
RESIDUALS = "residuals"  # error feedback of the upload encoder
COLLECTED = "collected"  # uploads that the server keeps
UPLOADS = "uploads"  # the last ones, where a stage keeps them
# In some runs only.
ATTRIBUTES = "attributes"  # of the method, that the server's side has changed
HOSTS = "hosts"  # of the clients
SECRET = "privacy_secret"  # of noise and sampling under `trainer.privacy`
RECEIVED_CONSTANTS = "equipped"  # clients that have the constant entries
TO_EVALUATE = ("method", "num_clients", "shared state")  # what must agree to evaluate
CHECKED_CLIENTS = 50
MUCH = 64e6  # bytes of client states; with less, a checkpoint is one file
Version = tuple[ref[ClientState] | None, ...]  # of a client's state and of its collected upload


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
        "partition": state.data.fingerprint(),
        "privacy": privacy,
    }


def run_with(state: FederationState) -> dict[str, Any]:
    """Versions and options of a run, as a checkpoint holds them; computed once a fit."""
    return {"made_with": environment(), "choices": choices(state.options, state.data, state.module)}


def _kept_of(state: FederationState, k: int) -> dict[str, Any]:
    """What stays with a client, by the keys under which a checkpoint has it of all clients."""
    kept: dict[str, Any] = {}
    if k in state.client_states.here:
        client_state = state.client_states.on_host(k)
        kept = {PERSONAL: on_cpu(client_state.state), OPTIMIZERS: on_cpu(client_state.optimizer)}
        if client_state.residual:
            kept[RESIDUALS] = on_cpu(client_state.residual)
    if k in state.collected.here:
        kept[COLLECTED] = on_cpu(state.collected.on_host(k).state)
    return kept


def on_cpu(value: Any) -> Any:
    """Tensors in containers, detached and on the CPU."""
    return apply_to_collection(value, torch.Tensor, lambda tensor: tensor.detach().cpu())


def _not_of_server(state: FederationState) -> dict[str, torch.Tensor]:
    """Of the initial state what the server does not hold."""
    return {name: tensor for name, tensor in state.initial.items() if name not in state.global_state}


def _check_optimizers(state: FederationState, resume_point: ResumePoint) -> None:
    """Refuse an optimiser of another class where the checkpoint holds the state of one."""
    content = resume_point.content
    of_clients = [*content[OPTIMIZERS].values(), content["server_optimizer"]]
    has_state = {
        "model.optimizer": state.options.optimizer_state != "reset" and any(any(kept.values()) for kept in of_clients),
        "trainer.server_optimizer": any(content["server_momenta"].values()),
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


def resume(state: FederationState, resume_point: ResumePoint, schedule: Schedule, training: bool) -> None:
    """Resume from a checkpoint of the same experiment, and warn of options that have changed.

    To evaluate, only the shapes must agree.
    """
    content = resume_point.content
    origin = f"`--ckpt_path` {resume_point.checkpoint}"
    _check_fingerprint(state, schedule, content, origin, training)
    if training:
        _check_rounds(state, schedule, content, origin)
    elif "preprocessing" in content:
        prepare_as(state.data, content["preprocessing"])
    _check_networks(state, content, f"{origin} is of another experiment:")
    _restore_server(state, schedule, content)
    _restore_clients(state, content)
    if training:
        resume_point.changes = changes(content, **run_with(state))
        _check_optimizers(state, resume_point)
        for change in resume_point.changes:
            warnings.warn(f"{change}, from round {state.round + 1} on.", Notice, stacklevel=2)


def _restore_server(state: FederationState, schedule: Schedule, content: dict[str, Any]) -> None:
    device = state.fabric.device
    state.round = content["round"]
    state.stage = next((stage for stage in schedule.stages if stage.name in content["stages"][-1:]), None)
    state.global_state = {name: tensor.to(device, copy=True) for name, tensor in content["global_state"].items()}
    state.initial |= {name: tensor.to(device, copy=True) for name, tensor in content["initial_state"].items()}
    state.server_training_state = ClientState(optimizer=_copied(content["server_optimizer"]))
    state.server_optimizer_state = _copied(content["server_momenta"])
    state.received_constants = set(content.get(RECEIVED_CONSTANTS, ()))
    state.scores.last = content["last"]
    state.scores.best = content["best"]
    if state.secret is not None:
        state.secret = str(content.get(SECRET, state.secret))  # version 0.2 has none, and goes on with a new one
    state.attributes.put(content.get(ATTRIBUTES, {}))


def _restore_clients(state: FederationState, content: dict[str, Any]) -> None:
    """Client states and collected uploads; on several ranks, of the clients that this rank owns."""
    kinds = [content[PERSONAL], content[OPTIMIZERS], content.get(RESIDUALS, {})]
    if state.options.optimizer_state == "reset":
        kinds[1] = {}
    collected = content[COLLECTED]
    names = {k: tuple(own) for k, own in content[PERSONAL].items()}
    rank = state.fabric.global_rank
    if state.fabric.world_size > 1:
        names = {**dict.fromkeys(collected, ()), **names}  # who keeps nothing else has an owner, too
        ranks = in_blocks(len(names), state.fabric.world_size)
        state.owner_ranks = dict(zip(names, ranks, strict=True))
    for k, own in names.items():
        if state.owner_ranks.get(k, rank) == rank:
            state.client_states[k] = ClientState(*(_copied(kind.get(k, {})) for kind in kinds))
        else:
            state.client_states.record_remote({k: own})
    state.collected.clear()
    for k, uploaded in collected.items():
        if state.owner_ranks.get(k, rank) == rank:
            state.collected[k] = _copied(uploaded)
        else:
            state.collected.record_remote({k: tuple(uploaded)})
    for k, uploaded in content.get(UPLOADS, {}).items():
        state.uploads[k] = _copied(uploaded)
    if state.hosts is not None:
        state.client_states.record_remote(state.hosts.resume(content[HOSTS]))
    elif HOSTS in content:
        state.client_states.record_remote({k: tuple(names) for k, names in content[HOSTS]["names"].items()})


def _check_fingerprint(
    state: FederationState, schedule: Schedule, content: dict[str, Any], origin: str, training: bool
) -> None:
    theirs = content["fingerprint"]
    ours = fingerprint(state, schedule)
    for key in ours if training else TO_EVALUATE:
        if theirs.get(key) != ours[key]:
            is_long = key in ("partition", "shared state")
            detail = "" if is_long else f" ({theirs.get(key)} there, {ours[key]} here)"
            raise ValueError(f"{origin} is of another experiment: its {key} differs{detail}.")
    if theirs.get("partition") != ours["partition"] and not state.data.is_placeholder:
        warnings.warn(f"The data are dealt out otherwise than in the run of {origin}.", Notice, stacklevel=2)


def _check_rounds(state: FederationState, schedule: Schedule, content: dict[str, Any], origin: str) -> None:
    """The rounds so far are those of this schedule, with clients in the same place."""
    here = [schedule.stage(number).name for number in range(1, content["round"] + 1)][: len(schedule)]
    if content["stages"] != here:
        raise ValueError(
            f"{origin} has done {_counted(content['stages'])}; with these options it would have been "
            f"{_counted(here)}: a stage that is over cannot be made longer or shorter."
        )
    if state.hosts is None and HOSTS in content:
        raise ValueError(f"{origin} is of a run whose clients have hosts of their own; resume it there.")
    if state.hosts is not None and HOSTS not in content:
        raise ValueError(f"{origin} is of a simulation; it cannot be resumed with clients on other hosts.")


def _check_networks(state: FederationState, content: dict[str, Any], problem: str) -> None:
    """The method, and the networks of the first clients, as they are built here, take the states they had there."""
    if _shapes(content["initial_state"]) != _shapes(_not_of_server(state)):
        raise ValueError(f"{problem} its personal state differs.")
    by_client = [content.get(key, {}) for key in (PERSONAL, COLLECTED, UPLOADS)]
    trial = twin(state.module)
    for k in sorted(set().union(*by_client))[:CHECKED_CLIENTS]:
        with isolated(0):
            trial.configure_client(state.data.client(k))
        shapes = _shapes(trial.state_dict())
        found = [item for states in by_client for item in _shapes(states.get(k, {})).items()]
        if any(shapes.get(name) != shape for name, shape in found):
            raise ValueError(f"{problem} the network of client {k} differs.")


def _counted(names: list[str]) -> str:
    return ", ".join(f"{len(list(same))} rounds of {name!r}" for name, same in groupby(names)) or "no rounds"


def _shapes(state: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in state.items()}


def _copied(value: Any) -> Any:
    """Tensors in memory: a checkpoint is a mapped file, which may be overwritten."""
    return apply_to_collection(value, torch.Tensor, torch.clone)


class Saving:
    """Writes the checkpoints of one fit; its methods are collective.

    `folder` is that of the run; None saves nothing, as `trainer.enable_checkpointing` false does.
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
        self.fingerprint = fingerprint(state, schedule)
        self.round = state.round  # of the last checkpoint
        self.folder = folder / "checkpoints" if folder is not None and state.options.enable_checkpointing else None
        self.checkpoints: Checkpoints | None = None
        self._written: dict[int, tuple[Version, str]] = {}  # of each client: what was written, and the file
        if self.folder is not None and state.fabric.is_global_zero:
            self.checkpoints = Checkpoints(self.folder, resume_point.checkpoint)
        if self.folder is not None and resume_point.checkpoint is not None:
            is_ours = resume_point.checkpoint.resolve().parent == self.folder.resolve()
            self._go_on_from(resume_point.checkpoint, resume_point.content.get(FILES, {}), is_ours)

    def _go_on_from(self, origin: Path, names: Mapping[int, str], is_ours: bool) -> None:
        """Files of clients stay as they are; a checkpoint that is not the last becomes the last."""
        if is_ours and self.state.options.optimizer_state != "reset":  # else clients have forgotten something since
            self._written = {k: (self._version(k), names[k]) for k in self._clients_here() if k in names}
        if is_ours and origin.name == "last.ckpt":
            return
        files = self._files()
        if self.checkpoints is not None:
            self.checkpoints.go_back(self._content(files), origin)

    def save(self, improved: bool = False) -> None:
        """A checkpoint of the rounds so far, if there are to be any."""
        with self.state.options.profiler.profile("save"):
            files = self._files()
            if self.checkpoints is not None:
                self.checkpoints.save(self._content(files), improved)
        self.round = self.state.round

    def _content(self, files: dict[int, str] | None) -> dict[str, Any]:
        """Of a checkpoint; with the states of clients, or the names of their files."""
        state = self.state
        by_client: dict[str, dict[int, Any]] = {PERSONAL: {}, OPTIMIZERS: {}, COLLECTED: {}, RESIDUALS: {}}
        for k in self._clients_here() if files is None else ():
            for key, kept in _kept_of(state, k).items():
                by_client[key][k] = kept
        in_some_runs = {
            UPLOADS: {k: on_cpu(state.uploads.on_host(k).state) for k in state.uploads},
            ATTRIBUTES: state.attributes.saved,
            RECEIVED_CONSTANTS: sorted(state.received_constants),
            SECRET: state.secret,
            HOSTS: None if state.hosts is None else state.hosts.state_dict(),
            FILES: files,
        }
        content = {
            "format": FORMAT if files is None else WITH_FILES,
            "round": state.round,
            "stages": [self.schedule.stage(number).name for number in range(1, state.round + 1)],
            "global_state": on_cpu(state.global_state),
            **by_client,
            "server_optimizer": on_cpu(state.server_training_state.optimizer),
            "server_momenta": on_cpu(state.server_optimizer_state),
            "initial_state": on_cpu(_not_of_server(state)),
            "last": state.scores.last,
            "best": state.scores.best,
            "fingerprint": self.fingerprint,
            "preprocessing": kept_preprocessing(state.data),
            **{key: value for key, value in in_some_runs.items() if value},
            **self.run_with,
        }
        add_states(content, state.options.callbacks)
        self.call("on_save_checkpoint", content)
        return content

    def _files(self) -> dict[int, str] | None:
        """The file of every client that has a state, each written once; None if states go into the checkpoint."""
        state = self.state
        if state.fabric.world_size == 1:
            needs_files = state.client_states.num_bytes + state.collected.num_bytes >= MUCH
        else:  # other ranks, which may be lost, need not be asked where they have nothing
            needs_files = bool(state.owner_ranks)
        if self.folder is None or not needs_files:
            return None
        rank = state.fabric.global_rank
        own: dict[int, str] = {}
        for k in self._clients_here():
            version = self._version(k)
            if state.owner_ranks.get(k, rank) != rank:
                continue
            if k not in self._written or self._written[k][0] != version:
                self._written[k] = (version, write_client(_kept_of(state, k), self.folder))
            own[k] = self._written[k][1]
        return dict(sorted(all_gather(state.fabric, own).items()))

    def _clients_here(self) -> list[int]:
        """Clients of which this rank has something."""
        return sorted({*self.state.client_states.here, *self.state.collected.here})

    def _version(self, k: int) -> Version:
        """Another one whenever something else is kept of a client."""
        stores = (self.state.client_states, self.state.collected)
        return tuple(ref(store.on_host(k)) if k in store.here else None for store in stores)
