"""What docs/methods_of_your_own.md shows runs as printed, and keeps its invariants."""

from functools import partial

import printed
import pytest
import torch
from every_method import ADAM, Normalised
from torch import nn
from toys import equal, fitted, rows, same, states, toy_data

from fedlit import FedAvg, Stage
from fedlit.methods import DLAD

PAGE = "docs/methods_of_your_own.md"
SGD = partial(torch.optim.SGD, lr=0.1)
NAMES: dict = {}
for block in printed.blocks(PAGE, "python"):
    printed.run(block, PAGE, NAMES)


class Alone(FedAvg):
    shared = ()

    def configure_stages(self):
        return [Stage("federate", upload="none")]


def perceptron(width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))


def run(method, ckpt_path=None, given=None, **options):
    torch.manual_seed(7)
    return fitted(method(perceptron, SGD, **(given or {})), ckpt_path=ckpt_path, **{"num_rounds": 2, **options})


CASES = {"FedFomo": {"num_sent": 1}, "HeteroFL": {"client_networks": {1: partial(perceptron, 2)}}}


def test_fedfomo_without_others_is_training_alone_and_with_others_is_not():
    alone = run(Alone)
    for num_sent, is_alone in ((0, True), (2, False)):
        fomo = run(NAMES["FedFomo"], given={"num_sent": num_sent})
        states = [equal(fomo.network(client=k).state_dict(), alone.network(client=k).state_dict()) for k in range(3)]
        assert all(states) == is_alone


def test_fedfomo_goes_on_with_the_weights_that_were_given():
    given = run(NAMES["FedFomo"]).global_state["given"]
    assert given.diagonal().tolist() == [0, 0, 0]
    assert given.sum() > 0


def test_heterofl_with_one_network_is_fedavg_and_with_others_is_not():
    fedavg = run(FedAvg).global_state
    assert equal(run(NAMES["HeteroFL"]).global_state, fedavg)
    assert not equal(run(NAMES["HeteroFL"], given=CASES["HeteroFL"]).global_state, fedavg)


@pytest.mark.parametrize("name", CASES)
def test_resumed_each_ends_in_the_same_bits(name, tmp_path):
    made = partial(run, NAMES[name], given=CASES[name])
    whole = made()
    made(num_rounds=1, default_root_dir=str(tmp_path))
    resumed = made(ckpt_path="last", default_root_dir=str(tmp_path))
    assert same(states(resumed), states(whole))


# --- variants of the papers' methods


def trained(name, **given):
    """A fit of a variant, or of a method of fedlit."""
    torch.manual_seed(7)
    method = NAMES[name](network=Normalised, optimizer=ADAM, **given)
    data = toy_data(150, public=0.5) if isinstance(method, DLAD) else toy_data()
    return fitted(method, data, num_rounds=2)


GATE = {"gate": partial(nn.Linear, 6, 1), "epochs": 2}
SHORT = {"client_epochs": 2, "density_epochs": 1, "distil_epochs": 2, "aggregator": "average"}
VARIANTS = [
    ("SoftFML", "FML", {}),
    ("FedCosine", "FedMMD", {"lam": 5.0}),
    ("AttentiveFusion", "FedFusion", {}),
    ("CertainDLAD", "DLAD", SHORT),
]


@pytest.mark.parametrize(("variant", "base", "given"), VARIANTS)
def test_a_variant_trains_something_else_than_its_base(variant, base, given):
    assert not same(*(states(trained(name, **given)) for name in (variant, base)))


def test_at_temperature_1_soft_fml_is_fml(monkeypatch):
    monkeypatch.setattr(NAMES["SoftFML"], "T", 1.0)
    soft, plain = (states(trained(name)) for name in ("SoftFML", "FML"))
    torch.testing.assert_close(soft, plain)


def test_an_operator_of_ones_own_travels():
    assert "network.fusion.conv.weight" in trained("AttentiveFusion").global_state


def test_a_gate_may_see_what_the_experts_give():
    federation = trained("InformedMixture", **GATE)
    mixture = federation.state.module.mixture.network
    x = torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        f_l, f_g, h = mixture.experts_and_gate(x)
        assert torch.equal(h, mixture.gate(torch.cat([f_l, f_g], dim=1)))
    assert any(row["metric"] == "gate" for row in rows(federation))
