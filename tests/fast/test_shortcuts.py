"""Shortcuts agree with what they replace; no test here looks at a clock."""

import os
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import equal, fitted, toy_data
from lightning.fabric import Fabric
from torch import nn

from benchmarks import bare
from benchmarks.workloads import WORKLOADS, quiet_federation
from fedlit import FedAvg, FederatedModule, Federation, LocalOnly
from fedlit.engine.means import Means
from fedlit.engine.plain_step import PlainStep
from fedlit.engine.sampling import ClientSampler
from fedlit.fast.max_pool import Halved, MaxPool
from fedlit.fast.memory import set_fast
from fedlit.fast.perceptron import ClosedForm
from fedlit.fast.permission import is_plain_sgd
from fedlit.fast.recognition import perceptron
from fedlit.fast.sgd import plain_clear_and_step, prepare
from fedlit.fast.stack import Stack
from fedlit.methods import FML, FedProx, MixtureOfExperts
from fedlit.networks import MLP, LeNet5, McMahanCNN
from fedlit.records import checkpoint
from fedlit.rng import derive, generator, isolated

SGD = partial(torch.optim.SGD, lr=0.05)


def after_three_rounds(work, fast: bool, folder) -> Federation:
    share = work.per_round / work.num_clients
    options = {"local_epochs": work.epochs, "fraction_fit": share, "seed": 7, "fast": fast}
    federation = quiet_federation(3, str(folder), **options)
    torch.manual_seed(3)
    federation.fit(work.method(), work.data(None))
    return federation


def by_hand(work, federation: Federation) -> bare.FedAvg:
    """The same three rounds in a hand-written loop, with the same first weights, clients and order of batches."""
    run, initial = federation.state, work.network()
    first = run.initial if not work.pair else {n: t for n, t in run.initial.items() if n.startswith("meme.")}
    copy_into(initial, first.values())
    shuffle = lambda round, k: generator(7, "batches", "federate", round, k)  # noqa: E731
    options = {"shuffle": shuffle, "mean_dtype": torch.float64}
    shards = work.shards(None)
    if work.pair:
        personal = [work.network() for _ in shards]
        for k, network in enumerate(personal):
            with isolated(derive(7, "client", k)):
                copy_into(network, McMahanCNN().parameters())
        loop = bare.FML(personal, initial, shards, work.batch_size, work.epochs, **options)
    else:
        loop = bare.FedAvg(initial, shards, work.batch_size, work.epochs, **options)
    for number in range(1, 4):
        stage = federation.state.stage
        clients = ClientSampler(run).sample(stage, number)
        loop.round(number, clients)
    return loop


@torch.no_grad()
def copy_into(network: nn.Module, values) -> None:
    for parameter, value in zip(network.parameters(), values, strict=True):
        parameter.copy_(value)


WORK = {  # with fewer clients and samples
    "W1": replace(WORKLOADS["W1"], num_clients=3, per_round=3, samples=40),
    "W2": replace(WORKLOADS["W2"], num_clients=20, per_round=4),
    "W3": replace(WORKLOADS["W3"], num_clients=2, per_round=2, samples=40),
}
BENCHMARKS = sorted(path.stem for path in Path(bare.__file__).parent.glob("[a-z]*.py") if "peer" not in path.stem)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_finds_what_it_imports(name):
    import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", WORK)
