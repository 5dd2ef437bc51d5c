"""What a client may do, where, and what is to come of it: the kinds of misbehaviour, and methods to try them with.

`left out`: the run ends as one in which the client was not drawn in that round. `fine`: as one in which it behaved.
"""

import ctypes
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedlit.aggregation import weighted_mean
from fedlit.engine.plan import Interrupted
from fedlit.methods import (
    DLAD,
    FML,
    FedAvg,
    FederatedModule,
    FedFusion,
    FedMMD,
    FedProx,
    FineTuned,
    LocalOnly,
    MixtureOfExperts,
)

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
BAD, ROUND = 1, 2  # who misbehaves, and when
TIMEOUT = 6.0  # for those that hang; the others take a fraction of it


class Net(nn.Module):
    """A network of a user's own, with all that our methods ask for."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.extractor = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(18, num_classes))

    feature_shape = (2, 3, 3)

    def forward(self, x):
        act_in_forward()
        return self.head(self.extractor(x))


class Own(FederatedModule):
    """A method of a user's own: a shared trunk, a personal head, and a rule that it has written itself."""

    shared = ("network.extractor.",)

    def __init__(self, network, optimizer) -> None:
        super().__init__(optimizer)
        self.network = network()
        self.seen: list[int] = []

    def on_client_start(self, client) -> None:
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.seen.append(len(y))
        return F.cross_entropy(self(x), y) + 0.01 * self.network.head[1].weight.square().sum()

    def aggregate(self, uploads, current):
        mean = weighted_mean(uploads)
        return {name: tensor.lerp(mean[name], 0.5) if tensor.is_floating_point() else mean[name]
                for name, tensor in current.items()}  # fmt: skip


METHODS: dict[str, Callable[[], FederatedModule]] = {
    "FedAvg": lambda: FedAvg(Net, SGD),
    "FedProx": lambda: FedProx(Net, SGD, mu=0.1),
    "FML": lambda: FML(Net, Net, SGD),
    "FedMMD": lambda: FedMMD(Net, SGD),
    "FedFusion": lambda: FedFusion(Net, SGD, "single"),
    "MixtureOfExperts": lambda: MixtureOfExperts(Net, SGD, epochs=2, baselines=False),
    "DLAD": lambda: DLAD(Net, SGD, client_epochs=1, density_epochs=1, distil_epochs=1),
    "LocalOnly": lambda: LocalOnly(Net, SGD),
    "FineTuned": lambda: FineTuned(Net, SGD, finetune_epochs=1),
    "Own": lambda: Own(Net, SGD),
}


# --- where


class Stage:
    """What is going on now, for networks, which know no client."""

    action: Callable[[FederatedModule], object] | None = None
    module: FederatedModule | None = None
    acted = 0


def is_time(module: FederatedModule) -> bool:
    client = module.client
    return Stage.action is not None and client is not None and (client.id, client.round) == (BAD, ROUND)


def act(module: FederatedModule) -> object:
    Stage.acted += 1
    return Stage.action(module)


def act_in_forward() -> None:
    if Stage.module is not None:
        module, Stage.module = Stage.module, None
        act(module)


def hooked(kind: type[FederatedModule], where: str) -> type[FederatedModule]:
    """A method's class with a hook in which a client may misbehave."""

    def hook(self, *args):
        if where == "client_weight":
            return act(self) if is_time(self) else kind.client_weight(self, *args)
        if where == "probe":
            found = kind.probe(self, *args)
            return act(self) if is_time(self) else found
        is_before = where != "on_client_end"
        if is_before and is_time(self):
            act(self)
        result = getattr(kind, where)(self, *args)
        if not is_before and is_time(self):
            act(self)
        return result

    def training_step(self, batch, batch_idx):
        Stage.module = self if is_time(self) else None
        try:
            return kind.training_step(self, batch, batch_idx)
        finally:
            Stage.module = None

    if where == "forward":
        return type(f"Hooked{kind.__name__}", (kind,), {"training_step": training_step})
    return type(f"Hooked{kind.__name__}", (kind,), {where: hook})


def hooked_method(name: str, where: str) -> FederatedModule:
    torch.manual_seed(0)
    method = METHODS[name]()
    parts = [part for part in method.modules() if isinstance(part, FederatedModule)]
    if where.startswith(("on_train", "on_before")) and len(parts) > 1:  # of a programme, its stages have these hooks
        parts = parts[1:]
    for part in parts:
        if isinstance(part, FederatedModule):
            part.__class__ = hooked(type(part), where)
    return method


# --- what


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class OddExit(Exception):
    def __str__(self):
        sys.exit(0)


class MadeUp(BaseException):
    pass


class Nameless(type):
    @property
    def __name__(cls):
        raise ValueError("no name")


class WithoutName(Exception, metaclass=Nameless):
    pass


def raising(error: Callable[[], BaseException] | type[BaseException]):
    def action(module):
        raise error() if callable(error) else error

    return action


