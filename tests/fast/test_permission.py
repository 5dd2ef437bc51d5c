"""A shortcut is refused for whatever is not known to be plain, each condition by itself."""

from functools import partial, wraps
from types import SimpleNamespace

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch.cli import LightningArgumentParser, OptimizerCallable
from lightning.pytorch.core.hooks import ModelHooks
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedlit import FedAvg, FederatedModule, LocalOnly
from fedlit.data.batches import Batches
from fedlit.engine.plan import Plan
from fedlit.fast.perceptron import ClosedForm
from fedlit.fast.permission import (
    clears_plainly,
    for_closed_form,
    for_visit,
    is_plain_data,
    is_plain_factory,
    is_plain_sgd,
    is_same,
    measures_classes,
    steps_without_closure,
)
from fedlit.fast.recognition import perceptron
from fedlit.methods import FML, Card, FedProx, FineTuned
from fedlit.methods.stage import EarlyStopping, Stage
from fedlit.networks import MLP
from fedlit.tasks import Classification, Regression

SGD = partial(torch.optim.SGD, lr=0.1)
SMALL = partial(MLP, image_size=8, num_classes=3, hidden=(5,))
FABRIC = Fabric(accelerator="cpu")
# Called in a visit, but not between its steps: a step in closed form may be taken, a stack may not.
BESIDE_STEPS = {
    "configure_client",
    "configure_optimizers",
    "download",
    "on_client_start",
    "parameters_of",
}
OUTSIDE_VISITS = {
    "aggregate",
    "check",
    "check_upload",
    "combine",
    "configure_stages",
    "earlier_uploads",
    "is_shared",
    "on_server_start",
    "personalise",
    "probe",
    "select_clients",
}
# Early stopping calls it between steps; there is none in a stack.
BETWEEN_STEPS_ALONE = {"metrics", "validation_loss"}
PYTHON_S = {"__init__", "__repr__"}
HOOKS = {name for name in dir(ModelHooks) if name.startswith(("on_", "configure_"))}
METHODS = {name for name in vars(FederatedModule) if callable(getattr(FederatedModule, name)) and name[:2] != "__"}
STEPS = {
    "__call__",
    "__getattr__",
    "__setattr__",
    "automatic_optimization",
    "backward",
    "clip_gradients",
    "configure_callbacks",
    "configure_gradient_clipping",
    "forward",
    "log",
    "log_dict",
    "lr_scheduler_step",
    "manual_backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "parameters",
    "state_dict",
    "toggle_optimizer",
    "train",
    "zero_grad",
    "a_method_nobody_has_heard_of",
}
NEITHER = (HOOKS | METHODS | STEPS) - BESIDE_STEPS - OUTSIDE_VISITS - BETWEEN_STEPS_ALONE


def plain(kind=FedAvg, **options):
    method = kind(SMALL, SGD, **options)
    method.fast = True
    return method


def defining(**members):
    return plain(type("Own", (FedAvg,), members))


def passing_on(name):
    """The same under a name of the user's class."""
    inherited = getattr(FedAvg, name, lambda *_: None)
    return inherited if isinstance(inherited, property) else lambda *args, **options: inherited(*args, **options)