def test_exact_mode_has_the_bits_of_a_hand_written_loop(name, tmp_path):
    federation = after_three_rounds(WORK[name], False, tmp_path)
    loop = by_hand(WORK[name], federation)
    for ours, theirs in zip(federation.global_state.values(), loop.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    if WORK[name].pair:
        for k, network in enumerate(loop.personal):
            for ours, theirs in zip(federation.personal_states[k].values(), network.parameters(), strict=True):
                assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", WORK)
def test_fast_mode_is_near_exact_mode(name, tmp_path):
    exact, fast, again = (after_three_rounds(WORK[name], mode, tmp_path).global_state for mode in (False, True, True))
    assert all(torch.equal(fast[n], again[n]) for n in fast)  # its own bits, every time
    for n in fast:
        assert torch.allclose(fast[n], exact[n], atol=2e-5)


@pytest.mark.parametrize("fast", [False, True])
def test_the_switch_does_what_it_says(fast, tmp_path, monkeypatch):
    """Not seen in the bits: whether another order of adding rounds otherwise is the processor's business."""
    stacks = []
    monkeypatch.setattr(Stack, "train", lambda stack, *_: stacks.append(stack) or stack._step(stack.starts.flatten()))
    after_three_rounds(WORK["W2"], fast, tmp_path)
    assert bool(stacks) is fast
    module = after_three_rounds(WORK["W1"], fast, tmp_path).state.module
    kernels = [part.weight for part in module.modules() if isinstance(part, nn.Conv2d)]
    assert kernels[1].is_contiguous(memory_format=torch.channels_last) is fast  # one of one channel is so in any layout


def test_fast_mode_is_recorded(tmp_path):
    federation = after_three_rounds(WORK["W2"], True, tmp_path)
    folder = next((tmp_path / "lightning_logs").iterdir())
    assert '"fast": true' in (folder / "events.jsonl").read_text()
    assert federation.fast


@pytest.mark.parametrize("batch", [1, 7, 32])
@pytest.mark.parametrize("hidden", [(), (5,), (20, 10, 6)])
def test_closed_form_is_autograd_to_the_bit(batch, hidden):
    slow, quick, rough = (MLP(image_size=8, num_classes=3, hidden=hidden) for _ in range(3))
    quick.load_state_dict(slow.state_dict())
    rough.load_state_dict(slow.state_dict())
    optimizers = [SGD(network.parameters()) for network in (slow, quick, rough)]
    exact = ClosedForm(perceptron(quick), optimizers[1], fused=False)
    fused = ClosedForm(perceptron(rough), optimizers[2], fused=True)
    for _ in range(5):
        x, y = torch.randn(batch, 1, 8, 8), torch.randint(0, 3, (batch,))
        optimizers[0].zero_grad()
        loss = F.cross_entropy(slow(x), y)
        loss.backward()
        optimizers[0].step()
        assert torch.equal(exact(x, y), loss.detach())
        assert torch.allclose(fused(x, y), loss.detach(), atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(slow.parameters(), quick.parameters(), strict=True))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(slow.parameters(), rough.parameters(), strict=True))


def test_closed_form_by_hand():
    # x = (1, 2), z = (0, 0), p = (1/2, 1/2), y = 0: d = (-1/2, 1/2); lr 1: W = ((1/2, 1), (-1/2, -1)), b = (1/2, -1/2).
    network = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
    nn.init.zeros_(network[1].weight)
    nn.init.zeros_(network[1].bias)
    for fused in (False, True):
        step = ClosedForm(perceptron(network), torch.optim.SGD(network.parameters(), lr=1.0), fused)
        step(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
        assert network[1].weight.tolist() == [[0.5, 1.0], [-0.5, -1.0]]
        assert network[1].bias.tolist() == [0.5, -0.5]
        nn.init.zeros_(network[1].weight)
        nn.init.zeros_(network[1].bias)


def hooked() -> nn.Module:
    network = MLP()
    network.head.register_forward_hook(lambda *_: None)
    return network


def frozen() -> nn.Module:
    network = MLP()
    network.head.weight.requires_grad_(False)
    return network


def tied() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second)


def repeated() -> nn.Module:
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return nn.Sequential(nn.Flatten(), block, block, nn.Linear(4, 2))


def with_a_spare_part() -> nn.Module:
    network = MLP()
    network.spare = nn.Sequential(nn.ReLU(), nn.Linear(10, 10))
    return network


def masked() -> nn.Module:
    network = MLP()
    network.head.weight.register_hook(lambda gradient: gradient * 0)
    return network


def patched() -> nn.Module:
    network = MLP()
    network.head.forward = lambda x: x[:, :10]
    return network


OTHERS = {
    "tied layers": tied,
    "a repeated block": repeated,
    "a part that is not run": with_a_spare_part,
    "a hook on a gradient": masked,
    "a patched layer": patched,
    "a convolution": LeNet5,
    "a hook": hooked,
    "a frozen layer": frozen,
    "double precision": lambda: MLP().double(),
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)),
    "another activation": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2)),
    "a skip": lambda: Skip(),
    "no layer at all": nn.Flatten,
    "an end in ReLU": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU()),
}


class Skip(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(4, 4))

    def forward(self, x):
        return x + super().forward(x)


@pytest.mark.parametrize("build", OTHERS.values(), ids=OTHERS)
def test_what_is_no_perceptron_has_no_closed_form(build):
    assert perceptron(build()) is None
    assert len(perceptron(MLP()).weights) == 3


class LooksBack(FedAvg):
    def on_client_end(self, client):
        self.norm = self.network.head.weight.grad.norm()


class OwnStep(FedAvg):
    def training_step(self, batch, batch_idx):
        return 2 * super().training_step(batch, batch_idx)


