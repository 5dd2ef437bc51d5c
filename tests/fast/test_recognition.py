"""A perceptron is known by what it does, whoever wrote it; what might do more than compute is no perceptron."""

import copy
import functools
import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from fedlit.fast import forward_code
from fedlit.fast.perceptron import ClosedForm
from fedlit.fast.recognition import perceptron
from fedlit.networks import MLP, LeNet5

SEEN = []
WIDTH = 64


def note(x):
    SEEN.append(1)
    return x


def sequence(*between):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), *between, nn.Linear(6, 3))


class Wrapped(nn.Module):
    """A module around a Sequential."""

    def __init__(self):
        super().__init__()
        self.net = sequence()

    def forward(self, x):
        return self.net(x)


class Layers(nn.Module):
    """Two layers by name; what it does with them is up to its children."""

    scale = 1

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 6)
        self.fc2 = nn.Linear(6, 3)


def layers(forward, **members):
    """Two layers with this `forward`."""
    return type("Own", (Layers,), {"forward": forward, **members})()


class Functional(Layers):
    def forward(self, x):
        x = x.view(x.size(0), -1)
        x = F.relu(self.fc1(x))
        return self.fc2(x)


class Chain(nn.Module):
    """Any number of layers in a list."""

    def __init__(self, *widths):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(widths))
        self.depth = len(self.layers)

    def forward(self, x):
        x = x.flatten(1)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i != self.depth - 1:
                x = x.relu()
        return x


class Sliced(Chain):
    def forward(self, x):
        x = x.reshape(len(x), -1)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Functional()
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.act(self.body(x)))


class Inherited(nn.Sequential):
    """A Sequential under a name of its own."""

    def __init__(self):
        super().__init__(*sequence())

    def extra_repr(self):
        return "mine"

    def count(self):
        return sum(p.numel() for p in self.parameters())


def stored_function():
    network = layers(lambda self, x: self.fc2(self.act(self.fc1(torch.flatten(x, start_dim=1)))))
    network.act = F.relu
    return network


def closure():
    flat = torch.flatten
    return layers(lambda self, x: self.fc2(torch.relu(self.fc1(flat(x, 1)))))


def branches_beside_a_size(self, x):
    x = self.fc1(x.view(x.size(0), -1))
    if self.scale > 0:
        x = x.relu()
    return self.fc2(x)


THE_SAME = {
    "ours": lambda: MLP(image_size=8, num_classes=3, hidden=(6, 5)),
    "a module around a Sequential": Wrapped,
    "a Sequential": sequence,
    "a Sequential under a name of its own": Inherited,
    "layers by name": Functional,
    "a list of layers and a branch": lambda: Chain(64, 7, 5, 3),
    "a slice of a list": lambda: Sliced(64, 7, 5, 3),
    "a module of modules": Nested,
    "a function that is kept": stored_function,
    "a function of a function around": closure,
    "a length, and a slice by constants": lambda: with_activations(slices_by_constants),
    "a size and a branch": lambda: layers(branches_beside_a_size),
    "a shape": lambda: layers(lambda self, x: self.fc2(self.fc1(x.reshape(x.shape[0], -1)).relu())),
    "a tuple of sizes": lambda: layers(lambda self, x: self.fc2(self.fc1(x.view((x.size()[0], -1))).relu())),
    "a width": lambda: layers(lambda self, x: self.fc2(self.fc1(x.view(-1, WIDTH)).relu())),
    "both sizes": lambda: layers(lambda self, x: self.fc2(self.fc1(x.view(len(x), 64)).relu())),
    "in place": lambda: layers(lambda self, x: self.fc2(self.fc1(x.flatten(1)).relu_())),
    "an identity": lambda: sequence(nn.Identity()),
    "a dropout of nothing": lambda: sequence(nn.Dropout(0.0)),
    "flat twice": lambda: sequence(nn.Flatten()),
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
    "a number of its class": lambda: layers(lambda self, x: self.fc2(self.fc1(x.flatten(self.scale)).relu())),
    "numbers in a tuple": lambda: with_calls(reads, (0, (1, 2))),
    "a default": lambda: layers(lambda self, x, start=1: self.fc2(self.fc1(x.flatten(start)).relu())),
    "functions by their full names": lambda: layers(
        lambda self, x: self.fc2(torch.nn.functional.relu(self.fc1(x.flatten(1))))
    ),
}