def then_dies(*effects: Callable[[FederatedModule], object]):
    def action(module):
        for effect in effects:
            effect(module)
        raise RuntimeError("and died of it")

    return action


def first_parameter(module):
    return next(iter(module.parameters()))


def own_network(module) -> nn.Module:
    return next(part for part in module.modules() if isinstance(part, Net))


def filled(value):
    def action(module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(value)

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


def close_everything(module):
    sys.stdout.close()


def leave_a_hook(module):
    own_network(module).register_forward_hook(lambda *given: given[-1] * float("nan"))
    own_network(module).head.register_full_backward_hook(lambda part, grads, _: tuple(g * 3 for g in grads))


def leave_a_hook_on_all(module):
    nn.modules.module.register_module_forward_hook(lambda *given: given[-1] * 2)


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


def replace_functions(module):
    F.cross_entropy = torch.relu = nn.Linear.forward = lambda *_: None
    torch.Tensor.backward = lambda *_, **__: None
    type(module).training_step = type(own_network(module)).forward = lambda *_: 1 / 0


def set_hidden_modes(module):
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    torch.set_float32_matmul_precision("medium")
    torch.set_autocast_enabled("cpu", True)
    gc.disable()
    sys.setrecursionlimit(150)


def seed_everything(module):
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)


def to_tmp(module):
    os.chdir("/")


def lost_folder(module):
    os.makedirs("lost", exist_ok=True)
    os.chdir("lost")
    os.rmdir("../lost")


def environment(module):
    os.environ.clear()
    sys.path.clear()


def noise_off(module):
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
    logging.root.handlers.clear()
    np.seterr(all="raise")


def signals(module):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.3)


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
    return [bytearray(2**31) for _ in range(100)]


def fork_away(module):
    """A grandchild that outlives its parent, and holds what it holds."""
    if os.fork() == 0:
        time.sleep(1000)
    os.kill(os.getpid(), signal.SIGKILL)


def delete_network(module):
    name = next(name for name, _ in module.named_children())
    delattr(module, name)


def delete_parameter(module):
    del own_network(module).head[1].bias


def reshape(module):
    own_network(module).head[1].bias = nn.Parameter(torch.zeros(7))


def add_parameter(module):
    own_network(module).extra = nn.Parameter(torch.zeros(2))


def rename(module):
    network = own_network(module)
    network.other = network.head
    del network.head


def to_meta(module):
    module.to("meta")


def to_half(module):
    module.half()


def to_double(module):
    module.double()


def complex_parameter(module):
    layer = own_network(module).head[1]
    layer.weight = nn.Parameter(layer.weight.to(torch.complex64))


def sparse_parameter(module):
    layer = own_network(module).head[1]
    layer.weight = nn.Parameter(layer.weight.detach().to_sparse())


def inference_tensors(module):
    with torch.inference_mode():
        layer = own_network(module).head[1]
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


def meta_default(module):
    torch.set_default_device("meta")


def meta_context(module):
    torch.device("meta").__enter__()


def threads(module):
    torch.set_num_threads(2)


def no_output(module):
    sys.stdout = sys.stderr = None


def odd_metric(module):
    module.log("loss", "not a number")


def odd_usage(module):
    return module.trainer.no_such_thing


@dataclass(frozen=True)
class Kind:
    """A kind of misbehaviour: where, what, and whether its client is `left out`, `fine`, or `either` by its method."""

    where: str
    action: Callable[[FederatedModule], object]
    outcome: str = "left out"
    timeout: float | None = None


