"""Means of what a visit logs."""

from typing import Any

import torch
from torch import Tensor

MANY = 1000


class Means:
    """Means of what a visit logs, without a synchronisation or a sum per step."""

    def __init__(self) -> None:
        self.values: dict[str, list[Any]] = {}
        self.means: dict[str, list[tuple[float, int]]] = {}

    def __call__(self, name: str, value: Any) -> None:
        values = self.values.setdefault(name, [])
        values.append(value.detach().clone() if isinstance(value, Tensor) else value)
        if len(values) == MANY:
            self._add_up(name)

    def _add_up(self, name: str) -> None:
        values = self.values.pop(name)
        total = torch.stack([torch.as_tensor(value).cpu().double() for value in values]).sum(0)
        self.means.setdefault(name, []).append((float(total), len(values)))

    def result(self) -> dict[str, float]:
        for name in list(self.values):
            self._add_up(name)
        return {name: sum(t for t, _ in parts) / sum(n for _, n in parts) for name, parts in self.means.items()}
