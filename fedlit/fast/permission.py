"""Who may take a shortcut: only where everything is known to be plain; whatever is not known goes the ordinary way.

A shortcut leaves out what runs beside the arithmetic of a step or of a visit. So each function here asks, line by
line, for all that could run there; `tools/mutants.py` drops the lines one by one and sees that a test fails.
"""

from collections.abc import Callable
from functools import partial
from inspect import getattr_static
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import Precision
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from fedlit import tasks
from fedlit.data.batches import Batches
from fedlit.data.loaded import AnyBatches
from fedlit.fast.forward_code import is_data
from fedlit.fast.recognition import Perceptron, perceptron
from fedlit.fast.transparency import hooks_of, names_beside
from fedlit.methods.base import FederatedModule, task_of
from fedlit.tasks import Classification, Task

if TYPE_CHECKING:
    from fedlit.engine.plan import Plan

# Plain data of a method; who computes it instead may ask for what a shortcut has not done.
DATA = {
    "card",
    "collected",
    "download_only",
    "fast",
    "labelled_pool",
    "monitor",
    "num_clients",
    "server_only",
    "shared",
    "task",
    "upload_only",
    "wants_index",
    "weighting",
}
# What a method may define without a part in any visit of a stack: it is asked before, after, or in other stages.
HARMLESS_TO_A_VISIT = DATA | {
    "aggregate",
    "check",
    "check_upload",
    "combine",
    "configure_stages",
    "earlier_uploads",
    "is_shared",
    "metrics",
    "on_server_start",
    "personalise",
    "probe",
    "select_clients",
    "validation_loss",
}
# What it may define for single steps: what is called before the first step of a visit, or outside visits. What is
# called between two steps or right after the last may look for gradients, or change the optimiser.
HARMLESS_TO_A_STEP = (HARMLESS_TO_A_VISIT - {"metrics", "validation_loss"}) | {
    "configure_client",
    "configure_optimizers",
    "download",
    "on_client_start",
    "parameters_of",
}
OF_A_METHOD = frozenset(dir(FederatedModule))
# The classes above a method as they were at import: who replaces a hook of theirs later wants it to be called.
AS_IMPORTED = tuple((cls, dict(vars(cls))) for cls in FederatedModule.__mro__ if cls not in nn.Module.__mro__)
TASK_AS_IMPORTED = tuple((cls, dict(vars(cls))) for cls in (Task, Classification))
LOSS = FederatedModule.loss
METRICS = FederatedModule.metrics
saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks  # those that are in force
OF_SGD = frozenset(vars(SGD([torch.zeros(1)], lr=0.1)))
OF_A_GROUP = frozenset(SGD([torch.zeros(1)], lr=0.1).param_groups[0])
optimizer_hooks_of = itemgetter(*sorted(name for name in OF_SGD if name.endswith("_hooks")))
step_pre_hooks_of = itemgetter(*(name for name in OF_SGD if name.endswith("step_pre_hooks")))
OF_BATCHES = frozenset(Batches.__dataclass_fields__)


def _step_of(kind: Any) -> Callable:
    """The `step` of a class of PyTorch's, which the first of its kind wraps."""
    kind([nn.Parameter(torch.zeros(1, 1))], lr=0.1)
    return kind.step


OF_PYTORCH = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and issubclass(kind, Optimizer)]
# What adds gradients that are there, once: the others may ask for the loss again, or compute gradients themselves.
STEPS = {_step_of(kind) for kind in OF_PYTORCH if kind not in (Optimizer, torch.optim.LBFGS)}
STEP_OF_SGD = SGD.step
ZERO_GRAD = Optimizer.zero_grad


def for_closed_form(learner: FederatedModule, optimizer: Optimizer) -> Perceptron | None:
    """The perceptron whose steps may be taken in closed form; None where anything might be missed."""
    if not is_plain_context():
        return None
    if not is_plain_method(learner, HARMLESS_TO_A_STEP):
        return None
    found = perceptron(learner.get_submodule("network"))
    if found is None or not trains_all(optimizer, found):
        return None
    return found


