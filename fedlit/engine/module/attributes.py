"""The plain attributes of a method and its parts: hooks among them, and what Lightning notes of device and dtype."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from torch import nn

CONTAINERS = frozenset({dict, OrderedDict, list, set})
LARGE = 10_000  # entries of a container that nobody copies at every visit


class Attributes:
    """The attributes of some modules, as they are now.

    Containers are noted with what they hold, one level deep; what a tensor or an object holds is its owner's affair.

    Args:
        parts: Of the live module.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        self.parts = [(part, type(part), vars(part).copy(), _contents(vars(part))) for part in parts]

    def restore(self) -> None:
        """Give every part its attributes back, and no others."""
        for part, kind, attributes, contents in self.parts:
            if type(part) is not kind:
                part.__class__ = kind
            now = vars(part)
            now.clear()
            now.update(attributes)
            for value in attributes.values():
                if type(value) in CONTAINERS and (id(value) in contents or len(value) < LARGE):
                    _refill(value, contents.get(id(value), ()))


def _contents(attributes: dict[str, Any]) -> dict[int, Any]:
    """Copies of the containers that hold something: of most hooks there are none."""
    filled = [value for value in attributes.values() if type(value) in CONTAINERS and value]
    return {id(value): value.copy() for value in filled if len(value) < LARGE}


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)
