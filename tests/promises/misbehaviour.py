"""What a client may do, where, and what is to come of it: the kinds of misbehaviour.

`left out`: the run ends as one in which the client was not drawn in that round. `fine`: as one in which it behaved.
"""

import ctypes
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from promises.trials import Net
from torch import nn

from fedlit.methods import FederatedModule

TIMEOUT = 2.0  # for those that hang; the others take a fraction of it, also on a busy machine


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class OddExit(Exception):
    def __str__(self):
        sys.exit(0)


class Nameless(type):
    @property
    def __name__(cls):
        raise ValueError("no name")


class WithoutName(Exception, metaclass=Nameless):
    pass


class Died(RuntimeError):
    """Of what it has done before."""


def raising(error: Callable[[], BaseException]):
    def action(module):
        raise error()

    return action


def then_dies(*effects: Callable[[FederatedModule], object]):
    def action(module):
        for effect in effects:
            effect(module)
        raise Died("and died of it")

    return action


def first_parameter(module):
    return next(iter(module.parameters()))


def own_network(module) -> nn.Module:
    """As its user built it; where a method takes it apart, what holds the parts."""
    whole = [part for part in module.modules() if isinstance(part, Net)]
    return [*whole, *module.children()][0]


def own_layer(module) -> nn.Linear:
    return next(part for part in module.modules() if isinstance(part, nn.Linear))