def for_visit(fabric: Fabric, module: FederatedModule, plan: "Plan") -> Perceptron | None:
    """The perceptron whose visits may be steps and nothing else; None where one might do more."""
    if not is_plain_context():
        return None
    if type(fabric.strategy.precision) is not Precision:
        return None
    if not is_plain_plan(plan):
        return None
    if not is_plain_method(module, HARMLESS_TO_A_VISIT):
        return None
    return perceptron(module.get_submodule("network"))


def is_plain_context() -> bool:
    """Whether PyTorch does what it does by itself, and nobody looks on."""
    return (
        torch.is_grad_enabled()  # else a step fails, and must
        and not torch.is_inference_mode_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.is_anomaly_enabled()
        and torch._C._len_torch_function_stack() == 0
        and torch._C._len_torch_dispatch_stack() == 0
        and saved_tensors_hooks(True) is None
    )


def is_plain_method(learner: FederatedModule, harmless: set[str]) -> bool:
    """Whether a method's step is cross-entropy on its one network, and nothing it defines runs beside it."""
    state = vars(learner)
    return (
        type(type(learner)) is type
        and all(vars(cls) == as_imported for cls, as_imported in AS_IMPORTED)
        and isinstance(type(learner).task, Task)  # not computed anew in every step
        and is_plain_task(task_of(learner))
        and all(_is_harmless(learner, name, harmless) for name in names_beside(learner, FederatedModule))
        and state.keys() & OF_A_METHOD <= DATA  # else a hook hangs on the method itself
        and not any(hooks_of(state))
        and list(learner._modules) == ["network"]
        and not learner._parameters
        and not learner._buffers
        and learner.automatic_optimization
        and not learner.wants_index
    )


def is_plain_task(task: Task) -> bool:
    """Whether a loss is cross-entropy, and nothing else."""
    return (
        type(task) is Classification
        and not vars(task)  # a `loss` may hang on it
        and all(vars(cls) == as_imported for cls, as_imported in TASK_AS_IMPORTED)
        and tasks.F is F  # where it finds its loss
    )


def measures_classes(method: FederatedModule) -> bool:
    """Whether cross-entropy and accuracy are all that a method measures; of many clients they come in one pass."""
    kind = type(method)
    return (
        kind.loss is LOSS and kind.metrics is METRICS and "loss" not in vars(method) and is_plain_task(task_of(method))
    )


def _is_harmless(learner: FederatedModule, name: str, harmless: set[str]) -> bool:
    """Whether it does not matter that a method defines this: known, or a number of its own."""
    if name in harmless:
        return name not in DATA or not hasattr(getattr_static(type(learner), name), "__get__")
    return name not in OF_A_METHOD and is_data(getattr(type(learner), name))


def trains_all(optimizer: Optimizer, found: Perceptron) -> bool:
    """Whether an optimiser trains the whole perceptron by one rate, and does no more than that."""
    return (
        is_plain_sgd(optimizer)
        and clears_plainly(optimizer)
        and len(optimizer.param_groups) == 1
        # Each once: one that stands there twice is stepped twice.
        and sorted(_ids(optimizer.param_groups[0]["params"])) == sorted(_ids(found.parameters))
    )


def steps_without_closure(optimizer: Optimizer) -> bool:
    """Whether it is all the same to an optimiser if gradients are there before its step, and not computed within."""
    state = vars(optimizer)
    return (
        type(optimizer).step in STEPS
        and "step" not in state
        and not step_pre_hooks_of(state)  # under the Trainer they run before there are gradients
        and not _global_optimizer_pre_hooks
    )