def test_only_plain_cross_entropy_has_a_closed_form():
    def closed(method):
        return ClosedForm.of(method, SGD(method.parameters()))

    assert closed(FedAvg(MLP, SGD)) is not None
    assert closed(OwnStep(MLP, SGD)) is None
    assert closed(FedProx(MLP, SGD, mu=0.1)) is None
    assert closed(FML(MLP, MLP, SGD)) is None
    assert closed(LooksBack(MLP, SGD)) is None
    hooked = FedAvg(MLP, SGD)
    hooked.register_forward_pre_hook(lambda *_: None)
    assert closed(hooked) is None
    part = FedAvg(MLP, SGD)
    assert ClosedForm.of(part, SGD(part.network.head.parameters())) is None


@pytest.mark.parametrize(
    ("options", "plain"),
    [({}, True), ({"momentum": 0.9}, False), ({"weight_decay": 0.1}, False), ({"maximize": True}, False)],
)
def test_a_plain_step_is_the_optimiser_s_to_the_bit(options, plain):
    networks = [nn.Linear(5, 3) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    ours, theirs = (torch.optim.SGD(network.parameters(), lr=0.3, **options) for network in networks)
    assert is_plain_sgd(ours) == plain
    clear, step = plain_clear_and_step(ours)
    for _ in range(3):
        x = torch.randn(4, 5)
        theirs.zero_grad(), clear()
        for network in networks:
            network(x).square().sum().backward()
        theirs.step(), step()
    assert torch.equal(networks[0].weight, networks[1].weight) == plain  # it would be wrong for any other


def test_a_watched_optimiser_is_stepped_as_it_is():
    method, seen = FedAvg(LeNet5, SGD), []
    optimizer = SGD(method.parameters())
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    assert not is_plain_sgd(optimizer)
    descend = PlainStep(Fabric(accelerator="cpu"), method, [optimizer], None)
    descend((torch.randn(2, 3, 32, 32), torch.tensor([0, 1])), 0)
    assert seen == [1]


@pytest.mark.parametrize(
    "build", [partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01), torch.optim.Adam, torch.optim.AdamW]
)
def test_prepared_optimisers_agree(build):
    networks = [nn.Linear(30, 20) for _ in range(3)]
    for network in networks[1:]:
        network.load_state_dict(networks[0].state_dict())
    optimizers = [build(network.parameters(), lr=0.01) for network in networks]
    prepare(optimizers[1], fast=False)
    prepare(optimizers[2], fast=True)
    for _ in range(5):
        x = torch.randn(4, 30)
        for network, optimizer in zip(networks, optimizers, strict=True):
            optimizer.zero_grad()
            network(x).square().sum().backward()
            optimizer.step()
    assert optimizers[1].param_groups[0]["foreach"]
    assert optimizers[2].param_groups[0]["fused"]
    assert torch.equal(networks[0].weight, networks[1].weight)
    assert torch.allclose(networks[0].weight, networks[2].weight, atol=1e-6)


def test_a_user_s_choice_of_update_stays():
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], foreach=False)
    prepare(optimizer, fast=True)
    assert optimizer.param_groups[0]["foreach"] is False
    assert not optimizer.param_groups[0]["fused"]


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (4, 28, 28), (2, 2, 14, 14)])
def test_halving_is_pytorch_s_pool_to_the_bit(shape):
    x = torch.randn(shape).mul(2).round().requires_grad_()  # many ties
    gradient = torch.randn(*shape[:-2], shape[-2] // 2, shape[-1] // 2)
    (ours,) = torch.autograd.grad(Halved.apply(x), x, gradient)
    (theirs,) = torch.autograd.grad(F.max_pool2d(x, 2), x, gradient)
    assert torch.equal(Halved.apply(x), F.max_pool2d(x, 2))
    assert torch.equal(ours, theirs)
    assert not torch.equal(torch.autograd.grad(F.max_pool2d(x.flip(-1), 2), x, gradient)[0], theirs)  # ties are seen


@pytest.mark.parametrize("size", [7, 8])
def test_a_pool_falls_back_where_windows_are_cut(size):
    x = torch.randn(2, 3, size, size, requires_grad=True)
    assert torch.equal(MaxPool(2, stride=2)(x), F.max_pool2d(x, 2))
    per_sample = torch.func.vmap(torch.func.grad(lambda image: MaxPool(2, stride=2)(image).square().sum()))
    assert torch.allclose(per_sample(x.detach()), torch.autograd.grad(F.max_pool2d(x, 2).square().sum(), x)[0])


def test_relu_after_the_pool_has_the_same_gradients():
    conv, x = nn.Conv2d(1, 4, 3), torch.randn(3, 1, 10, 10)
    before = nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2))
    after = nn.Sequential(conv, MaxPool(2, stride=2), nn.ReLU(inplace=True))
    gradients = [torch.autograd.grad(order(x).square().sum(), conv.parameters()) for order in (before, after)]
    assert torch.equal(before(x), after(x))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


