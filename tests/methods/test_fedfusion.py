"""FedFusion: its invariants, each operator by hand, what travels."""

import pytest
import torch
from torch import nn, tensor
from toys import SGD, TrunkAndHead, equal, fitted, rows, seeded, toy_data

from fedlit import FedAvg
from fedlit.aggregation import Upload, num_bytes
from fedlit.methods import FedFusion
from fedlit.methods.fedfusion import Convolution, Weighted


class Small(nn.Module):
    feature_shape = (4, 3, 3)

    def __init__(self):
        super().__init__()
        self.extractor = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 3))

    def forward(self, x):
        return self.head(self.extractor(x))


def test_a_single_weight_mixes_everything():
    fusion = Weighted(1)
    fusion.lam.data.fill_(0.25)
    local, frozen = tensor([[[[1.0]], [[2.0]]]]), tensor([[[[5.0]], [[10.0]]]])
    assert torch.equal(fusion(local, frozen), tensor([[[[2.0]], [[4.0]]]]))


def test_multi_has_a_weight_per_channel():
    fusion = Weighted(2)
    fusion.lam.data.copy_(tensor([0.0, 0.5]).view(1, 2, 1, 1))
    local, frozen = tensor([[[[1.0]], [[2.0]]]]), tensor([[[[5.0]], [[10.0]]]])
    assert torch.equal(fusion(local, frozen), tensor([[[[1.0]], [[6.0]]]]))


def test_conv_is_a_product_with_the_concatenation():
    fusion = Convolution(channels=2)
    fusion.conv.weight.data.copy_(tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, -1.0]]).view(2, 4, 1, 1))
    fusion.conv.bias.data.copy_(tensor([0.5, 0.0]))
    local, frozen = tensor([[[[1.0]], [[2.0]]]]), tensor([[[[5.0]], [[10.0]]]])
    expected = tensor([[[[5 + 20 + 3 + 8 + 0.5]], [[10.0 - 2.0]]]])
    torch.testing.assert_close(fusion(local, frozen), expected)


@pytest.mark.parametrize("weights", [1, 4])
@pytest.mark.parametrize("lam", [0.0, 0.7, -3.0])
def test_where_both_extractors_agree_any_weight_is_the_identity_and_has_no_gradient(weights, lam):
    fusion = Weighted(weights)
    fusion.lam.data.fill_(lam)
    x = torch.randn(2, 4, 3, 3)
    fused = fusion(x, x.clone())
    assert torch.equal(fused, x)
    fused.square().sum().backward()
    assert torch.equal(fusion.lam.grad, torch.zeros_like(fusion.lam))


@pytest.mark.parametrize("control", [{"train_operator": False}, {"fuse_with": "own"}])
@pytest.mark.parametrize("operator", ["single", "multi"])
def test_with_lam_held_at_0_or_fused_with_itself_it_is_fedavg(operator, control):
    fusion, fedavg = fitted(seeded(FedFusion, Small, SGD, operator, **control)), fitted(seeded(FedAvg, Small, SGD))
    ours = {n: t for n, t in fusion.global_state.items() if ".reference." not in n and ".fusion." not in n}
    assert equal(ours, fedavg.global_state)


def operators_after(**control):
    """The convolution before and after a fit."""
    method = seeded(FedFusion, Small, SGD, "conv", **control)
    name = "network.fusion.conv.weight"
    first = method.state_dict()[name].clone()
    return first, fitted(method).global_state[name]


def test_a_convolution_that_does_not_train_stays_as_it_was_drawn():
    assert torch.equal(*operators_after(train_operator=False))


def test_with_lam_learned_it_is_not():
    fusion, fedavg = fitted(seeded(FedFusion, Small, SGD, "single")), fitted(seeded(FedAvg, Small, SGD))
    ours = {n: t for n, t in fusion.global_state.items() if ".reference." not in n and ".fusion." not in n}
    assert not equal(ours, fedavg.global_state)
    assert fusion.global_state["network.fusion.lam"].abs().sum() > 0