def may_step(method, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(nn.Module.parameters(method), lr=0.1)
    return for_closed_form(method, optimizer) is not None


def may_visit(method, fabric=FABRIC, stage=None, **options):
    plan = Plan(stage or Stage("federate"), 0, **options)
    return for_visit(fabric, method, plan) is not None


@pytest.mark.parametrize("kind", [FedAvg, FineTuned])
def test_a_plain_method_may_take_both(kind):
    assert may_step(plain(kind))
    assert may_visit(plain(kind))


def test_a_network_of_each_client_may_be_stepped_but_is_visited():
    assert may_step(plain(LocalOnly))
    assert not may_visit(plain(LocalOnly))


@pytest.mark.parametrize("name", sorted(NEITHER))
def test_who_overrides_what_runs_in_a_step_goes_the_ordinary_way(name):
    method = defining(**{name: passing_on(name)})
    assert not may_step(method)
    assert not may_visit(method)


@pytest.mark.parametrize("name", sorted(BESIDE_STEPS))
def test_who_overrides_what_runs_beside_steps_is_visited(name):
    method = defining(**{name: passing_on(name)})
    assert may_step(method)
    assert not may_visit(method)


@pytest.mark.parametrize("name", sorted(BETWEEN_STEPS_ALONE))
def test_who_overrides_what_early_stopping_asks_is_not_stepped(name):
    method = defining(**{name: passing_on(name)})
    assert not may_step(method)
    assert may_visit(method)


@pytest.mark.parametrize("name", sorted(OUTSIDE_VISITS | PYTHON_S))
def test_what_runs_outside_visits_does_not_matter(name):
    method = defining(**{name: passing_on(name)})
    assert may_step(method)
    assert may_visit(method)


@pytest.mark.parametrize("name", sorted((HOOKS | METHODS) - {"on_client_start"}))
def test_a_hook_that_hangs_on_the_method_itself_is_seen(name):
    method = plain()
    method.__dict__[name] = lambda *_: None
    assert not may_step(method)
    assert not may_visit(method)


def test_a_number_of_its_own_does_not_matter():
    assert may_step(defining(rate=0.1, shared=("network.",), weighting="uniform", monitor="loss/global_on_own"))
    assert may_visit(defining(rate=0.1, name_of_mine="x"))
    assert may_visit(defining(card=Card(law="x = 0 is FedAvg", travels="half")))
    assert not may_step(defining(notes=[]))  # somebody writes them
    assert not may_step(defining(on_train_batch_end=None))
    with_data = plain()
    with_data.monitor, with_data.fast, with_data.history = "loss/global_on_own", True, [1]
    with_data.num_clients = 3
    assert may_step(with_data)
    assert may_visit(with_data)


class Beside:
    """Not a module; it stands behind all of Lightning's classes, but before `object`."""

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


class Kind(type):
    """A metaclass."""


def patched_hook(monkeypatch):
    monkeypatch.setattr(ModelHooks, "on_train_batch_end", lambda *_: None)
    return plain()


def patched_step(monkeypatch):
    monkeypatch.setattr(FederatedModule, "training_step", lambda *_: None)
    return plain()


def with_state(change):
    def build(_):
        method = plain()
        change(method)
        return method

    return build


def patched_loss(monkeypatch):
    monkeypatch.setattr("fedlit.tasks.F", SimpleNamespace(cross_entropy=torch.nn.functional.cross_entropy))
    return plain()


def patched_task(monkeypatch):
    monkeypatch.setattr(Classification, "loss", lambda *_: None)
    return plain()


class Classified(Classification):
    """The same under another name."""


def with_a_loss_of_its_own():
    task = Classification()
    task.loss = lambda *_: None
    return task


TASKS_THAT_ARE_NOT_PLAIN = {
    "another task": lambda _: plain(task=Regression()),
    "another task of the class": lambda _: defining(task=Regression()),
    "a task that is computed": lambda _: defining(task=property(lambda _: Classification())),
    "a task of a class of its own": lambda _: plain(task=Classified()),
    "a loss that hangs on the task": lambda _: plain(task=with_a_loss_of_its_own()),
    "a task that was replaced in fedlit": patched_task,
    "a loss that was replaced in fedlit": patched_loss,
}


METHODS_THAT_ARE_NOT_PLAIN = {
    "a class beside": lambda _: plain(type("Own", (FedAvg, Beside), {})),
    "a class of another kind": lambda _: plain(Kind("Own", (FedAvg,), {})),
    "a hook that was replaced in Lightning": patched_hook,
    "a step that was replaced in fedlit": patched_step,
    **TASKS_THAT_ARE_NOT_PLAIN,
    "another loss": lambda _: FedProx(SMALL, SGD, mu=0.1),
    "two networks": lambda _: FML(SMALL, SMALL, SGD),
    "a forward hook": with_state(lambda method: method.register_forward_hook(lambda *_: None)),
    "a hook on the state": with_state(lambda method: method.register_state_dict_post_hook(lambda *_: None)),
    "a hook in the network": with_state(lambda method: method.network.head.register_forward_hook(lambda *_: None)),
    "another part": with_state(lambda method: setattr(method, "spare", nn.ReLU())),
    "a parameter of its own": with_state(lambda method: setattr(method, "scale", nn.Parameter(torch.ones(1)))),
    "a buffer": with_state(lambda method: method.register_buffer("count", torch.zeros(1))),
    "manual optimisation": with_state(lambda method: setattr(method, "automatic_optimization", False)),
    "positions of samples": with_state(lambda method: setattr(method, "wants_index", True)),
}


@pytest.mark.parametrize("build", METHODS_THAT_ARE_NOT_PLAIN.values(), ids=METHODS_THAT_ARE_NOT_PLAIN)
def test_a_method_that_is_not_plain_goes_the_ordinary_way(build, monkeypatch):
    method = build(monkeypatch)
    method.fast = True
    parameters = list(method.network.parameters()) if hasattr(method, "network") else method.parameters()
    assert not may_step(method, SGD(parameters))
    assert not may_visit(method)


OWN_MEASURES = {
    **TASKS_THAT_ARE_NOT_PLAIN,
    "a loss of its own": lambda _: defining(loss=passing_on("loss")),
    "metrics of its own": lambda _: defining(metrics=passing_on("metrics")),
    "a loss that hangs on it": lambda _: with_state(lambda method: setattr(method, "loss", nn.MSELoss()))(_),
}
del OWN_MEASURES["a task that is computed"]  # it is asked in every evaluation


@pytest.mark.parametrize("build", OWN_MEASURES.values(), ids=OWN_MEASURES)
def test_who_measures_otherwise_is_evaluated_batch_by_batch(build, monkeypatch):
    assert not measures_classes(build(monkeypatch))


@pytest.mark.parametrize("kind", [FedAvg, FedProx, partial(FML, SMALL)])
def test_whoever_measures_classes_is_evaluated_in_one_pass(kind):
    assert measures_classes(kind(SMALL, SGD))
    assert measures_classes(plain(task=Classification()))
    assert measures_classes(defining(validation_loss=passing_on("validation_loss")))


def test_a_plain_task_may_be_named():
    assert may_step(plain(task=Classification()))
    assert may_visit(plain(task=Classification()))


class Functions(TorchFunctionMode):
    pass


class Dispatch(TorchDispatchMode):
    pass


CONTEXTS = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "inference with gradients": lambda: Both(torch.inference_mode(), torch.enable_grad()),
    "autocast": partial(torch.autocast, "cpu"),
    "detection of anomalies": torch.autograd.detect_anomaly,
    "a mode of functions": Functions,
    "a mode of dispatch": Dispatch,
    "another default device": partial(torch.device, "meta"),
    "hooks on what autograd saves": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
}


