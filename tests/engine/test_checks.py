"""What cannot work in a method, its networks, optimisers or data is refused in one line, before the first round."""

from functools import partial

import pytest
import torch
import yaml
from torch import nn
from toys import SGD, fitted, linear, rows, toy_datasets

from fedlit import FedAvg, FederatedData
from fedlit.methods import LocalOnly


class Forward(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.layer = nn.Linear(64, 3)
        self.own = forward

    def forward(self, x):
        return self.own(self.layer(x.flatten(1)))


def fails(z):
    raise AssertionError("three channels only")


class Lazy(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.LazyLinear(3))


def double():
    return linear().double()


NETWORKS = {
    "the network of client 0: a network must give one tensor, got a tuple": partial(Forward, lambda z: (z, z)),
    "the network .* must give one tensor, got a mapping of a, b; of": partial(Forward, lambda z: {"a": z, "b": z}),
    r"the network of client 0 cannot take inputs of shape \[1, 8, 8\]: AssertionError: three": partial(Forward, fails),
    "the network .* cannot take inputs .*: 'Tensor' .* no attribute 'logits'": partial(Forward, lambda z: z.logits),
    r"the network of client 0 cannot take inputs of .*Double; see `trainer.precision`": double,
    "Attempted to use an uninitialized parameter": Lazy,
    "`model.network` cannot be built: TypeError: empty": partial(nn.Linear, 2, "ten"),
    "`model.network` must build a network, got a NoneType": lambda: None,
}


@pytest.mark.parametrize(("message", "network"), NETWORKS.items())
def test_a_network_that_cannot_be_used_is_refused_by_its_own_error(message, network):
    with pytest.raises((ValueError, TypeError), match=f"^(`model`: )?{message}"):
        fitted(FedAvg(network, SGD))


def test_a_network_of_doubles_is_welcome_where_precision_says_so():
    federation = fitted(FedAvg(double, SGD), num_rounds=1, precision="64-true")
    assert federation.global_state["network.1.bias"].dtype == torch.float64
    fitted(LocalOnly(double, SGD), num_rounds=1)  # what is built for a client is given the method's dtype


STEP, PLATEAU = partial(torch.optim.lr_scheduler.StepLR, step_size=1), torch.optim.lr_scheduler.ReduceLROnPlateau
OPTIMIZERS = {
    "automatic optimisation takes one optimiser, got 2": lambda method, one: [one, SGD(method.parameters())],
    "'AttributeDict' object has no attribute 'lr'": lambda method, one: method.hparams.lr,
    "Found unsupported keys .*: {'lr_schedulr'}": lambda method, one: {"optimizer": one, "lr_schedulr": STEP(one)},
    ".*must include a monitor": lambda method, one: {"optimizer": one, "lr_scheduler": PLATEAU(one)},
    "Unknown configuration .* should be one of: .*Optimizer": lambda method, one: None,
}


@pytest.mark.parametrize(("message", "configure"), OPTIMIZERS.items())
def test_optimisers_that_cannot_be_used_are_refused(message, configure):
    class Mine(FedAvg):
        def configure_optimizers(self):
            return configure(self, super().configure_optimizers())

    with pytest.raises(ValueError, match=f"^`model`: `configure_optimizers` of Mine of client 0: {message}"):
        fitted(Mine(linear, SGD))


def test_an_optimiser_that_is_built_already_is_refused():
    with pytest.raises(TypeError, match=r"^`model.optimizer` must be a class or function .*; got a ready SGD"):
        FedAvg(linear, SGD(linear().parameters()))


def test_a_data_set_by_name_beside_one_that_is_given_is_refused():
    train, test = toy_datasets()
    with pytest.raises(ValueError, match=r"^`data.train_dataset` stands in place of `data.dataset`.*got mnist beside"):
        FederatedData(dataset="mnist", train_dataset=train, test_dataset=test)


def test_hparams_hold_what_a_method_has_saved_and_no_data_set_that_was_not_used():
    class Tuned(FedAvg):
        def __init__(self, network, optimizer, gamma: float = 0.5):
            super().__init__(network, optimizer)
            self.save_hyperparameters(ignore=["network", "optimizer"])

        def on_client_start(self, client):
            assert self.hparams.gamma == self.hparams_initial["gamma"] == 0.25

    federation = fitted(Tuned(linear, SGD, gamma=0.25), num_rounds=1, logger=True)
    with open(f"{federation.log_dir}/hparams.yaml") as file:
        found = yaml.safe_load(file)
    assert found["model.gamma"] == 0.25
    assert found["data.num_clients"] == 3
    assert "data.dataset" not in found
    assert rows(federation)


class Forgetful(FedAvg):
    def __init__(self):
        self.network = linear()


def test_a_forgotten_call_of_the_base_class_is_named():
    with pytest.raises(ValueError, match=r"^`Forgetful.__init__` must call `super\(\).__init__\(optimizer\)` first\.$"):
        Forgetful()