END, START, STEP, WEIGHT = "on_client_end", "on_client_start", "training_step", "client_weight"
KINDS: dict[str, Kind] = {
    # errors
    "raises": Kind(STEP, raising(ValueError)),
    "raises in configure_client": Kind("configure_client", raising(ValueError)),
    "raises in on_client_start": Kind(START, raising(KeyError)),
    "raises in configure_optimizers": Kind("configure_optimizers", raising(TypeError)),
    "raises in on_train_batch_end": Kind("on_train_batch_end", raising(OSError)),
    "raises in on_train_epoch_start": Kind("on_train_epoch_start", raising(OSError)),
    "raises in on_before_zero_grad": Kind("on_before_zero_grad", raising(LookupError)),
    "raises in its network": Kind("forward", raising(ArithmeticError)),
    "raises in on_client_end": Kind(END, raising(AssertionError)),
    "raises in client_weight": Kind(WEIGHT, raising(ZeroDivisionError)),
    "an error without a text": Kind(STEP, raising(Odd)),
    "an error whose text exits": Kind(STEP, raising(OddExit)),
    "an error without a name": Kind(STEP, raising(WithoutName)),
    "an error with half a letter": Kind(STEP, raising(lambda: ValueError("\udcff\ud800"))),
    "an error with a terminal's commands": Kind(STEP, raising(lambda: ValueError("\x1b[2J\x00\r\n"))),
    "an error with a text of 10 MB": Kind(STEP, raising(lambda: ValueError("x" * 10**7))),
    "an error of its own kind": Kind(STEP, raising(MadeUp)),
    "StopIteration": Kind(STEP, stop_iterating),
    "GeneratorExit": Kind(STEP, raising(GeneratorExit)),
    "KeyboardInterrupt": Kind(STEP, raising(KeyboardInterrupt)),
    "MemoryError": Kind(STEP, raising(MemoryError)),
    "RecursionError": Kind("forward", recurse),
    "fedlit's own Interrupted": Kind(STEP, raising(Interrupted)),
    "what no visit has": Kind(END, odd_usage),
    "a warning made an error": Kind(START, then_dies(noise_off)),
    # exits
    "sys.exit(0)": Kind(STEP, lambda _: sys.exit(0)),
    "sys.exit in its network": Kind("forward", lambda _: sys.exit("bye")),
    "sys.exit in configure_client": Kind("configure_client", lambda _: sys.exit(1)),
    "os._exit(0)": Kind(STEP, lambda _: os._exit(0)),
    "os._exit in client_weight": Kind(WEIGHT, lambda _: os._exit(7)),
    "os.abort": Kind(END, lambda _: os.abort()),
    # processes that hang or die, for a run with `trainer.client_timeout`
    "sleeps": Kind(STEP, lambda _: time.sleep(1000), timeout=TIMEOUT),
    "waits for a lock": Kind("forward", deadlock, timeout=TIMEOUT),
    "sleeps in C, with Python's lock": Kind(END, sleeps_in_c, timeout=TIMEOUT),
    "segmentation fault": Kind(STEP, crash, timeout=60),
    "exits in C": Kind(WEIGHT, really_exit, timeout=60),
    "kills itself": Kind(STEP, kill_itself, timeout=60),
    "runs out of memory": Kind(STEP, eat_memory, timeout=60),
    "leaves a process behind": Kind(STEP, fork_away, timeout=60),
    # states that nobody can use
    "nan": Kind(END, filled(float("nan"))),
    "inf": Kind(END, filled(float("inf"))),
    "3e38": Kind(END, filled(3e38)),
    "1e25": Kind(END, filled(1e25)),
    "huge values that cancel out": Kind(END, opposite),
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
    "hooks, and dies": Kind(START, then_dies(leave_a_hook)),
    "hooks on all modules, and dies": Kind(STEP, then_dies(leave_a_hook_on_all)),
    "attributes, and dies": Kind(START, then_dies(leave_attributes)),
    "replaced functions, and dies": Kind(STEP, then_dies(replace_functions)),
    "frozen, and dies": Kind(STEP, then_dies(freeze)),
    "no gradients, and dies": Kind(STEP, then_dies(lock_gradients)),
    "another default dtype, and dies": Kind(START, then_dies(wide_default)),
    "another default device, and dies": Kind("forward", then_dies(meta_default)),
    "other seeds, and dies": Kind(WEIGHT, then_dies(seed_everything)),
    "another working directory, and dies": Kind(STEP, then_dies(to_tmp)),
    "a deleted working directory, and dies": Kind(STEP, then_dies(lost_folder)),
    "no environment, and dies": Kind(STEP, then_dies(environment)),
    "signal handlers and an alarm, and dies": Kind(STEP, then_dies(signals)),
    "standard output closed, and dies": Kind(STEP, then_dies(close_everything)),
    "more threads, and dies": Kind(STEP, then_dies(threads)),
    "many modes, and dies": Kind(STEP, then_dies(set_hidden_modes)),
    # what it leaves behind when it does well
    "no gradients": Kind(END, lock_gradients, "fine"),
    "another default dtype": Kind(END, wide_default, "fine"),
    "another default device": Kind(END, meta_default, "either"),  # who logs after it fails by itself
    "a device's context": Kind(END, meta_context, "either"),
    "other seeds": Kind(END, seed_everything, "fine"),
    "another working directory": Kind(END, to_tmp, "fine"),
    "many modes": Kind(END, set_hidden_modes, "fine"),
    "no output": Kind(END, no_output, "fine"),
    "standard output closed": Kind(END, close_everything, "fine"),
    "frozen": Kind(END, freeze, "fine"),
    "an alarm": Kind(END, lambda _: signal.setitimer(signal.ITIMER_REAL, 0.3), "fine"),
    # evaluation: the state is the client's own, and counts; only what is measured of it is missing
    "raises in probe": Kind("probe", raising(ValueError), "not evaluated"),
    "sys.exit in probe": Kind("probe", lambda _: sys.exit(0), "not evaluated"),
    "os._exit in probe": Kind("probe", lambda _: os._exit(0), "not evaluated"),
    "double in probe": Kind("probe", then_dies(to_double), "not evaluated"),
    "sleeps in probe": Kind("probe", lambda _: time.sleep(1000), "not evaluated", timeout=TIMEOUT),
}