class Both:
    """One context in another."""

    def __init__(self, outer, inner):
        self.outer, self.inner = outer, inner

    def __enter__(self):
        self.outer.__enter__()
        self.inner.__enter__()

    def __exit__(self, *error):
        self.inner.__exit__(*error)
        self.outer.__exit__(*error)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_in_another_context_everything_goes_the_ordinary_way(context):
    method = plain()
    optimizer = SGD(method.parameters())
    with context():
        assert not may_step(method, optimizer)
        assert not may_visit(method)
    assert may_step(method, optimizer)


class OwnSGD(torch.optim.SGD):
    """The same under another name."""


def watched(kind):
    def build(parameters):
        optimizer = SGD(parameters)
        getattr(optimizer, kind)(lambda *_: None)
        return optimizer

    return build


def scheduled(parameters):
    optimizer = SGD(parameters)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    del optimizer.param_groups[0]["initial_lr"]
    return optimizer


def with_an_unknown_option(parameters):
    optimizer = SGD(parameters)
    optimizer.param_groups[0]["noise"] = 0.1
    return optimizer


def with_an_own(name):
    def build(parameters):
        optimizer = SGD(parameters)
        setattr(optimizer, name, lambda *_: None)
        return optimizer

    return build


OPTIMIZERS = {
    "a class of its own": partial(OwnSGD, lr=0.1),
    "Adam": torch.optim.Adam,
    "momentum": partial(SGD, momentum=0.9),
    "decay": partial(SGD, weight_decay=0.1),
    "ascent": partial(SGD, maximize=True),
    "a step that can be differentiated": partial(SGD, differentiable=True),
    "a rate that is a tensor": partial(torch.optim.SGD, lr=torch.tensor(0.1)),
    "a hook before": watched("register_step_pre_hook"),
    "a hook after": watched("register_step_post_hook"),
    "a hook on its state": watched("register_state_dict_post_hook"),
    "a schedule": scheduled,
    "an option that nobody knows": with_an_unknown_option,
    "a step that hangs on it": with_an_own("step"),
    "a zero_grad that hangs on it": with_an_own("zero_grad"),
}


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimiser_that_is_not_plain_is_left_alone(build):
    method = plain()
    optimizer = build(method.parameters())
    assert not is_plain_sgd(optimizer)
    assert clears_plainly(optimizer) == ("zero_grad" not in vars(optimizer))
    assert not may_step(method, optimizer)


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_a_hook_on_all_optimisers_is_seen(register):
    optimizer = SGD(plain().parameters())
    handle = register(lambda *_: None)
    assert not is_plain_sgd(optimizer)
    handle.remove()
    assert is_plain_sgd(optimizer)


