"""What a client finds around it in its process, noted before it runs and put back afterwards.

`Modes` are read in microseconds and put back after every client, whatever came of it: one that switches gradients off
is well itself, and the next one fails. `Rest` takes longer to read, so it is noted once a round and put back after a
client that failed.
"""

import builtins
import contextlib
import gc
import logging
import math
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM") if hasattr(signal, name))
# Modules whose functions everybody calls. Names that come to them later stay: an import may have brought them.
MODULES = (torch, F, os, sys, builtins, random, time, math)
CLASSES = (torch.Tensor, nn.Parameter, nn.Module, nn.Linear, nn.Conv2d, torch.optim.Optimizer, torch.optim.SGD)
UNSTEADY = {"last_type", "last_value", "last_traceback", "last_exc", "_exit", "abort"}  # the guard's own, or Python's


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has deleted it
        return None


def _go_to(folder: str | None) -> None:
    if folder is not None:
        with contextlib.suppress(OSError):
            os.chdir(folder)


def _collect(is_enabled: bool) -> None:
    if is_enabled:
        gc.enable()
    else:
        gc.disable()


def _autocast() -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


def _set_autocast(state: tuple[bool, torch.dtype]) -> None:
    torch.set_autocast_enabled("cpu", state[0])
    torch.set_autocast_dtype("cpu", state[1])


def _detect_anomaly(is_enabled: bool) -> None:
    torch.autograd.set_detect_anomaly(is_enabled)


def _switch_gradients(is_enabled: bool) -> None:
    torch.set_grad_enabled(is_enabled)


MODES: tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...] = (
    (torch.is_grad_enabled, _switch_gradients),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_anomaly_enabled, _detect_anomaly),
    (_autocast, _set_autocast),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, _collect),
    (_working_directory, _go_to),
)


class Modes:
    """The modes of this process, as they are now."""

    def __init__(self) -> None:
        self.values = [read() for read, _ in MODES]
        self.num_function_modes = torch._C._len_torch_function_stack()
        self.num_dispatch_modes = torch._C._len_torch_dispatch_stack()
        self.has_alarm = _alarm() > 0
        self.streams = (sys.stdin, sys.stdout, sys.stderr)

    def restore(self) -> None:
        """Put back what is no longer so."""
        self._leave_function_modes()
        for (read, write), value in zip(MODES, self.values, strict=True):
            if read() != value:
                write(value)
        if _alarm() > 0 and not self.has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._restore_streams()

    def _leave_function_modes(self) -> None:
        """A default device is such a mode, too."""
        if torch._C._len_torch_function_stack() > self.num_function_modes:
            torch.set_default_device(None)
        while torch._C._len_torch_function_stack() > self.num_function_modes:
            torch._C._pop_torch_function_stack()
        while torch._C._len_torch_dispatch_stack() > self.num_dispatch_modes:
            torch._C._pop_torch_dispatch_stack()

    def _restore_streams(self) -> None:
        sys.stdin, sys.stdout, sys.stderr = self.streams
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name)
            if getattr(stream, "closed", False):
                _reopen(number, name)


def _alarm() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]


@cache
def spare_streams() -> dict[int, int]:
    """Copies of standard output and error, by their numbers: whoever closes the first has not closed these."""
    spare = {}
    for number in (1, 2):
        with contextlib.suppress(OSError):  # a process may have none
            spare[number] = os.dup(number)
    return spare


def _reopen(number: int, name: str) -> None:
    spare = spare_streams().get(number)
    if spare is None:
        return
    os.dup2(spare, number)
    setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115  # it lives as long as the process


class Rest:
    """What else a client may change: environment, search path, signals, warnings, logging, hooks, others' functions.

    Args:
        classes: Of the method and its networks, whose methods a client may replace as well.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        spare_streams()
        self.environment = dict(os.environ)
        self.path = list(sys.path)
        self.filters = list(warnings.filters)
        self.numpy_errors = np.geterr()
        self.logging_level = (logging.root.level, logging.root.manager.disable)
        self.log_handlers = list(logging.root.handlers)
        self.hooks = [(hooks, hooks.copy()) for hooks in _global_hooks()]
        owners: tuple[ModuleType | type, ...] = (*MODULES, *CLASSES)
        self.functions = [(owner, vars(owner).copy()) for owner in owners]
        self.own_classes = [(owner, vars(owner).copy()) for owner in classes]
        self.handlers = [signal.getsignal(number) for number in SIGNALS]

    def restore(self) -> None:
        """Put everything back as it was."""
        self._restore_functions()
        self._restore_signals()
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        sys.path[:] = self.path
        if list(warnings.filters) != self.filters:
            warnings.resetwarnings()  # also tells Python's cache that they have changed
            warnings.filters[:] = self.filters  # type: ignore[index]  # a list, whatever its stub says
        np.seterr(**self.numpy_errors)
        logging.root.setLevel(self.logging_level[0])
        logging.disable(self.logging_level[1])
        logging.root.handlers[:] = self.log_handlers
        for hooks, before in self.hooks:
            hooks.clear()
            hooks.update(before)

    def _restore_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():  # only there Python lets anybody set them
            return
        for number, handler in zip(SIGNALS, self.handlers, strict=True):
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    def _restore_functions(self) -> None:
        for owner, before in self.functions:
            _put_back(owner, before)
        for owner, before in self.own_classes:
            for name in vars(owner).keys() - before.keys():  # an override that hides what is inherited
                with contextlib.suppress(AttributeError, TypeError):
                    delattr(owner, name)
            _put_back(owner, before)


def _put_back(owner: ModuleType | type, before: dict[str, Any]) -> None:
    now = vars(owner)
    changed = [name for name, value in before.items() if now.get(name) is not value and name not in UNSTEADY]
    for name in changed:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(owner, name, before[name])


@cache
def _global_hooks() -> list[dict]:
    """Hooks on all modules and on all optimisers; their names differ from version to version."""
    found = []
    for owner in (module_hooks, optimizer_hooks):
        hooks = [value for name, value in vars(owner).items() if name.startswith("_global")]
        found += [value for value in hooks if isinstance(value, dict)]
    return found
