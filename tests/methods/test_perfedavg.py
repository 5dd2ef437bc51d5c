"""Per-FedAvg: invariants, and its two updates against hand-worked ones."""

import pytest
import torch
import torch.nn.functional as F
from plain_loops import PLAIN
from torch import nn, tensor
from toys import equal, fitted, linear, rows, toy_data

from fedlit import FedAvg
from fedlit.methods import PerFedAvg


def seeded(method, network=linear, **options):
    torch.manual_seed(7)
    return method(network, PLAIN, **options)


class EverySecondBatch(FedAvg):
    """FedAvg that looks at every other batch, whatever epoch it is of."""

    seen = 0

    def on_client_start(self, client):
        self.seen = 0

    def training_step(self, batch, batch_idx):
        self.seen += 1
        return None if self.seen % 2 else super().training_step(batch, batch_idx)


@pytest.fixture(scope="module")
def on_every_second_batch(tmp_path_factory):
    return fitted(
        seeded(EverySecondBatch, weighting="uniform"),
        local_epochs=3,
        default_root_dir=str(tmp_path_factory.mktemp("run")),
    ).global_state


def test_with_alpha_0_it_is_fedavg_on_every_second_batch(on_every_second_batch):
    method = seeded(PerFedAvg, alpha=0.0)
    assert equal(fitted(method, local_epochs=3).global_state, on_every_second_batch)


@pytest.mark.parametrize(
    ("alpha", "variant"), [(0.1, "fo"), (0.0, "hf")], ids=["with alpha above 0", "with three batches to an update"]
)
def test_it_is_not(alpha, variant, on_every_second_batch):
    method = seeded(PerFedAvg, alpha=alpha, variant=variant)
    assert not equal(fitted(method, local_epochs=3).global_state, on_every_second_batch)


class Scalar(nn.Module):
    """Logits 0 and w x: a problem that can be worked out by hand."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(tensor(0.5))

    def forward(self, x):
        return torch.stack([torch.zeros_like(x), self.w * x], dim=1)


BATCHES = [(tensor([2.0]), tensor([1])), (tensor([1.0]), tensor([0])), (tensor([3.0]), tensor([1]))]


def slope(w, batch):
    """d/dw of log(1 + e^{wx}) - y w x is x (sigmoid(w x) - y)."""
    x, y = batch
    return float(x * ((w * x).sigmoid() - y))


def gradient(variant):
    method = PerFedAvg(Scalar, PLAIN, alpha=0.4, variant=variant, delta=0.01)
    method.trainer = type("Trainer", (), {"estimated_stepping_batches": 3})()
    method.log = lambda *given: None
    losses = [method.training_step(batch, 0) for batch in BATCHES[: 2 + (variant == "hf")]]
    assert losses[:-1] == [None] * (len(losses) - 1)
    losses[-1].backward()
    return float(method.network.w.grad)


def test_the_first_order_update_by_hand():
    # w' = 0.5 - 0.4 * 2 (sigmoid(1) - 1) = 0.71515; the gradient there is sigmoid(0.71515) = 0.67153
    assert 0.5 - 0.4 * slope(tensor(0.5), BATCHES[0]) == pytest.approx(0.71515, abs=1e-5)
    assert gradient("fo") == pytest.approx(0.67153, abs=1e-5)


def test_the_update_without_second_derivatives_by_hand():
    # v = 0.67153; d is v times the second derivative 9 s (1 - s) at w = 0.5 on the third batch, s = sigmoid(1.5)
    v = gradient("fo")
    s = tensor(1.5).sigmoid()
    assert gradient("hf") == pytest.approx(v - 0.4 * v * float(9 * s * (1 - s)), rel=1e-3)


def test_a_personal_model_is_one_step_on_all_of_the_clients_samples():
    federation = fitted(seeded(PerFedAvg, alpha=0.3), toy_data(opt_out_samples=0.3))
    network = seeded(FedAvg).network
    network.load_state_dict({name.removeprefix("network."): t for name, t in federation.global_state.items()})
    batches = federation.state.data.client(1).train_batches(samples="all")
    F.cross_entropy(network(batches.x), batches.y).backward()
    own = federation.network(client=1)
    for (name, parameter), adapted in zip(network.named_parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(adapted, parameter - 0.3 * parameter.grad, msg=name)


def test_with_alpha_0_a_personal_model_is_the_global_one():
    federation = fitted(seeded(PerFedAvg, alpha=0.0))
    assert equal(federation.network(client=1).state_dict(), federation.network().state_dict())


def test_a_client_with_one_batch_takes_it_for_all_three():
    method = seeded(PerFedAvg, alpha=0.1, variant="hf")
    before = {name: t.clone() for name, t in method.state_dict().items()}
    federation = fitted(method, toy_data(batch_size=100), num_rounds=1)
    assert not equal(federation.global_state, before)
    assert {line["model"] for line in rows(federation) if line["data"] == "own"} == {"global", "personal", "trained"}