def steps_of(network, step, x, y):
    torch.manual_seed(3)
    return [step(x[i : i + 5], y[i : i + 5]) for i in (0, 5, 10)], [p.detach().clone() for p in network.parameters()]


def by_autograd(network, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("build", THE_SAME.values(), ids=THE_SAME)
def test_the_closed_form_of_anybody_s_perceptron_is_autograd_to_the_bit(build):
    quick = build()
    slow = copy.deepcopy(quick)
    rates = [torch.optim.SGD(network.parameters(), lr=0.1) for network in (quick, slow)]
    x, y = torch.randn(13, 1, 8, 8), torch.randint(0, 3, (13,))
    closed = ClosedForm(perceptron(quick), rates[0], fused=False)
    assert closed.takes((x, y))
    ours, weights = steps_of(quick, closed, x, y)
    theirs, expected = steps_of(slow, by_autograd(slow, rates[1]), x, y)
    assert all(torch.equal(a, b) for a, b in zip(ours + weights, theirs + expected, strict=True))
    assert not torch.equal(ours[0], ours[1])


def test_without_flattening_only_flat_inputs_are_taken():
    network = layers(lambda self, x: self.fc2(self.fc1(x).relu()))
    found = perceptron(network)
    closed = ClosedForm(found, torch.optim.SGD(network.parameters(), lr=0.1), fused=False)
    y = torch.tensor([0, 1])
    assert not found.flattens
    assert closed.takes((torch.randn(2, 64), y))
    assert not closed.takes((torch.randn(2, 1, 64), y))
    assert perceptron(sequence()).flattens


def counts(self, x):
    self.calls += 1
    return self.fc2(self.fc1(x.flatten(1)).relu())


def counts_in_a_list(self, x):
    self.calls[0] += 1
    return self.fc2(self.fc1(x.flatten(1)).relu())


def grows(self, x):
    calls = self.calls
    calls += calls
    return self.fc2(self.fc1(x.flatten(1)).relu())


def grows_by_default(self, x, seen=SEEN):
    seen = seen * 2
    return self.fc2(self.fc1(x.flatten(1)).relu())


def has_a_list_to_be_named(self, x, *, seen=SEEN):
    return self.fc2(self.fc1(x.flatten(1)).relu())


def reads(self, x):
    calls = self.calls  # noqa: F841
    return self.fc2(self.fc1(x.flatten(1)).relu())


def appends(self, x):
    self.calls.append(1)
    return self.fc2(self.fc1(x.flatten(1)).relu())


def prints(self, x):
    print("here")
    return self.fc2(self.fc1(x.flatten(1)).relu())


def calls_a_function(self, x):
    return self.fc2(note(self.fc1(x.flatten(1))).relu())


def calls_a_method(self, x):
    return self.fc2(self.note(self.fc1(x.flatten(1))).relu())


def calls_its_own_relu(self, x):
    return self.fc2(self.relu(self.fc1(x.flatten(1))))


def changes_torch(self, x):
    threads = torch.set_num_threads(1)  # noqa: F841
    return self.fc2(self.fc1(x.flatten(1)).relu())


def changes_a_global(self, x):
    global WIDTH
    WIDTH = 64
    return self.fc2(self.fc1(x.flatten(1)).relu())


def differs_in_training(self, x):
    x = self.fc1(x.flatten(1)).relu()
    if self.training:
        x = x.relu()
    return self.fc2(x)


def asks_for_the_batch_and_branches(self, x):
    x = self.fc1(x.flatten(1)).relu()
    if x.size(0) > 7:
        return self.fc2(x)
    return self.fc2(x)


def chooses_by_the_batch(self, x):
    return self.fc2((self.fc1, self.fc1)[x.size(0) > 4](x.flatten(1)).relu())


def chooses_by_the_length(self, x):
    return self.fc2((self.fc1, self.fc1)[len(x) > 4](x.flatten(1)).relu())


def slices_by_the_length(self, x):
    x = self.fc1(x.flatten(1))
    for act in self.acts[: len(x)]:
        x = act(x)
    return self.fc2(x)


def with_activations(forward):
    network = layers(forward)
    network.acts = nn.ModuleList([nn.ReLU()])
    return network


def slices_by_constants(self, x):
    x = self.fc1(x.view(len(x), -1))
    for act in self.acts[0:1]:
        x = act(x)
    return self.fc2(x)


def branches_on_the_length(self, x):
    x = self.fc1(x.flatten(1))
    return self.fc2(x.relu()) if len(x) else self.fc2(x)


def offsets_by_the_batch(self, x):
    return self.fc2(self.fc1(x.flatten(1 + 0 * x.shape[0])).relu())


def flattens_from_the_batch(self, x):
    return self.fc2(self.fc1(x.flatten(x.size(0))).relu())


def branches_on_the_batch(self, x):
    if x:
        return self.fc2(self.fc1(x.flatten(1)).relu())
    return x


def compares_the_batch(self, x):
    if x == 0:
        return self.fc2(self.fc1(x.flatten(1)).relu())
    return self.fc2(self.fc1(x.flatten(1)).relu())


def uses_its_weights(self, x):
    weight = self.fc1.weight  # noqa: F841
    return self.fc2(self.fc1(x.flatten(1)).relu())


def uses_a_batch_twice(self, x):
    hidden = self.fc1(x.flatten(1))
    hidden.relu_  # noqa: B018
    return self.fc2(hidden)


def forgets_a_relu(self, x):
    hidden = self.fc1(x.flatten(1))
    kept = hidden.relu_()  # noqa: F841
    return self.fc2(hidden)


def ends_in_place(self, x):
    logits = self.fc2(self.fc1(x.flatten(1)).relu())
    kept = logits.relu_()  # noqa: F841
    return logits


def uses_an_output_twice(self, x):
    hidden = self.fc1(x.flatten(1))
    kept = hidden.relu_()  # noqa: F841
    return self.fc2(hidden.relu())


def has_two_relus(self, x):
    return self.fc2(self.fc1(x.flatten(1)).relu().relu())


def has_none(self, x):
    return self.fc2(self.fc1(x.flatten(1)))


def halves_the_batch(self, x):
    return self.fc2(self.fc1(x.view(x.size(0) // 2, -1)).relu())


def fixes_the_batch(self, x):
    return self.fc2(self.fc1(x.view(5, 64)).relu())


def sees_a_wrong_size(self, x):
    return self.fc2(self.fc1(x.view(x.shape[1], -1)).relu())


def has_another_width(self, x):
    return self.fc2(self.fc1(x.view(-1, 32)).relu())


def has_another_width_within(self, x):
    return self.fc2(self.fc1(x.flatten(1)).relu().view(-1, 3))


def has_two_widths(self, x):
    return self.fc2(self.fc1(x.view(-1, 32).view(-1, 64)).relu())


def flattens_all(self, x):
    return self.fc2(self.fc1(x.flatten()).relu())


def returns_a_pair(self, x):
    return self.fc2(self.fc1(x.flatten(1)).relu()), 1


def ends_in_relu(self, x):
    return self.fc2(self.fc1(x.flatten(1)).relu()).relu()


def applies_softmax(self, x):
    return F.softmax(self.fc2(self.fc1(x.flatten(1)).relu()), dim=1)


@functools.cache
def decorated(self, x):
    return self.fc2(self.fc1(x.flatten(1)).relu())


def with_calls(forward, calls):
    network = layers(forward)
    network.calls = calls
    return network


def with_buffer():
    network = sequence()
    network.register_buffer("steps", torch.zeros(1))
    return network


def parametrised():
    network = sequence()
    parametrize.register_parametrization(network[1], "weight", nn.Identity())
    return network


def with_hook(kind, part=1):
    network = sequence()
    getattr(network[part], kind)(lambda *_: None)
    return network


def with_hook_of_a_parameter(kind):
    network = sequence()
    getattr(network[1].weight, kind)(lambda *_: None)
    return network


def of_dtype(dtype):
    return sequence().to(dtype)


def frozen():
    network = sequence()
    network[1].bias.requires_grad_(False)
    return network


class OwnParameter(nn.Parameter):
    """The same, but a class of a user's."""


def with_an_own_parameter(name):
    network = sequence()
    setattr(network[1], name, OwnParameter(getattr(network[1], name).detach()))
    return network


def tied():
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second)


def one_bias(*shape):
    network = sequence()
    network[3].bias = nn.Parameter(torch.zeros(shape or 1))
    return network


def in_one_place():
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight.data = first.weight.data
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second)


def repeated():
    block = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(nn.Flatten(), block, block, nn.Linear(64, 3))


def with_a_spare_part():
    network = Wrapped()
    network.spare = nn.Linear(3, 3)
    return network


def patched(name):
    network = sequence()
    setattr(network[1], name, lambda x: note(nn.Linear.forward(network[1], x)))
    return network


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # whoever has one still trains it
        return torch.jit.script(sequence())


def with_a_class_of_its_own(**members):
    network = Functional()
    network.__class__ = type("Own", (Functional,), members)
    return network


class OfAnotherKind(type):
    """A metaclass."""


def of_another_kind():
    return OfAnotherKind("Own", (Functional,), {})()


class OwnLinear(nn.Linear):
    """The same, but a class of a user's."""


class Growing(Chain):
    """Its list of layers is longer after each batch, were there more."""

    def __init__(self):
        super().__init__(64, 3)
        self.more = nn.ModuleList()

    def forward(self, x):
        grown = self.layers
        grown += self.more
        return self.layers[0](x.flatten(1))


class OwnReLU(nn.ReLU):
    """The same, but a class of a user's."""


class Iterated(nn.Module):
    """Runs what it gives out itself."""

    def __init__(self):
        super().__init__()
        self.net = sequence()

    def __iter__(self):
        return note(iter(self.net))

    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


class Skip(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 64))

    def forward(self, x):
        return x.flatten(1) + super().forward(x)


class Backwards(Inherited):
    def __iter__(self):
        return reversed(list(super().__iter__()))


class OwnParts(Inherited):
    def append(self, module):
        return super().append(note(module))


def lambda_on(name, value):
    network = stored_function()
    setattr(network, name, value)
    return network


OTHERS = {
    **{
        forward.__name__: functools.partial(layers, forward)
        for forward in (
            grows_by_default,
            has_a_list_to_be_named,
            prints,
            calls_a_function,
            changes_torch,
            changes_a_global,
            differs_in_training,
            asks_for_the_batch_and_branches,
            branches_on_the_batch,
            compares_the_batch,
            uses_its_weights,
            uses_a_batch_twice,
            forgets_a_relu,
            ends_in_place,
            uses_an_output_twice,
            has_two_relus,
            has_none,
            halves_the_batch,
            fixes_the_batch,
            sees_a_wrong_size,
            has_another_width,
            has_another_width_within,
            has_two_widths,
            flattens_all,
            returns_a_pair,
            ends_in_relu,
            applies_softmax,
            decorated,
        )
    },
    "a counter": lambda: with_calls(counts, 0),
    "a counter in a list": lambda: with_calls(counts_in_a_list, [0]),
    "a list in a tuple": lambda: with_calls(reads, ([0],)),
    "a list that grows": lambda: with_calls(grows, [0]),
    "a list that is appended to": lambda: with_calls(appends, [0]),
    "a method of its own": lambda: layers(calls_a_method, note=lambda self, x: note(x)),
    "a relu of its own": lambda: layers(calls_its_own_relu, relu=lambda self, x: note(x).relu()),
    "a relu that hangs on it": lambda: lambda_on("act", lambda x: note(x).relu()),
    "a choice by the batch": lambda: layers(chooses_by_the_batch),
    "a choice by the length": lambda: layers(chooses_by_the_length),
    "a slice by the length": lambda: with_activations(slices_by_the_length),
    "a branch on the length": lambda: layers(branches_on_the_length),
    "arithmetic with the batch": lambda: layers(offsets_by_the_batch),
    "flat from the batch on": lambda: layers(flattens_from_the_batch),
    "a bias for all outputs": one_bias,
    "a bias in columns": lambda: one_bias(1, 3),
    "two parameters in one place": in_one_place,
    "a buffer": with_buffer,
    "a parametrised layer": parametrised,
    "a forward hook": lambda: with_hook("register_forward_hook"),
    "a forward hook on ReLU": lambda: with_hook("register_forward_hook", 2),
    "a forward pre-hook": lambda: with_hook("register_forward_pre_hook"),
    "a backward hook": lambda: with_hook("register_full_backward_hook"),
    "a backward pre-hook": lambda: with_hook("register_full_backward_pre_hook"),
    "a hook on the state": lambda: with_hook("register_state_dict_post_hook"),
    "a pre-hook on the state": lambda: with_hook("register_state_dict_pre_hook"),
    "a hook on loading": lambda: with_hook("register_load_state_dict_post_hook"),
    "a hook on a gradient": lambda: with_hook_of_a_parameter("register_hook"),
    "a hook after a gradient": lambda: with_hook_of_a_parameter("register_post_accumulate_grad_hook"),
    "double precision": lambda: of_dtype(torch.float64),
    "another device": lambda: sequence().to("meta"),
    "a frozen bias": frozen,
    "a weight of its own": lambda: with_an_own_parameter("weight"),
    "a bias of its own": lambda: with_an_own_parameter("bias"),
    "tied layers": tied,
    "a repeated block": repeated,
    "a part that is not run": with_a_spare_part,
    "a patched forward": lambda: patched("forward"),
    "a patched call": lambda: patched("_call_impl"),
    "a compiled call": lambda: patched("_compiled_call_impl"),
    "a script": scripted,
    "a `train` of its own": lambda: with_a_class_of_its_own(train=lambda self, mode=True: self),
    "a `__call__` of its own": lambda: with_a_class_of_its_own(__call__=lambda self, x: x),
    "a `__getattribute__` of its own": lambda: with_a_class_of_its_own(__getattribute__=object.__getattribute__),
    "a `zero_grad` of its own": lambda: with_a_class_of_its_own(zero_grad=lambda self: None),
    "a class of another kind": of_another_kind,
    "a layer of its own": lambda: nn.Sequential(nn.Flatten(), OwnLinear(64, 3)),
    "an activation of its own": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 6), OwnReLU(), nn.Linear(6, 3)),
    "parts that grow": Growing,
    "parts that it gives out itself": Iterated,
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2, bias=False)),
    "another activation": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Tanh(), nn.Linear(3, 2)),
    "dropout": lambda: sequence(nn.Dropout(0.5)),
    "a branch that sleeps": lambda: layers(differs_in_training).eval(),
    "dropout that sleeps": lambda: sequence(nn.Dropout(0.5)).eval(),
    "a convolution": LeNet5,
    "a skip": Skip,
    "an order of its own": Backwards,
    "a list of its own": OwnParts,
    "no layer at all": nn.Flatten,
    "an activation first": lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(64, 3)),
    "an end in ReLU": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU()),
    "no forward": Layers,
}