def test_the_server_smooths_lam_and_nothing_else():
    """By hand: 0.9 * 1.0 + 0.1 * mean(0.0, 4.0) = 1.1."""
    method = FedFusion(Small, SGD, "single")
    name, weight = "network.fusion.lam", "network.head.2.weight"
    state = {n: t for n, t in method.state_dict().items() if method.is_shared(n)}
    one = torch.ones(1, 1, 1, 1)
    uploads = [Upload(k, {**state, name: v * one, weight: torch.full((3, 36), v)}) for k, v in enumerate((0.0, 4.0))]
    agreed = method.aggregate(uploads, {**method.state_dict(), name: one})
    torch.testing.assert_close(agreed[name], 1.1 * one)
    assert torch.equal(agreed[weight], torch.full((3, 36), 2.0))


@pytest.mark.parametrize("operator", ["single", "multi", "conv"])
def test_the_frozen_extractor_never_travels(operator):
    federation = fitted(FedFusion(Small, SGD, operator))
    reference = {n: t for n, t in federation.global_state.items() if ".reference." in n}
    travels = num_bytes(federation.global_state) - num_bytes(reference)
    assert reference
    assert {int(row["bytes"]) for row in rows(federation, "ledger.csv")} == {travels}
    assert federation.personal_states == {}


@pytest.mark.parametrize("operator", ["single", "conv"])
def test_recorded_features_give_the_same_weights(operator):
    both = [seeded(FedFusion, Small, SGD, operator, record=record) for record in (True, False)]
    assert equal(*(fitted(method, toy_data(batch_size=6), local_epochs=3).global_state for method in both))


@pytest.mark.parametrize(("reference", "is_previous"), [("previous", True), ("self", False)])
def test_an_evaluation_sees_through_the_previous_extractor_or_through_itself(reference, is_previous):
    earlier = fitted(seeded(FedFusion, Small, SGD, "multi", eval_reference=reference), num_rounds=1).global_state
    later = fitted(seeded(FedFusion, Small, SGD, "multi", eval_reference=reference), num_rounds=2).global_state
    source = earlier if is_previous else later
    pairs = [(n, n.replace("reference", "extractor")) for n in later if ".reference." in n]
    assert all(torch.equal(later[ref], source[own]) for ref, own in pairs)


def test_a_fusing_convolution_is_averaged_and_not_smoothed():
    method = FedFusion(Small, SGD, "conv")
    name, state = "network.fusion.conv.weight", {n: t for n, t in method.state_dict().items() if method.is_shared(n)}
    uploads = [Upload(k, {**state, name: torch.full_like(state[name], v)}) for k, v in enumerate((0.0, 4.0))]
    assert torch.equal(method.aggregate(uploads, method.state_dict())[name], torch.full_like(state[name], 2.0))


def test_a_network_without_a_feature_shape_is_refused():
    with pytest.raises(ValueError, match="must have an `extractor` with a `feature_shape`"):
        FedFusion(TrunkAndHead, SGD)


def test_lam_and_its_spread_and_the_share_of_a_convolution_by_hand():
    fusion = Weighted(2)
    fusion.lam.data.copy_(tensor([0.25, 0.75]).view(1, 2, 1, 1))
    assert fusion.summary() == {"lam": 0.5, "lam_sd": 0.25}
    fusion = Convolution(channels=1)
    fusion.conv.weight.data.copy_(tensor([[-3.0, 1.0]]).view(1, 2, 1, 1))  # of the frozen, and of the local features
    assert fusion.summary() == {"frozen_share": 0.75}


@pytest.mark.parametrize(
    ("operator", "metrics"), [("single", {"lam"}), ("multi", {"lam", "lam_sd"}), ("conv", {"frozen_share"})]
)
def test_what_fusion_has_come_to_is_recorded_of_every_client_in_every_round(operator, metrics):
    federation = fitted(FedFusion(Small, SGD, operator), num_rounds=2)
    found = [row for row in rows(federation) if row["data"] == "train" and row["metric"] in metrics]
    assert {(row["round"], row["client"], row["metric"]) for row in found} == {
        (number, k, name) for number in "12" for k in "012" for name in metrics
    }
