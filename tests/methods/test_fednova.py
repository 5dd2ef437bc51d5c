"""FedNova: equal norms are FedAvg, unequal ones by hand."""

from functools import partial

import pytest
import torch
from plain_loops import PLAIN
from torch import tensor
from torch.testing import assert_close
from toys import SGD, SmallCNN, fitted, linear, seeded, toy_data

from fedlit import FedAvg, FedProx
from fedlit.aggregation import Upload
from fedlit.methods import FedNova
from fedlit.methods.fednova import norm_of_steps

WEIGHT = "network.weight"


def shared(federation):
    return {name: tensor for name, tensor in federation.global_state.items() if name.startswith("network.")}


@pytest.mark.parametrize("optimizer", [PLAIN, SGD], ids=["plain", "momentum"])
def test_with_equal_numbers_of_steps_it_is_fedavg(optimizer):
    fedavg = fitted(seeded(FedAvg, SmallCNN, optimizer)).global_state
    assert_close(shared(fitted(seeded(FedNova, SmallCNN, optimizer))), fedavg, atol=1e-5, rtol=1e-4)


def test_with_equal_numbers_of_steps_and_mu_it_is_fedprox():
    fedprox = fitted(seeded(FedProx, SmallCNN, PLAIN, mu=0.5)).global_state
    assert_close(shared(fitted(seeded(FedNova, SmallCNN, PLAIN, mu=0.5))), fedprox, atol=1e-5, rtol=1e-4)


def test_with_different_numbers_of_steps_it_is_not():
    options = {"client_epochs": {0: 5}, "num_rounds": 1}
    fedavg = fitted(seeded(FedAvg, linear, PLAIN), **options).global_state
    fednova = shared(fitted(seeded(FedNova, linear, PLAIN), **options))
    assert not torch.allclose(fednova["network.1.weight"], fedavg["network.1.weight"], rtol=1e-2)


def test_two_and_six_steps_by_hand():
    """x = 10; y = 8 by two steps and 4 by six; p = 1/4 and 3/4: d = 1 and 1, tau_eff = 0.5 + 4.5, x - 5 * 1."""
    method = FedNova(partial(torch.nn.Linear, 1, 1, bias=False), PLAIN)
    current = {WEIGHT: tensor([[10.0]])}
    uploads = [
        Upload(0, {WEIGHT: tensor([[8.0]]), "norm": tensor([2.0])}, weight=1),
        Upload(1, {WEIGHT: tensor([[4.0]]), "norm": tensor([6.0])}, weight=3),
    ]
    assert_close(method.aggregate(iter(uploads), current), {WEIGHT: tensor([[5.0]])})
    uploads[0].state[WEIGHT].fill_(6.0)  # d = 2 and 1, their mean 1.25
    assert_close(method.aggregate(iter(uploads), current), {WEIGHT: tensor([[3.75]])})


@pytest.mark.parametrize(("rho", "lr_mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.02)])
def test_a_norm_is_how_far_steps_of_the_same_gradient_go(rho, lr_mu):
    """f is linear, so that every gradient is 1: what SGD of rate 0.1 moves is 0.1 times the norm."""
    y = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([y], lr=0.1, momentum=rho)
    for _ in range(7):
        optimizer.zero_grad()
        (y + lr_mu / 0.1 / 2 * y**2).sum().backward()
        optimizer.step()
    assert -y.item() == pytest.approx(0.1 * norm_of_steps(7, rho, lr_mu))


def test_what_is_uploaded_is_the_norm_of_the_steps_that_were_taken():
    norms = {}

    class Spy(FedNova):
        def aggregate(self, uploads, current):
            held = list(uploads)
            norms.update({upload.client: upload.state["norm"].item() for upload in held})
            return super().aggregate(held, current)

    fitted(Spy(linear, SGD), client_epochs={0: 2}, num_rounds=1)  # 18 samples in batches of 8
    assert norms == pytest.approx({0: norm_of_steps(6, 0.9), 1: norm_of_steps(3, 0.9), 2: norm_of_steps(3, 0.9)})
    schedule = partial(torch.optim.lr_scheduler.ConstantLR, factor=0.5)
    fitted(Spy(linear, PLAIN, mu=2.0), num_rounds=1, lr_schedule=schedule)
    assert norms[0] == pytest.approx(norm_of_steps(3, lr_mu=0.5 * 0.1 * 2.0))


def test_a_client_without_a_step_does_not_move_anything():
    method = FedNova(partial(torch.nn.Linear, 1, 1, bias=False), PLAIN)
    current = {WEIGHT: tensor([[10.0]])}
    sent = [Upload(0, {WEIGHT: tensor([[10.0]]), "norm": tensor([0.0])})]
    assert_close(method.aggregate(iter(sent), current), current)


@pytest.mark.parametrize(
    ("optimizer", "mu", "message"),
    [
        (torch.optim.Adam, 0.0, r"`model.optimizer` must be torch.optim.SGD without dampening and .*; got Adam"),
        (partial(SGD, nesterov=True), 0.0, r"without dampening and nesterov and maximize, .*; got nesterov True"),
        (SGD, 0.1, r"without momentum .* of which the norm is known beside `model.mu`; got momentum 0.9"),
    ],
)
def test_steps_of_which_the_paper_has_no_norm_are_refused(optimizer, mu, message):
    with pytest.raises(ValueError, match=message):
        fitted(FedNova(linear, optimizer, mu=mu), toy_data())
