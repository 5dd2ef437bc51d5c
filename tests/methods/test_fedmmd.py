"""FedMMD and its L2 twin: their invariants, the 19 widths by hand, recording."""

import math

import pytest
import torch
from toys import SGD, SmallCNN, TrunkAndHead, equal, fitted, linear, rows, seeded, toy_data

from fedlit import FedAvg
from fedlit.augment import Flip
from fedlit.losses import FIXED_WIDTHS, half_squared_error, mmd
from fedlit.methods import FedMMD


def autograd_mmd(a, b, kernel):
    """In double, by differences, with the gradient left to PyTorch."""
    joint = torch.cat([a, b]).double()
    d = (joint[:, None] - joint[None]).square().sum(dim=2)
    if kernel == "fixed":
        scales = [2 * s for s in FIXED_WIDTHS]
    else:
        scales = [float(d.detach().sum()) / (len(d) * (len(d) - 1)) * 2.0**i for i in range(-2, 3)]
    k, n = sum(torch.exp(-d / s) for s in scales), len(a)
    return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()


def pair(spread, dtype=torch.float, far=0.0):
    """Two samples of different size, one near the other."""
    a = torch.randn(7, 4, dtype=dtype) + far
    return a.requires_grad_(), (a.detach()[:5] + spread * torch.randn(5, 4, dtype=dtype)).requires_grad_()


@pytest.mark.parametrize("kernel", ["fixed", "adaptive"])
@pytest.mark.parametrize("spread", [1e-3, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("far", [0.0, 30.0])
def test_value_and_both_gradients_of_the_mmd_are_those_of_autograd(kernel, spread, far):
    a, b = pair(spread, far=far)
    value, expected = mmd(a, b, kernel), autograd_mmd(a, b, kernel)
    assert value.dtype == torch.float
    assert value.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    for mine, other in zip(torch.autograd.grad(value, (a, b)), torch.autograd.grad(expected, (a, b)), strict=True):
        assert mine.dtype == torch.float
        assert (mine - other).norm() <= 1e-4 * other.norm()


def test_a_half_precision_stream_gets_a_gradient_of_its_own_kind():
    a, b = torch.randn(7, 4), torch.randn(5, 4, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        value = mmd(a, b)
    value.backward()
    assert (value.dtype, b.grad.dtype) == (torch.float, torch.bfloat16)
    assert value.item() == pytest.approx(mmd(a, b.detach().float()).item(), rel=1e-6)


def test_the_19_widths_by_hand():
    """Two points at squared distance 2: every kernel is exp(-1 / s)."""
    a, b = torch.zeros(1, 2), torch.tensor([[1.0, 1.0]])
    assert len(FIXED_WIDTHS) == 19
    assert mmd(a, b).item() == pytest.approx(2 * sum(1 - math.exp(-1 / s) for s in FIXED_WIDTHS), rel=1e-6)


def test_the_adaptive_kernel_by_hand():
    """Two points at squared distance 2: the mean of the two off-diagonal distances is 2, widths 0.5 to 8."""
    a, b = torch.zeros(1, 2), torch.tensor([[1.0, 1.0]])
    expected = 2 * sum(1 - math.exp(-2 / s) for s in (0.5, 1, 2, 4, 8))
    assert mmd(a, b, "adaptive").item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kernel", ["fixed", "adaptive"])
def test_equal_samples_have_no_distance_and_different_ones_have(kernel):
    a = torch.randn(8, 5)
    assert mmd(a, a.clone(), kernel).item() == pytest.approx(0, abs=1e-6)
    assert mmd(a, a + 1, kernel).item() > 1e-3
    assert torch.isfinite(mmd(torch.zeros(3, 2), torch.zeros(3, 2), kernel))


def test_at_equality_the_floored_distance_has_no_gradient():
    a = torch.randn(8, 5)
    b = a.clone().requires_grad_()
    mmd(a, b).clamp_min(1e-4).backward()
    assert torch.equal(b.grad, torch.zeros_like(b))


def test_the_l2_twin_is_half_a_sum_not_a_mean():
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2, 2)
    assert half_squared_error(a, b).item() == 15.0


# --- invariants


@pytest.mark.parametrize("distance", ["mmd", "l2"])
@pytest.mark.parametrize(("lam", "holds"), [(0.0, True), (0.1, False)])
def test_with_lam_0_and_only_then_it_is_fedavg(distance, lam, holds):
    fedavg = fitted(seeded(FedAvg, SmallCNN, SGD, weighting="uniform"))
    other = fitted(seeded(FedMMD, SmallCNN, SGD, lam=lam, distance=distance))
    assert equal(fedavg.global_state, other.global_state) is holds


@pytest.mark.parametrize(("distance", "compare"), [("mmd", "logits"), ("l2", "logits"), ("mmd", "features")])
def test_recorded_outputs_give_the_same_weights(distance, compare):
    """Bit for bit where all batches are full: the rounding of a row may depend on how many rows there are."""
    from fedlit.networks import MLP

    def network():
        return MLP(in_features=64, num_classes=3, hidden=(16,))

    options = {"distance": distance, "compare": compare}
    both = [seeded(FedMMD, network, SGD, record=record, **options) for record in (True, False)]
    assert equal(*(fitted(method, toy_data(batch_size=6), local_epochs=3).global_state for method in both))


def test_features_need_a_network_that_has_them():
    with pytest.raises(ValueError, match=r"`model\.compare: features` needs a network with an `extractor`"):
        FedMMD(linear, SGD, compare="features")


def test_kernel_and_what_is_compared_make_a_difference():
    def state(**options):
        torch.manual_seed(7)
        return fitted(FedMMD(TrunkAndHead, SGD, lam=1.0, **options)).global_state

    plain = state()
    assert not equal(plain, state(kernel="adaptive"))
    assert not equal(plain, state(compare="features"))


@pytest.mark.parametrize("distance", ["mmd", "l2"])
def test_the_distance_is_recorded_for_every_client_and_the_loss_is_made_of_it(distance):
    method = FedMMD(linear, SGD, lam=0.3, distance=distance)
    losses = []
    plain = method.training_step

    def watched(batch, batch_idx):
        losses.append(plain(batch, batch_idx))
        return losses[-1]

    method.training_step = watched
    federation = fitted(method, toy_data(num_clients=1), num_rounds=1)
    found = {row["metric"]: float(row["value"]) for row in rows(federation) if row["data"] == "train"}
    assert found[distance] > 0
    mean = float(torch.stack(losses).detach().mean())
    assert mean == pytest.approx(found["train_loss"] + 0.3 * found[distance], rel=1e-4)


def test_where_inputs_vary_the_weights_are_those_without_a_recording():
    both = [seeded(FedMMD, linear, SGD, record=record) for record in (True, False)]
    assert equal(*(fitted(method, toy_data(augmentation=[Flip()]), num_rounds=1).global_state for method in both))
