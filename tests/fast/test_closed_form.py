"""A perceptron's step in closed form is autograd's."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import equal, fitted, toy_data

from fedlit import FedAvg
from fedlit.fast.perceptron import ClosedForm
from fedlit.fast.recognition import perceptron
from fedlit.networks import MLP

SGD = partial(torch.optim.SGD, lr=0.05)


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
