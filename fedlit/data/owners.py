"""Whose each sample is, where data say so: names in the user's words become the numbers of clients."""

from typing import Literal

import numpy as np

from fedlit.data.parts import Splits


class Owners:
    """Clients by their names, numbered in the order of these: by number if all are whole ones, else as text.

    Args:
        splits: Training samples, which all say whose they are, and test samples, which may.
        num_clients: As the user has it.

    Attributes:
        names: Of the clients.
    """

    def __init__(self, splits: Splits, num_clients: int) -> None:
        if splits.train.owners is None:
            raise ValueError(_untold("training", "clients"))
        given = {"train": splits.train.owners}
        if splits.test.owners is not None:
            given["test"] = splits.test.owners
        self._of = _as_names(given)
        names = np.unique(self._of["train"])
        self._names = names
        self.names: list[str] = [str(name) for name in names]
        if len(names) != num_clients:
            told = f"`data.num_clients` is {num_clients}, but training samples are of {len(names)} clients"
            raise ValueError(f"{told}; set it to {len(names)}.")

    def of(self, which: Literal["train", "test"]) -> np.ndarray:
        """The number of each sample's client, ``[N]``."""
        if which not in self._of:
            raise ValueError(_untold("test", "test_clients"))
        strange = np.setdiff1d(self._of[which], self._names)
        if len(strange):
            raise ValueError(f"a test sample is of client {str(strange[0])!r}, who has no training samples.")
        return np.searchsorted(self._names, self._of[which])


def _untold(which: str, option: str) -> str:
    told = f"nobody says whose the {which} samples are: name their column in `data.client`"
    return f"`data.partition`: {told}, or give `{option}` of ByColumn."


def _as_names(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As numbers if all are whole ones, so that 10 comes after 9."""
    texts = {part: owners.astype(str) for part, owners in given.items()}
    try:
        return {part: owners.astype(np.int64) for part, owners in texts.items()}
    except (ValueError, OverflowError):
        return texts