@pytest.mark.parametrize("build", OTHERS.values(), ids=OTHERS)
def test_what_might_do_more_is_no_perceptron(build):
    network = build()
    SEEN.clear()
    before = copy.copy(getattr(network, "calls", None))
    assert perceptron(network) is None
    assert SEEN == []
    assert getattr(network, "calls", None) == before


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_a_hook_on_all_modules_is_seen(kind):
    handle = getattr(nn.modules.module, f"register_module_{kind}")(lambda *_: None)
    assert perceptron(sequence()) is None
    handle.remove()
    assert perceptron(sequence()) is not None


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (F, "relu"),
        (F, "linear"),
        (F, "cross_entropy"),
        (torch, "flatten"),
        (torch.Tensor, "relu"),
        (torch.Tensor, "backward"),
        (torch.autograd, "backward"),
        (torch._C._nn, "cross_entropy_loss"),
        (nn.Linear, "forward"),
        (nn.Module, "train"),
    ],
)
def test_what_replaces_pytorch_s_own_is_seen(owner, name, monkeypatch):
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **options: note(original(*args, **options)))
    assert perceptron(sequence()) is None


def test_a_change_is_seen_the_next_time():
    network = Wrapped()
    assert perceptron(network) is not None
    network.net[3] = nn.Linear(6, 4)
    assert perceptron(network).weights[1] is network.net[3].weight
    network.net[3] = nn.Tanh()
    assert perceptron(network) is None


def test_a_name_that_changes_its_meaning_is_seen(monkeypatch):
    network = Functional()
    assert perceptron(network) is not None
    monkeypatch.setitem(globals(), "F", type("Mine", (), {"relu": note}))
    assert perceptron(network) is None


def test_code_that_is_not_known_is_not_read(monkeypatch):
    code = Functional.forward.__code__
    assert forward_code.read(code).attributes == {"view", "size", "relu", "fc1", "fc2"}
    monkeypatch.setattr(forward_code, "HARMLESS", forward_code.HARMLESS - {"LOAD_FAST", "LOAD_FAST_BORROW"})
    forward_code.read.cache_clear()
    assert forward_code.read(code) is None
    forward_code.read.cache_clear()
