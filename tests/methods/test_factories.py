"""What a method refuses of data and options."""

import pytest
import torch
from every_method import METHODS
from toys import SGD, TrunkAndHead, fitted, linear, toy_data

import fedlit.methods
from fedlit import FedAvg, LocalOnly
from fedlit.methods import DLAD, FML, FineTuned, Ramp, check_ids

REFUSED = [  # a method, an option of it, and what is said
    ("APFL", {"alpha": 1.1}, r"`model.alpha` must lie in \[0, 1\], got 1.1"),
    ("APFL", {"alpha_lr": "fast"}, r"`model.alpha_lr` must be a number, got 'fast'"),
    ("Ditto", {"lam": float("nan")}, r"`model.lam` must be a finite number"),
    ("DLAD", {"temperature": 0}, r"`model.temperature` must be above 0, got 0"),
    ("DLAD", {"sample_weight": 0}, r"`model.sample_weight` must be above 0, got 0"),
    ("DLAD", {"client_epochs": 0}, r"`model.client_epochs` must be at least 1, got 0"),
    ("DLAD", {"density_epochs": 0}, r"`model.density_epochs` must be at least 1, got 0"),
    ("DLAD", {"distil_epochs": 0}, r"`model.distil_epochs` must be at least 1, got 0"),
    ("FD", {"gamma": -1}, r"`model.gamma` must be at least 0"),
    ("FedDF", {"distil_epochs": -1}, r"`model.distil_epochs` must be at least 0"),
    ("FedDF", {"patience": 0}, r"`model.patience` must be at least 1"),
    ("FedDyn", {"alpha": 0.0}, r"`model.alpha` must be above 0"),
    ("FedFusion", {"fuse_with": "both"}, r"`model.fuse_with` must be one of received, own, got 'both'"),
    ("FedNova", {"mu": -1}, r"`model.mu` must be at least 0, got -1"),
    ("FedRep", {"head_epochs": -1}, r"`model.head_epochs` must be at least 0, got -1"),
    ("FedRep", {"body_epochs": 1.5}, r"`model.body_epochs` must be a whole number, got 1.5"),
    ("FedRep", {"head_epochs": 0, "body_epochs": 0}, r"`model.head_epochs` and `model.body_epochs` must not both be 0"),
    ("FedRep", {"head_layers": 0}, r"`model.head_layers` must be at least 1, got 0"),
    ("FML", {"alpha": 1.5}, r"`model.alpha`"),
    ("FML", {"alpha": 0.5, "alpha_ramp": Ramp(0.9, 10)}, r"`model.alpha`"),
    ("FML", {"beta": 0.5, "beta_ramp": Ramp(0.1, 10)}, r"`model.beta`"),
    ("FML", {"client_memes": {0: linear}}, r"`model.client_memes`"),
    ("LGFedAvg", {"head_layers": 0}, r"at least 1, got 0"),
    ("LGFedAvg", {"head_layers": 2}, r"`model.network`: Normalised must hold"),
    ("MixtureOfExperts", {"epochs": 0}, r"`model.epochs` must be at least"),
    ("MixtureOfExperts", {"first_check": -1}, r"`model.first_check` must be at least"),
    ("MixtureOfExperts", {"mix": "logprob"}, r"`mix` must be one of"),
    ("MOON", {"mu": -1}, r"`model.mu` must be at least 0, got -1"),
    ("MOON", {"temperature": 0}, r"`model.temperature` must be above 0, got 0"),
    ("MOON", {"projection": 0}, r"`model.projection` must be at least 1, got 0"),
    ("PerFedAvg", {"alpha": -1.0}, r"`model.alpha` must be at least 0"),
    ("PerFedAvg", {"variant": "exact"}, r"`model.variant` must be one of fo, hf"),
    ("PerFedAvg", {"delta": 0.0}, r"`model.delta` must be above 0"),
    ("PFedMe", {"eta": float("inf")}, r"`model.eta` must be a finite number, got inf"),
    ("PFedMe", {"beta": None}, r"`model.beta` must be a number, got None"),
    ("PFedMe", {"inner_steps": 0}, r"`model.inner_steps` must be at least 1, got 0"),
    ("SCAFFOLD", {"option": "III"}, r"`model.option` must be one of I, II"),
    ("SCAFFOLD", {"lr_g": 0.0}, r"`model.lr_g` must be above 0"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_options_that_cannot_be_are_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        METHODS[name](**options)


@pytest.mark.parametrize(
    "method",
    [
        lambda **chosen: FML(linear, TrunkAndHead, SGD, share="extractor", **chosen),
        lambda **chosen: DLAD(linear, SGD, **chosen),
        lambda **chosen: LocalOnly(linear, SGD, **chosen),
    ],
    ids=["FML", "DLAD", "LocalOnly"],
)
def test_networks_of_clients_that_do_not_exist_are_refused(method):
    data = toy_data(num_clients=3)
    with pytest.raises(ValueError, match=r"`model.client_networks` names client 3, but the clients are 0 to 2."):
        method(client_networks={3: linear}).check(data)
    with pytest.raises(ValueError, match=r"`model.client_networks` must have one entry per client, 3, got 2."):
        method(client_networks=[linear] * 2).check(data)
    with pytest.raises(ValueError, match=r"`model.client_optimizers` names client -1"):
        method(client_optimizers={-1: SGD}).check(data)
    method(client_networks=[linear] * 3, client_optimizers={2: SGD}).check(data)


@pytest.mark.parametrize(
    ("method", "option"),
    [
        (lambda k: FML(linear, TrunkAndHead, SGD, share="extractor", client_memes={k: linear}), "client_memes"),
        (lambda k: FML(linear, linear, SGD, untrained_clients=[0, k]), "untrained_clients"),
        (lambda k: DLAD(linear, SGD, client_classes={k: [0, 1]}), "client_classes"),
        (lambda k: FedAvg(linear, SGD, client_optimizers={k: SGD}), "client_optimizers"),
    ],
    ids=["client_memes", "untrained_clients", "client_classes", "client_optimizers"],
)
def test_what_is_chosen_for_nobody_is_refused_by_its_option(method, option):
    data = toy_data(num_clients=3)
    with pytest.raises(ValueError, match=rf"`model.{option}` names client 3, but the clients are 0 to 2."):
        method(3).check(data)
    method(2).check(data)


def test_a_method_of_ones_own_is_asked_before_the_first_round():
    class Picky(FedAvg):
        def check(self, data):
            super().check(data)
            check_ids("model.favourite", [data.num_clients], data.num_clients)

        def training_step(self, batch, batch_idx):
            raise AssertionError("nobody may train")

    with pytest.raises(ValueError, match=r"`model.favourite` names client 3, but the clients are 0 to 2."):
        fitted(Picky(linear, SGD))


class OwnNetworks(FedAvg):
    """Takes choices per client as fedlit's own do, and checks nothing itself."""

    def __init__(self, network, optimizer, client_networks=None):
        super().__init__(network, optimizer)
        self.client_networks = client_networks


class OtherMeaning(FedAvg):
    """What it calls so is no option of its constructor."""

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.client_networks = ["one", "two"]


def test_choices_of_a_method_of_ones_own_are_checked_by_the_name_of_the_option():
    data = toy_data()
    data.setup()
    with pytest.raises(ValueError, match=r"`model.client_networks` names client 3, but the clients are 0 to 2."):
        OwnNetworks(linear, SGD, client_networks={3: linear}).check(data)
    OwnNetworks(linear, SGD, client_networks={2: linear}).check(data)
    OtherMeaning(linear, SGD).check(data)


def test_a_frozen_copy_does_not_follow_its_original():
    weight = torch.nn.Parameter(torch.ones(2))
    copies = fedlit.methods.frozen([weight])
    weight.data.add_(1)
    assert copies[0].tolist() == [1, 1]
    assert not copies[0].requires_grad


def test_an_option_is_not_given_under_its_old_name_and_its_new_one():
    with pytest.raises(ValueError, match=r"`model\.monitor` of FineTuned is now `model\.stop_on`; give one"):
        FineTuned(linear, SGD, stop_on="loss", monitor="acc")
    assert FineTuned(linear, SGD, stop_on="loss").stop_on == "loss"


def test_what_finetuning_stops_on_is_refused_by_its_name():
    with pytest.raises(ValueError, match=r"`model\.stop_on` must be one of loss, acc, got 'auc'"):
        fitted(FineTuned(linear, SGD, stop_on="auc"))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["FedAvg", "Ditto"])  # Ditto copies its network itself
def test_torchs_old_weight_norm_is_refused_with_what_to_use(name):
    def network(weight_norm):
        return torch.nn.Sequential(torch.nn.Flatten(), weight_norm(torch.nn.Linear(64, 3)))

    method = METHODS[name].func
    with pytest.raises(ValueError, match=r"`model.network`: '1.weight' is computed from parameters.*parametrizations"):
        method(lambda: network(torch.nn.utils.weight_norm), SGD)
    fitted(method(lambda: network(torch.nn.utils.parametrizations.weight_norm), SGD), num_rounds=1)