def filled(value):
    def action(module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(value)

    return action


def filled_buffers(value):
    """What is no parameter: statistics, and what some methods send in place of weights."""

    def action(module):
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.fill_(value)

    return action


def counted(value):
    def action(module):
        module.counts.fill_(value)

    return action


def normed(value):
    def action(module):
        module.norm.fill_(value)

    return action


def opposite(module):
    """Huge values that cancel out in a sum."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.view(-1)[::2] = 3e38
            parameter.view(-1)[1::2] = -3e38


def recurse(module, depth=0):
    return recurse(module, depth + 1) + 1


def stop_iterating(module):
    return next(iter(()))


def leave_a_hook(module):
    own_network(module).register_forward_hook(lambda *given: given[-1] * float("nan"))
    own_layer(module).register_full_backward_hook(lambda part, grads, _: tuple(g * 3 for g in grads))


def leave_attributes(module):
    module.alpha = module.mu = module.lam = 1e9
    module.stage = None
    module.shared = ()
    module.weighting = "none at all"
    module.automatic_optimization = False
    module.wants_index = True
    for part in module.modules():
        part.training = False
    if hasattr(module, "seen"):
        module.seen.extend(range(100))


def seed_everything(module):
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)


def deadlock(module):
    lock = threading.Lock()
    lock.acquire()
    with warnings.catch_warnings():
        lock.acquire()


def sleeps_in_c(module):
    ctypes.PyDLL(None).sleep(1000)  # holds the interpreter: no thread of Python's can help


def crash(module):
    ctypes.string_at(0)


def really_exit(module):
    ctypes.CDLL(None)._exit(0)


def kill_itself(module):
    os.kill(os.getpid(), signal.SIGKILL)


def eat_memory(module):
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
    return [bytes(2**31) for _ in range(100)]  # of the address space alone: nobody touches it


def fork_away(module):
    """A grandchild that outlives its parent, and holds what it holds."""
    if os.fork() == 0:
        time.sleep(1000)
    os.kill(os.getpid(), signal.SIGKILL)


def delete_network(module):
    for name, _ in list(module.named_children())[:1]:  # a step may not have missed it yet
        delattr(module, name)


def delete_parameter(module):
    del own_layer(module).bias


def reshape(module):
    own_layer(module).bias = nn.Parameter(torch.zeros(7))


def add_parameter(module):
    own_network(module).extra = nn.Parameter(torch.zeros(2))


def rename(module):
    layer = own_layer(module)
    owner, name = next(
        (part, name) for part in module.modules() for name, child in part.named_children() if child is layer
    )
    owner.other = layer
    delattr(owner, name)


def to_meta(module):
    module.to("meta")


def to_half(module):
    module.half()


def to_double(module):
    module.double()


def complex_parameter(module):
    layer = own_layer(module)
    layer.weight = nn.Parameter(layer.weight.to(torch.complex64))


def sparse_parameter(module):
    layer = own_layer(module)
    layer.weight = nn.Parameter(layer.weight.detach().to_sparse())


def inference_tensors(module):
    with torch.inference_mode():
        layer = own_layer(module)
        layer.weight = nn.Parameter(torch.zeros_like(layer.weight), requires_grad=False)
        layer.weight.copy_(torch.full_like(layer.weight, float("nan")))


def freeze(module):
    module.requires_grad_(False)


def resize(module):
    first_parameter(module).data = torch.zeros(0)


def lock_gradients(module):
    torch.set_grad_enabled(False)


def wide_default(module):
    torch.set_default_dtype(torch.float64)


def odd_metric(module):
    module.log("loss", "not a number")


def odd_usage(module):
    return module.trainer.no_such_thing


@dataclass(frozen=True)
class Kind:
    """A kind of misbehaviour.

    Attributes:
        where: Which hook, or the network's `forward`.
        action: What the client does there.
        outcome: Its client is `left out`, `fine`, `either` by its method, or `not evaluated`.
        ends: How the action must end, else it was another: it `returned`, is still `acting`, or raised an error.
        timeout: `trainer.client_timeout`.
        only: Methods whose clients send what this is about; all by default.
    """

    where: str
    action: Callable[[FederatedModule], object]
    outcome: str = "left out"
    ends: str = "returned"
    timeout: float | None = None
    only: tuple[str, ...] = ()


def raises(where: str, error: type[BaseException], outcome: str = "left out") -> Kind:
    return Kind(where, raising(error), outcome, ends=type.__getattribute__(error, "__qualname__"))


def says(where: str, text: str) -> Kind:
    """An error with this text."""
    return Kind(where, raising(lambda: ValueError(text)), ends="ValueError")


def exits(where: str, end: Callable[[FederatedModule], object], outcome: str = "left out") -> Kind:
    """Python's way."""
    return Kind(where, end, outcome, ends="SystemExit")


def dies(where: str, *effects: Callable[[FederatedModule], object], outcome: str = "left out") -> Kind:
    return Kind(where, then_dies(*effects), outcome, ends=Died.__qualname__)


def hangs(where: str, action: Callable[[FederatedModule], object], outcome: str = "left out") -> Kind:
    return Kind(where, action, outcome, ends="acting", timeout=TIMEOUT)


def is_killed(where: str, action: Callable[[FederatedModule], object], ends: str = "acting") -> Kind:
    return Kind(where, action, ends=ends, timeout=60)


END, START, STEP, WEIGHT = "on_client_end", "on_client_start", "training_step", "client_weight"
COUNTING = ("FD", "FedProto")
KINDS: dict[str, Kind] = {
    # errors
    "raises": raises(STEP, ValueError),
    "raises in configure_client": raises("configure_client", ValueError),
    "raises in on_client_start": raises(START, KeyError),
    "raises in configure_optimizers": raises("configure_optimizers", TypeError),
    "raises in parameters_of": raises("parameters_of", RuntimeError),
    "raises in on_train_batch_end": raises("on_train_batch_end", OSError),
    "raises in on_train_epoch_start": raises("on_train_epoch_start", OSError),
    "raises in on_before_zero_grad": raises("on_before_zero_grad", LookupError),
    "raises in its network": raises("forward", ArithmeticError),
    "raises in on_client_end": raises(END, AssertionError),
    "raises in client_weight": raises(WEIGHT, ZeroDivisionError),
    "an error without a text": raises(STEP, Odd),
    "an error whose text exits": raises(STEP, OddExit),
    "an error without a name": raises(STEP, WithoutName),
    "an error with half a letter": says(STEP, "\udcff\ud800"),
    "an error with a terminal's commands": says(STEP, "\x1b[2J\x00\r\n"),
    "an error with a text of 10 MB": says(STEP, "x" * 10**7),
    "StopIteration": Kind(STEP, stop_iterating, ends="StopIteration"),
    "MemoryError": raises(STEP, MemoryError),
    "RecursionError": Kind("forward", recurse, ends="RecursionError"),
    "what no visit has": Kind(END, odd_usage, ends="NoSuchAttribute"),
    # exits
    "sys.exit(0)": exits(STEP, lambda _: sys.exit(0)),
    "sys.exit in its network": exits("forward", lambda _: sys.exit("bye")),
    "sys.exit in configure_client": exits("configure_client", lambda _: sys.exit(1)),
    # processes that hang or die, for a run with `trainer.client_timeout`
    "sleeps": hangs(STEP, lambda _: time.sleep(1000)),
    "waits for a lock": hangs("forward", deadlock),
    "sleeps in C, with Python's lock": hangs(END, sleeps_in_c),
    "segmentation fault": is_killed(STEP, crash),
    "exits in C": is_killed(WEIGHT, really_exit),
    "kills itself": is_killed(STEP, kill_itself),
    "runs out of memory": is_killed(STEP, eat_memory, ends="MemoryError"),
    "leaves a process behind": is_killed(STEP, fork_away),
    # states that nobody can use
    "nan": Kind(END, filled(float("nan"))),
    "inf": Kind(END, filled(float("inf"))),
    "3e38": Kind(END, filled(3e38)),
    "1e25": Kind(END, filled(1e25)),
    "huge values that cancel out": Kind(END, opposite),
    "nan in its buffers": Kind(END, filled_buffers(float("nan"))),
    "1e25 in its buffers": Kind(END, filled_buffers(1e25)),
    "counts that nobody has": Kind(END, counted(2**62), only=COUNTING),
    "counts below 0": Kind(END, counted(-1), only=COUNTING),
    "a norm of almost nothing": Kind(END, normed(1e-38), only=("FedNova",)),
    "a norm below 0": Kind(END, normed(-1.0), only=("FedNova",)),
    "a norm of 1e18": Kind(END, normed(1e18), only=("FedNova",)),
    "double": Kind(END, to_double),
    "half": Kind(END, to_half),
    "double from the start": Kind(START, to_double),
    "meta": Kind(END, to_meta),
    "complex": Kind(END, complex_parameter),
    "sparse": Kind(END, sparse_parameter),
    "nan made in inference mode": Kind(END, inference_tensors),
    "another shape": Kind(END, reshape),
    "another shape in place": Kind(END, resize),
    "one name more": Kind(END, add_parameter),
    "one name less": Kind(END, delete_parameter),
    "another name": Kind(END, rename),
    "its network deleted": Kind(STEP, delete_network),
    "a metric that is no number": Kind(STEP, odd_metric),
    # weights
    "weight 0": Kind(WEIGHT, lambda _: 0),
    "weight -1": Kind(WEIGHT, lambda _: -1),
    "weight nan": Kind(WEIGHT, lambda _: float("nan")),
    "weight inf": Kind(WEIGHT, lambda _: float("inf")),
    "weight 1e300": Kind(WEIGHT, lambda _: 1e300),
    "weight 1e-300": Kind(WEIGHT, lambda _: 1e-300),
    "weight None": Kind(WEIGHT, lambda _: None),
    "weight of many numbers": Kind(WEIGHT, lambda _: torch.ones(3)),
    # what it leaves behind when it dies
    "hooks, and dies": dies(START, leave_a_hook),
    "attributes, and dies": dies(START, leave_attributes),
    "frozen, and dies": dies(STEP, freeze),
    "no gradients, and dies": dies(STEP, lock_gradients),
    "another default dtype, and dies": dies(START, wide_default),
    "other seeds, and dies": dies(WEIGHT, seed_everything),
    # what it leaves behind when it does well
    "no gradients": Kind(END, lock_gradients, "fine"),
    "another default dtype": Kind(END, wide_default, "fine"),
    "other seeds": Kind(END, seed_everything, "fine"),
    "frozen": Kind(END, freeze, "fine"),
    # evaluation: the state is the client's own, and counts; only what is measured of it is missing
    "raises in probe": raises("probe", ValueError, "not evaluated"),
    "sys.exit in probe": exits("probe", lambda _: sys.exit(0), "not evaluated"),
    "double in probe": dies("probe", to_double, outcome="not evaluated"),
    "raises in personalise": raises("personalise", ValueError, "not evaluated"),
    "sys.exit in personalise": exits("personalise", lambda _: sys.exit(0), "not evaluated"),
    "double in personalise": dies("personalise", to_double, outcome="not evaluated"),
    "sleeps in personalise": hangs("personalise", lambda _: time.sleep(1000), "not evaluated"),
    "sleeps in probe": hangs("probe", lambda _: time.sleep(1000), "not evaluated"),
}
