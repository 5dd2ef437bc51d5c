"""What a method refuses of data and options, and where its author finds what it is built with."""

import pytest
import torch
from toys import SGD, TrunkAndHead, fitted, linear, toy_data

import fedlit.methods
from fedlit import FedAvg, LocalOnly
from fedlit.methods import DLAD, FML, FineTuned, check_choices, check_ids


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


class OwnAffair(FedAvg):
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
    OwnAffair(linear, SGD).check(data)


def test_no_choice_is_none_to_check():
    check_choices("model.client_networks", None, 3)
    check_choices("model.client_networks", {}, 3)


@pytest.mark.parametrize("name", ["NetworkFactory", "ClientNetworks", "ClientOptimizers", "build", "frozen", "record"])
def test_what_a_method_is_made_with_lies_where_it_did_in_0_1_as_well(name):
    assert getattr(fedlit.methods.base, name) is getattr(fedlit.methods, name)


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
