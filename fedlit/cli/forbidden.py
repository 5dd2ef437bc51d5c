"""What a config may not have called: callables of the standard library, `torch.load` and `torch.hub`.

None of them builds a network, an optimiser or data, and each would run before what it returns is refused. This catches
slips and the plainest attacks, no more: a config is a program (docs/security.md).
"""

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import torch
from jsonargparse import Namespace

STANDARD = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]


def check_calls(config: Any, option: str) -> None:
    """Refuse a config that names a callable which may not be called.

    Args:
        config: Options, or a class with its options, or several of them.
        option: As the user types it.
    """
    if isinstance(config, Namespace):
        config = vars(config)
    if isinstance(config, list | tuple):
        for entry in config:
            check_calls(entry, option)
    elif isinstance(config, Mapping):
        named = config.get("class_path")
        if isinstance(named, str) and is_forbidden(named):
            raise ValueError(
                f"`{option}` must not be {named}: a config may call nothing of the standard library or torch.hub, nor "
                "torch.load (docs/security.md)."
            )
        for name, value in config.items():
            check_calls(value, option if name == "init_args" else f"{option}.{name}")


def is_forbidden(path: str) -> bool:
    """Whether a dotted path leads to, or through, the standard library, `torch.load` or `torch.hub`.

    Example:
        >>> [is_forbidden(path) for path in ("os.system", "torch.serialization.os.system", "torch.hub.load")]
        [True, True, True]
        >>> [is_forbidden(path) for path in ("torch.nn.Linear", "fedlit.networks.MLP")]
        [False, False]
    """
    return any(_is_standard(part) or _loads(part) for part in _parts(path))


def _parts(path: str) -> Iterator[Any]:
    """What the names of a dotted path stand for, one after the other; of a partial, what it calls."""
    names = path.split(".")
    for end in range(1, len(names) + 1):
        try:
            found = resolve_name(".".join(names[:end]))
        except Exception:  # there is no such name, or a user's module raises what it likes: others tell
            return
        while isinstance(found, partial):
            found = found.func
        yield found


def _is_standard(part: Any) -> bool:
    """Whether a module, a class or a function is of the standard library, and not a file of that name elsewhere."""
    name = part.__name__ if isinstance(part, ModuleType) else getattr(part, "__module__", None)
    if not isinstance(name, str) or name.partition(".")[0] not in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or any(Path(file).resolve().is_relative_to(place) for place in STANDARD)


def _loads(part: Any) -> bool:
    return part is torch.load or part is torch.hub or getattr(part, "__module__", None) == torch.hub.__name__