@pytest.mark.parametrize(("owner", "name"), [(torch.optim.SGD, "step"), (torch.optim.Optimizer, "zero_grad")])
def test_what_replaces_a_function_of_an_optimiser_is_seen(owner, name, monkeypatch):
    method = plain()
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, wraps(original)(lambda *args, **options: original(*args, **options)))
    assert not may_step(method, SGD(method.parameters()))


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_stands_twice_is_stepped_twice():
    method = plain()
    parameters = list(method.parameters())
    assert not may_step(method, SGD([*parameters, parameters[0]]))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, OwnSGD])
def test_pytorch_s_optimisers_step_without_a_closure(kind):
    assert steps_without_closure(kind(plain().parameters(), lr=0.1))


class WithAStep(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


THAT_TAKE_A_CLOSURE = {
    "LBFGS": torch.optim.LBFGS,
    "a step of its own": partial(WithAStep, lr=0.1),
    "a step that hangs on it": with_an_own("step"),
    "a hook before": watched("register_step_pre_hook"),
}


@pytest.mark.parametrize("build", THAT_TAKE_A_CLOSURE.values(), ids=THAT_TAKE_A_CLOSURE)
def test_any_other_optimiser_is_given_a_closure(build):
    assert not steps_without_closure(build(plain().parameters()))


def test_a_hook_before_every_optimiser_s_step_asks_for_a_closure():
    optimizer = SGD(plain().parameters())
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    assert not steps_without_closure(optimizer)
    handle.remove()
    assert steps_without_closure(optimizer)


def test_an_optimiser_of_a_part_or_of_groups_is_left_alone():
    method = plain()
    groups = [{"params": part.parameters()} for part in (method.network.extractor, method.network.head)]
    assert not may_step(method, SGD(method.network.head.parameters()))
    assert not may_step(method, SGD(groups))
    first = SGD(method.parameters())
    first.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.3})
    assert not may_step(method, first)
    assert may_step(method, SGD(method.parameters()))


def configured():
    parser = LightningArgumentParser()
    parser.add_argument("--optimizer", type=OptimizerCallable)
    parsed = parser.parse_args(["--optimizer=torch.optim.SGD", "--optimizer.lr=0.1"])
    build = getattr(parser, "instantiate", None) or parser.instantiate_classes  # its older name
    return build(parsed).optimizer


class Calls(partial):
    """A partial that could do more."""


def test_a_class_and_a_partial_of_it_build_an_optimiser_and_do_no_more():
    assert is_plain_factory(torch.optim.SGD)
    assert is_plain_factory(SGD)
    assert is_plain_factory(configured())


@pytest.mark.parametrize(
    "factory",
    [
        lambda parameters: SGD(parameters),
        OwnSGD,
        partial(OwnSGD, lr=0.1),
        partial(lambda kind, parameters: kind(parameters), torch.optim.SGD),
        partial(torch.optim.Adam, lr=0.1),
        Calls(torch.optim.SGD, lr=0.1),
        None,
    ],
)
def test_whatever_else_builds_an_optimiser_may_do_more(factory):
    assert not is_plain_factory(factory)


