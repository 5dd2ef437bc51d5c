"""How a fit is saved: every process what stays with its clients, and the first the checkpoint that names it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedlit.callbacks import add_states
from fedlit.engine.runs.begin import Beginning
from fedlit.engine.runs.saved_clients import SavedClients
from fedlit.engine.runs.snapshot import run_with, take
from fedlit.engine.states.state import FederationState
from fedlit.engine.turns.schedule import Schedule
from fedlit.records.checkpoint import Checkpoints
from fedlit.records.fit_log import FitLog


class Saving:
    """The checkpoints of one fit; whatever is asked of it, every process must ask.

    Args:
        state: Of the federation.
        schedule: The programme of its rounds.
        folder: Of the run; None saves nothing, as `trainer.enable_checkpointing` false does.
        call: Calls a hook of every callback, with details.
        begun: What the fit begins from.

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
        begun: Beginning,
    ) -> None:
        self.state = state
        self.schedule = schedule
        self.call = call
        self.run_with = run_with(state)
        self.round = state.round
        self._clients: SavedClients | None = None
        self.is_enabled = state.options.enable_checkpointing
        if folder is not None and self.is_enabled:
            self._clients = SavedClients(state, folder / "checkpoints", begun.checkpoint, begun.content)
            self._go_back(Checkpoints(folder / "checkpoints"), begun.checkpoint)

    def _go_back(self, checkpoints: Checkpoints, origin: Path | None) -> None:
        """Where a run goes on from another checkpoint than its last, that one becomes its last."""
        if origin is None or origin.resolve() == checkpoints.last.resolve():
            return
        files = self._files()
        if self.state.fabric.is_global_zero:
            checkpoints.go_back(self._content(files), origin)

    @property
    def can_be_alone(self) -> bool:
        """Whether this process has all that there is to save: others may be past asking."""
        return self.is_enabled and not self.state.homes

    def save(self, log: FitLog, improved: bool) -> None:
        """A checkpoint of the rounds so far, if there are to be any."""
        files = self._files()
        if log.checkpoints is not None:
            log.checkpoints.save(self._content(files), improved)
        self.round = self.state.round

    def _files(self) -> dict[int, str] | None:
        is_nothing_anywhere = self.state.fabric.world_size > 1 and not self.state.homes
        if self._clients is None or is_nothing_anywhere:  # nobody need be asked, who may be gone
            return None
        return self._clients.save()

    def _content(self, files: dict[int, str] | None) -> dict[str, Any]:
        content = take(self.state, self.schedule, self.run_with, files)
        add_states(content, self.state.options.callbacks)
        self.call("on_save_checkpoint", content)
        return content
