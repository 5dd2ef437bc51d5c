"""Which methods are for any task, which for classes alone: each is tried on numbers."""

from functools import partial

import pytest
import torch
from torch import nn
from toys import equal, fitted, rows

from fedlit import FedAvg, FederatedData
from fedlit.data.toy import Blocks, ToyRegression
from fedlit.methods import (
    APFL,
    FD,
    MOON,
    SCAFFOLD,
    Ditto,
    FedBN,
    FedDF,
    FedDyn,
    FedMD,
    FedNova,
    FedPer,
    FedProto,
    FedRep,
    LGFedAvg,
    PerFedAvg,
    PFedMe,
    mean_gradient,
)
from fedlit.tasks import Regression

SGD = partial(torch.optim.SGD, lr=0.05)
FOR_ANY = {
    "Ditto": Ditto,
    "APFL": APFL,
    "PFedMe": partial(PFedMe, inner_steps=2),
    "MOON": partial(MOON, projection=4),
    "SCAFFOLD": SCAFFOLD,
    "SCAFFOLD, option I": partial(SCAFFOLD, option="I"),
    "PerFedAvg": PerFedAvg,
    "PerFedAvg, hf": partial(PerFedAvg, variant="hf"),
    "FedNova": FedNova,
    "FedDyn": FedDyn,
    "FedBN": FedBN,
    "FedPer": FedPer,
    "FedRep": partial(FedRep, head_epochs=1),
    "LGFedAvg": LGFedAvg,
}
FOR_CLASSES = (FedProto, FD, FedMD, FedDF)


def network():
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))


def numbers(**options):
    train, test = ToyRegression(True, 48, 2), ToyRegression(False, 16, 2)
    given = {"num_clients": 2, "partition": Blocks(), "val_size": 0.25, "batch_size": 8, **options}
    return FederatedData(train_dataset=train, test_dataset=test, **given)


def seeded(method, **options):
    torch.manual_seed(3)
    return method(network, SGD, task=Regression(), **options)


def own_samples(data, k):
    """All that a client trains on."""
    held = data.assignment.train[k]
    return data.images.train_x[held], data.images.train_y[held]


@pytest.mark.parametrize("name", FOR_ANY)
def test_it_learns_numbers_by_their_own_loss_and_metric(name):
    data = numbers()
    method = seeded(FOR_ANY[name])
    data.setup()
    x, y = own_samples(data, 0)
    before = Regression().loss(method(x), y)
    federation = fitted(method, data, num_rounds=1, min_clients=2, local_epochs=4)
    assert Regression().loss(federation.network(client=0)(x), y) < before
    measured = {row["metric"] for row in rows(federation)}
    assert {"r2", "loss"} <= measured
    assert "acc" not in measured


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("run"))
    return fitted(seeded(FedAvg), numbers(), num_rounds=2, default_root_dir=folder).global_state


@pytest.mark.parametrize("method", [Ditto, partial(APFL, weighting="examples"), partial(MOON, mu=0, projection=None)])
def test_the_shared_network_of_numbers_is_fedavgs(method, fedavg):
    found = fitted(seeded(method), numbers(), num_rounds=2).global_state
    assert equal({name.replace("network.w.", "network."): tensor for name, tensor in found.items()}, fedavg)


def test_the_mean_gradient_is_that_of_the_loss_over_all_samples():
    data = numbers(batch_size=5)  # the last batch is smaller
    data.setup()
    torch.manual_seed(3)
    model = network()
    found = mean_gradient(model, data.client(0), torch.zeros(1), Regression().loss)
    x, y = own_samples(data, 0)
    wanted = torch.autograd.grad(Regression().loss(model(x), y), list(model.parameters()))
    torch.testing.assert_close(found, list(wanted))
    halved = torch.autograd.grad(Regression().loss(model(x[:5]), y[:5]), list(model.parameters()))
    assert not torch.allclose(found[0], halved[0])


class TwoInputs(nn.Module):
    """Takes what it needs by name."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 3)
        self.head = nn.Linear(4, 1)

    def forward(self, features, age):
        return {"logits": self.head(torch.cat([self.body(features), age], dim=1))}


class Table(torch.utils.data.Dataset):
    """Samples are dicts, as those of a Hugging Face data set."""

    def __init__(self, size):
        draw = torch.Generator().manual_seed(size)
        self.x = torch.randn(size, 3, generator=draw)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"features": self.x[i, :2], "age": self.x[i, 2:]}, self.x[i].sum()


@pytest.mark.parametrize("name", ["APFL", "MOON", "SCAFFOLD, option I", "PerFedAvg", "LGFedAvg"])
def test_inputs_may_be_dicts_and_outputs_too(name):
    options = {"num_clients": 2, "partition": Blocks(), "val_size": 0.25, "batch_size": 6}
    data = FederatedData(train_dataset=Table(24), test_dataset=Table(8), **options)
    federation = fitted(FOR_ANY[name](TwoInputs, SGD, task=Regression()), data, num_rounds=1, min_clients=2)
    assert federation.state.scores.last


@pytest.mark.parametrize("method", FOR_CLASSES)
def test_a_method_for_classes_refuses_numbers_by_name(method):
    message = rf"`model.task` of {method.__name__} is classification, .*; {method.__name__} is for nothing else"
    with pytest.raises(ValueError, match=message):
        fitted(method(network, SGD), numbers(public=0.5, partition=Blocks()))
