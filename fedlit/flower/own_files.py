"""What stays with a client, in files of its own host: one for every round, written whole or not at all.

    FOLDER/EXPERIMENT/client_3/round_00007.pt

holds what the client keeps after round 7, what it answered, and the digest of what it was asked. So a
round that is asked for again is answered from the file, and a server that goes back finds what it goes back to.
"""

import re
from pathlib import Path
from typing import Any

import torch

from fedlit.records.checkpoint import damage, save

EXPERIMENT = re.compile(r"[0-9a-f]{32}")


class OwnFiles:
    """The rounds of one client in one experiment.

    Args:
        folder: Of all that fedlit keeps on this host.
        experiment: As the server names it.
        client: Its number.
        keep: Rounds that are kept; the server may go back so far.
    """

    def __init__(self, folder: Path, experiment: str, client: int, keep: int) -> None:
        if not EXPERIMENT.fullmatch(experiment):  # it becomes a path
            raise ValueError(f"the experiment must be 32 hexadecimal digits, got {experiment!r}.")
        self.folder = folder / experiment / f"client_{client}"
        self.keep = keep

    def write(self, round: int, content: dict[str, Any]) -> None:
        """Keep a round, and remove those that the server cannot go back to any more."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        save(content, self._path(round))
        for old in self.rounds()[: -self.keep]:
            self._path(old).unlink(missing_ok=True)

    def read(self, round: int) -> dict[str, Any] | None:
        """A round; None if it is not there or not whole."""
        path = self._path(round)
        if not path.is_file() or damage(path) is not None:
            return None
        return torch.load(path, weights_only=True, map_location="cpu")

    def rounds(self) -> list[int]:
        """Those that are kept."""
        return sorted(int(path.stem.removeprefix("round_")) for path in self.folder.glob("round_*.pt"))

    def _path(self, round: int) -> Path:
        return self.folder / f"round_{round:05}.pt"