def clears_plainly(optimizer: Optimizer) -> bool:
    """Whether `zero_grad` is PyTorch's own, which forgets gradients and does no more."""
    return type(optimizer).zero_grad is ZERO_GRAD and "zero_grad" not in vars(optimizer)


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """Whether it is SGD that only adds the gradient times the learning rate, and nobody watches.

    It is asked in every step, because a user's code may change an optimiser in any.
    """
    if type(optimizer) is not SGD or SGD.step is not STEP_OF_SGD:
        return False
    state = vars(optimizer)
    if not state.keys() <= OF_SGD:  # a scheduler, for one, hangs a `step` on it
        return False
    if any(optimizer_hooks_of(state)) or _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return False
    return all(_is_plain_group(group) for group in optimizer.param_groups)


def _is_plain_group(group: dict) -> bool:
    return (
        group.keys() <= OF_A_GROUP
        and type(group["lr"]) in (int, float)  # a tensor may change between two steps
        and group["momentum"] == 0
        and group["weight_decay"] == 0
        and not group["maximize"]
        and not group["differentiable"]
    )


def is_plain_factory(factory: Any) -> bool:
    """Whether a call builds SGD and does nothing beside: the class, or a `partial` of it, as a configuration makes one.

    Of any other, calls would be missed if clients are trained ahead of their turn.
    """
    if factory is SGD:
        return True
    if type(factory) is not partial:
        return False
    *around, kind = (factory.func, *factory.args)
    return kind is SGD and all(_is_of_a_configuration(function) for function in around)


def _is_of_a_configuration(function: Any) -> bool:
    return getattr(function, "__module__", "").partition(".")[0] == "jsonargparse"


def is_plain_plan(plan: "Plan") -> bool:
    """Whether clients train to the end of their epochs, for the server to average, and nothing is done between."""
    stage = plan.stage
    return (
        stage.upload == "aggregate"
        and stage.module is None
        and stage.early_stopping is None
        and stage.public == "no"
        and plan.gradient_clip_val is None
        and plan.after_epoch is bool  # the default, which does nothing
        and plan.limit_batches is None
        and plan.is_shuffled
    )


def is_plain_batch(found: Perceptron, x: Tensor, y: Tensor) -> bool:
    """Whether a batch is what the closed form of a perceptron computes with."""
    return (
        type(x) is Tensor  # not one with functions of its own
        and type(y) is Tensor
        and x.dtype == torch.float32
        and y.dtype == torch.int64  # targets may be probabilities
        and y.dim() == 1
        and x.is_cpu
        and not x.requires_grad  # somebody wants its gradient
        and (found.flattens or x.dim() == 2)
    )


def are_plain_batches(found: Perceptron, batches: AnyBatches) -> bool:
    """Whether batches are views of tensors that the closed form of a perceptron computes with."""
    if type(batches) is not Batches:  # any other may have neither
        return False
    return (
        vars(batches).keys() <= OF_BATCHES  # an `order` of its own may hang on it
        and batches.transform is None
        and not batches.indexed
        and len(batches) > 0
        and is_plain_batch(found, batches.x, batches.y)
        and batches.y.is_cpu
    )


def is_plain_data(found: Perceptron, batches: AnyBatches, samples: int, batch_size: int) -> bool:
    """Whether batches are as a stack of such clients wants them."""
    if not are_plain_batches(found, batches):
        return False
    assert isinstance(batches, Batches)  # others are not plain
    x, y = batches.x, batches.y
    return (
        batches.batch_size == batch_size
        and len(y) == samples
        and x.flatten(1).shape == (samples, found.weights[0].shape[1])
        and int(y.min()) >= 0
        and int(y.max()) < len(found.biases[-1])
        # A stack multiplies all samples of a client, also those that no step comes to.
        and isfinite(float(x.sum()))
    )


def is_same(found: Perceptron | None, other: Perceptron | None) -> bool:
    """Whether a network is still what it was."""
    if found is None or other is None:
        return False
    return found.flattens == other.flattens and _ids(found.parameters) == _ids(other.parameters)


def _ids(parameters: list[Tensor]) -> list[int]:
    return [id(parameter) for parameter in parameters]