class Thawing(FedAvg):
    """Trains its head alone from the second epoch on."""

    epoch = 0

    def on_client_start(self, client):
        self.epoch = 0

    def on_train_epoch_start(self):
        self.epoch += 1
        self.network.extractor.requires_grad_(self.epoch == 1)


def test_layers_that_are_frozen_between_epochs_stay():
    def extractor(epochs):
        torch.manual_seed(3)
        method = Thawing(partial(MLP, image_size=8, num_classes=3), SGD)
        state = fitted(method, toy_data(num_clients=1), num_rounds=1, local_epochs=epochs).global_state
        return {name: tensor for name, tensor in state.items() if "extractor" in name}

    # The order of the first epoch's batches is the same.
    assert equal(extractor(1), extractor(3))


class FrozenNorm(nn.Sequential):
    """Keeps its statistics, as many fine-tuning recipes do."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3))

    def train(self, mode=True):
        super().train(mode)
        self[2].eval()
        return self


@pytest.mark.parametrize("method", [FedAvg, LocalOnly])
def test_a_network_s_own_train_is_called(method):
    federation = fitted(method(FrozenNorm, SGD), num_rounds=2)
    states = [federation.global_state, *federation.personal_states.values()]
    found = [state["network.2.running_mean"] for state in states if "network.2.running_mean" in state]
    assert found
    assert not any(mean.any() for mean in found)


def test_a_mean_is_of_values_as_they_were():
    means, value = Means(), torch.zeros(())
    for _ in range(4):
        means("a", value)
        means("b", 2)
        value += 1
    assert means.result() == {"a": 1.5, "b": 2.0}
    means("vector", torch.zeros(2))
    with pytest.raises((ValueError, RuntimeError)):
        means.result()


def test_means_of_many_values_are_added_up_in_parts(monkeypatch):
    monkeypatch.setattr("fedlit.engine.means.MANY", 3)
    means = Means()
    for value in range(8):
        means("a", torch.tensor(float(value)))
    assert means.result() == {"a": 3.5}


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam])
def test_an_exact_run_goes_on_in_fast_mode(optimizer, tmp_path):
    def run(folder, **options):
        torch.manual_seed(3)
        network = partial(LeNet5, in_channels=1, image_size=28)
        method = LocalOnly(network, partial(optimizer, lr=0.01))
        data = WORK["W1"].data(None)
        return fitted(method, data, default_root_dir=str(tmp_path / folder), **options)

    run("a", num_rounds=1)
    changed = run("a", num_rounds=2, ckpt_path="last", fast=True)
    exact = run("b", num_rounds=2)
    for k in range(3):
        for name, tensor in exact.personal_states[k].items():
            assert torch.allclose(tensor, changed.personal_states[k][name], atol=1e-4)


def test_fast_mode_can_be_left_again(tmp_path):
    method = FedAvg(partial(LeNet5, in_channels=1, image_size=28), SGD)
    weight = method.network.extractor[3].weight
    data = WORK["W1"].data(None)
    for fast in (True, False):
        fitted(method, data, num_rounds=1, default_root_dir=str(tmp_path), fast=fast)
        assert weight.is_contiguous() is not fast
        assert method.fast is fast


def test_a_kernel_of_one_channel_makes_its_output_channels_last_too():
    method = FedAvg(McMahanCNN, SGD)
    set_fast(method, True)
    features = method.network.extractor[0](torch.randn(2, 1, 28, 28))
    assert features.is_contiguous(memory_format=torch.channels_last)
    assert not features.is_contiguous()


def test_parts_of_a_method_are_fast_too():
    method = MixtureOfExperts(LeNet5, SGD)
    set_fast(method, True)
    assert all(part.fast for part in method.modules() if isinstance(part, FederatedModule))
    set_fast(nn_with_three_dimensions := FedAvg(partial(nn.Conv3d, 1, 2, 3), SGD), True)
    assert nn_with_three_dimensions.network.weight.is_contiguous()


def test_rates_that_are_tensors_are_left_alone():
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=torch.tensor(0.1))
    prepare(optimizer, fast=False)
    assert optimizer.param_groups[0]["foreach"] is None


def test_a_pool_can_be_differentiated_twice():
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: Halved.apply(x).square(), x)


def test_a_file_left_by_a_kill_is_not_written_through(tmp_path):
    best, last = tmp_path / "best.ckpt", tmp_path / "last.ckpt"
    checkpoint.save({"a": torch.ones(3)}, best)
    os.link(best, tmp_path / ".last.ckpt.tmp")  # killed between the two steps of `keep`
    checkpoint.save({"a": torch.zeros(9)}, last)
    assert torch.load(best, weights_only=True)["a"].tolist() == [1, 1, 1]
