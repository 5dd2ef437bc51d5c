"""FedBN: BatchNorm stays."""

from functools import partial

import pytest
import torch
from every_method import Normalised
from torch import nn
from toys import SGD, SmallCNN, TrunkAndHead, equal, fitted, rows, seeded, uneven

from fedlit import FedAvg
from fedlit.heads import batch_norm_names
from fedlit.methods import SCAFFOLD, FedBN, FedDyn, FedNova


@pytest.mark.parametrize(("network", "holds"), [(TrunkAndHead, True), (SmallCNN, False)])
def test_without_batchnorm_and_only_then_it_is_fedavg(network, holds):
    fedbn = fitted(seeded(FedBN, network, SGD), uneven())
    fedavg = fitted(seeded(FedAvg, network, SGD), uneven())
    assert equal(fedbn.global_state, fedavg.global_state) is holds


@pytest.mark.parametrize(("batch_norm", "holds"), [("local", True), ("average", False)])
def test_it_is_fedavg_whose_batchnorm_stays_local_and_not_one_that_averages_it(batch_norm, holds):
    fedbn = fitted(seeded(FedBN, SmallCNN, SGD), uneven())
    fedavg = fitted(seeded(FedAvg, SmallCNN, SGD), uneven(), batch_norm=batch_norm)
    shared = {name: fedavg.global_state[name] for name in fedbn.global_state}
    assert equal(fedbn.global_state, shared) is holds
    assert (fedbn.personal_states.keys() == fedavg.personal_states.keys()) is holds
    if holds:
        assert all(equal(fedbn.personal_states[k], fedavg.personal_states[k]) for k in range(3))


def test_weights_and_statistics_of_batchnorm_stay_and_the_rest_travels():
    federation = fitted(FedBN(SmallCNN, SGD), num_rounds=2)
    by_hand = 4 * (4 * 9 + 4 + 36 * 3 + 3)  # bytes of the convolution and of the linear layer
    assert {int(row["bytes"]) for row in rows(federation, "ledger.csv")} == {by_hand}
    of_batch_norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert set(federation.personal_states[1]) == {f"network.1.{name}" for name in of_batch_norm}
    assert not equal(federation.personal_states[0], federation.personal_states[1])
    assert {
        (row["model"], row["data"]) for row in rows(federation) if row["client"] == "0" and row["metric"] == "acc"
    } == {
        ("personal", "own"),
        ("trained", "own"),
    }


def test_batchnorm_is_known_by_its_kind_wherever_it_is():
    network = nn.Sequential(nn.ModuleDict({"a": nn.BatchNorm1d(2, affine=False), "bn": nn.LayerNorm(2)}))
    assert batch_norm_names(network) == {"0.a.running_mean", "0.a.running_var", "0.a.num_batches_tracked"}
    assert "running_mean" in batch_norm_names(nn.BatchNorm3d(2))


@pytest.mark.parametrize(
    "method", [FedDyn, FedNova, partial(SCAFFOLD, lr_g=0.5)], ids=["FedDyn", "FedNova", "SCAFFOLD"]
)
def test_methods_that_correct_the_mean_take_batch_norm_that_stays_with_clients(method):
    plain = partial(torch.optim.SGD, lr=0.05)
    federation = fitted(method(Normalised, plain), batch_norm="local", num_rounds=2)
    state = federation.global_state
    assert not any(name.startswith("network.extractor.1.") for name in state)
    assert not torch.equal(state["network.head.1.weight"], federation.state.initial["network.head.1.weight"])
    assert all("network.extractor.1.weight" in personal for personal in federation.personal_states.values())