STAGES = {
    "nothing exchanged": {"stage": Stage("s", upload="none")},
    "a part of the method": {"stage": Stage("s", module=plain())},
    "early stopping": {"stage": Stage("s", early_stopping=EarlyStopping())},
    "the public pool": {"stage": Stage("s", public="inputs")},
    "a clipped gradient": {"gradient_clip_val": 1.0},
    "something after an epoch": {"after_epoch": lambda: None},
    "few batches": {"limit_batches": 2},
    "batches in their own order": {"is_shuffled": False},
}


@pytest.mark.parametrize("options", STAGES.values(), ids=STAGES)
def test_a_plan_that_is_not_plain_is_not_shortened(options):
    assert not may_visit(plain(), **options)


def test_only_visits_in_single_precision_are_shortened():
    assert not may_visit(plain(), fabric=SimpleNamespace(strategy=SimpleNamespace(precision=object())))
    assert not may_visit(plain(), fabric=Fabric(accelerator="cpu", precision="bf16-mixed"))


class OwnTensor(torch.Tensor):
    """The same under another name."""


X, Y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
BATCHES = {
    "inputs of a class of their own": (X.as_subclass(OwnTensor), Y),
    "targets of a class of their own": (X, Y.as_subclass(OwnTensor)),
    "double precision": (X.double(), Y),
    "targets that are probabilities": (X, torch.rand(4, 3)),
    "targets in columns": (X, Y[:, None]),
    "small integers": (X, Y.to(torch.uint8)),
    "another device": (X.to("meta"), Y),
    "inputs whose gradient is wanted": (X.clone().requires_grad_(), Y),
    "positions": (X, Y, Y),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_batch_that_is_not_plain_is_autograd_s(batch):
    network = SMALL()
    closed = ClosedForm(perceptron(network), SGD(network.parameters()), fused=False)
    assert closed.takes((X, Y))
    assert not closed.takes(batch)


def test_without_flattening_a_batch_is_flat():
    network = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    closed = ClosedForm(perceptron(network), SGD(network.parameters()), fused=False)
    assert closed.takes((X[:, 0, 0], Y))
    assert not closed.takes((X, Y))


class OwnBatches(Batches):
    """The same under another name."""


def with_an_own_order():
    batches = Batches(X, Y, 2)
    batches.order = lambda: torch.zeros(4, dtype=torch.int64)
    return batches


DATA = {
    "a class of its own": OwnBatches(X, Y, 2),
    "an order of its own": with_an_own_order(),
    "a transform": Batches(X, Y, 2, transform=lambda x, _: x),
    "positions": Batches(X, Y, 2, indexed=True),
    "another size of batches": Batches(X, Y, 3),
    "fewer samples": Batches(X[:3], Y[:3], 2),
    "fewer inputs": Batches(X[:3], Y, 2),
    "fewer targets": Batches(X, Y[:3], 2),
    "other inputs": Batches(X[..., :7], Y, 2),
    "double precision": Batches(X.double(), Y, 2),
    "targets elsewhere": Batches(X, Y.to("meta"), 2),
    "a target that is no class": Batches(X, Y + 1, 2),
    "a target below all": Batches(X, Y - 1, 2),
    "a number that is none": Batches(X.index_fill(0, torch.tensor([1]), float("nan")), Y, 2),
    "a number without end": Batches(X.index_fill(0, torch.tensor([1]), float("inf")), Y, 2),
}


@pytest.mark.parametrize("batches", DATA.values(), ids=DATA)
def test_data_that_is_not_plain_is_not_stacked(batches):
    found = perceptron(SMALL())
    assert is_plain_data(found, Batches(X, Y, 2), 4, 2)
    assert not is_plain_data(found, batches, 4, 2)


def test_data_without_a_batch_is_not_stacked():
    assert not is_plain_data(perceptron(SMALL()), Batches(X, Y, 5, drop_last=True), 4, 5)


def test_a_network_that_is_another_is_not_the_same():
    network = SMALL()
    flat = nn.Sequential(*list(network.extractor)[1:], network.head)
    found = perceptron(network)
    assert is_same(found, perceptron(network))
    assert not is_same(found, perceptron(SMALL()))
    assert not is_same(found, perceptron(flat))
    assert not is_same(found, None)
    assert not is_same(None, found)
