"""The networks: their sizes as the papers have them, their two halves, their options and what they refuse."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedlit.networks import (
    CIFARCNN,
    CNN1,
    CNN2,
    MLP,
    DenseNet,
    LeNet5,
    McMahanCNN,
    MoEExpert,
    Network,
    ResNet18,
    TwoStreamAlexNet,
)

SMALL = [MLP, LeNet5, CNN1, CNN2, McMahanCNN, CIFARCNN, TwoStreamAlexNet, MoEExpert]
ALL = [*SMALL, ResNet18, DenseNet]
FEATURE_SHAPES = {
    MLP: (200,),
    LeNet5: (16, 5, 5),
    CNN1: (16, 6, 6),
    CNN2: (128, 4, 4),
    McMahanCNN: (64, 7, 7),
    CIFARCNN: (64, 8, 8),
    TwoStreamAlexNet: (128, 3, 3),
    MoEExpert: (16, 5, 5),
    ResNet18: (512, 1, 1),
    DenseNet: (1024, 1, 1),
}
FASHION = {"in_channels": 1, "image_size": 28, "channels": (6, 12)}
COUNTS = [
    ("McMahan 2NN, MNIST", MLP, {}, 199_210),
    ("FML code, CIFAR", MLP, {"in_channels": 3, "image_size": 32}, 656_810),
    ("FML code, CIFAR", LeNet5, {}, 62_006),
    ("FML code, padded MNIST", LeNet5, {"in_channels": 1}, 61_706),
    ("by hand, MNIST: 156 + 2416 + 257*120 + 121*84 + 850", LeNet5, {"in_channels": 1, "image_size": 28}, 44_426),
    ("FML paper", CNN1, {}, 71_498),
    ("FML paper", CNN2, {}, 319_242),
    ("FML paper, unpadded", CNN2, {"padding": 0}, 303_882),
    ("FedAvg and 003 papers", McMahanCNN, {}, 1_663_370),
    ("FedMMD code", McMahanCNN, {"hidden": 1024}, 3_274_634),
    ("FedFusion code", McMahanCNN, {"fusion_code": True}, 1_630_602),
    ("003 paper", CIFARCNN, {}, 1_756_426),
    ("by hand, with BatchNorm: 2 * 2 * 64 more", CIFARCNN, {"batch_norm": True}, 1_756_682),
    ("by hand, with BatchNorm: 2 * (6 + 16) more", LeNet5, {"batch_norm": True}, 62_050),
    ("FedMMD code", TwoStreamAlexNet, {}, 3_630_602),
    ("MoE code, CIFAR10", MoEExpert, {}, 62_006),
    ("MoE code, CIFAR100", MoEExpert, {"num_classes": 100}, 69_656),
    ("MoE code, gate", MoEExpert, {"num_classes": 1}, 61_241),
    ("MoE code of November, Fashion", MoEExpert, {**FASHION, "hidden": (84, 42)}, 22_180),
    ("MoE code of October, Fashion", MoEExpert, {**FASHION}, 36_142),
    ("FML code, CIFAR10", ResNet18, {}, 11_173_962),
    ("groups have the same scales and shifts", ResNet18, {"norm": "group"}, 11_173_962),
    ("torchvision 7,978,856 with a 3x3 stem and 10 classes", DenseNet, {}, 7_978_856 - 7_680 - 1_014_750),
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def images(options: dict[str, int]) -> torch.Tensor:
    size = options.get("image_size", 32)
    return torch.randn(2, options.get("in_channels", 3), size, size)


def default_images(network: type[Network]) -> torch.Tensor:
    return images({"in_channels": 1, "image_size": 28} if network in (MLP, McMahanCNN) else {})


@pytest.mark.parametrize(
    ("network", "options", "expected"), [row[1:] for row in COUNTS], ids=[f"{n.__name__}: {s}" for s, n, _, _ in COUNTS]
)
def test_parameter_counts_are_those_of_the_source(network, options, expected):
    assert sum(p.numel() for p in network(**options).parameters()) == expected


@pytest.mark.parametrize("network", ALL)
def test_a_network_is_its_head_after_its_extractor_bit_for_bit(network):
    net, x = network().eval(), default_images(network)
    features = net.extractor(x)
    assert tuple(features.shape[1:]) == net.feature_shape == FEATURE_SHAPES[network]
    logits = net(x)
    assert logits.shape == (2, 10)
    assert torch.equal(net.head(features), logits)
    assert {name.partition(".")[0] for name in net.state_dict()} == {"extractor", "head"}


@pytest.mark.parametrize(
    "options", [{"in_channels": 1, "image_size": 28}, {"in_channels": 3, "image_size": 32}], ids=str
)
@pytest.mark.parametrize("network", ALL)
def test_every_network_takes_small_and_large_grey_and_colour_images_and_any_number_of_classes(network, options):
    net = network(**options, num_classes=100).eval()
    with torch.no_grad():
        features = net.extractor(images(options))
        assert tuple(features.shape[1:]) == net.feature_shape
        assert net.head(features).shape == (2, 100)


@pytest.mark.parametrize("options", [{"image_size": 9}, {"padding": 0, "image_size": 22}, {"padding": 3}], ids=str)
def test_feature_shape_is_true_at_odd_sizes_and_paddings(options):
    net = CNN2(**options)
    assert tuple(net.extractor(images(options)).shape[1:]) == net.feature_shape


def test_mlp_takes_inputs_of_any_shape():
    net = MLP(in_features=12, hidden=(5,), num_classes=3)
    x = torch.randn(4, 12)
    assert torch.equal(net(x), net(x.view(4, 3, 2, 2)))


def test_mlp_without_hidden_layers_is_logistic_regression():
    net, x = MLP(in_features=6, hidden=(), num_classes=3), torch.randn(4, 6)
    assert net.feature_shape == (6,)
    assert torch.equal(net(x), nn.functional.linear(x, net.head.weight, net.head.bias))


@pytest.mark.parametrize(("dropout", "holds"), [(0.0, True), (0.5, False)])
def test_moe_expert_without_dropout_and_only_then_is_lenet5(dropout, holds):
    lenet, expert, x = LeNet5(), MoEExpert(dropout=dropout), images({})
    for theirs, ours in zip(lenet.parameters(), expert.parameters(), strict=True):
        ours.data.copy_(theirs.data)
    assert torch.equal(lenet(x), expert(x)) is holds


def weighted_layers(net: nn.Module) -> list[nn.Module]:
    return [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


@pytest.mark.parametrize("network", [McMahanCNN, CIFARCNN, TwoStreamAlexNet])
def test_xavier_draws_uniform_weights_and_zero_biases(network):
    for layer in weighted_layers(network(init="xavier")):
        field = layer.weight[0, 0].numel() if layer.weight.dim() == 4 else 1
        bound = (6 / ((layer.weight.shape[0] + layer.weight.shape[1]) * field)) ** 0.5
        assert layer.weight.abs().max() <= bound
        assert_close(layer.weight.std().item(), bound / 3**0.5, rtol=0.06, atol=0)
        assert not layer.bias.any()


def test_truncated_normal_is_cut_at_two_sd_with_biases_of_a_tenth():
    for layer in weighted_layers(McMahanCNN(init="truncated_normal")):
        assert layer.weight.abs().max() <= 0.2
        assert_close(layer.weight.std().item(), 0.08796, rtol=0.06, atol=0)  # 0.1 * sqrt(1 - 4 phi(2) / (2 Phi(2) - 1))
        assert torch.equal(layer.bias, torch.full_like(layer.bias, 0.1))


def image_and_company(norm: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of one image in training mode, beside two different companions."""
    net, x = ResNet18(norm=norm, image_size=8).train(), torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        return net.extractor(x[[0, 1]])[0], net.extractor(x[[0, 2]])[0]


def test_with_group_norm_an_image_does_not_see_its_batch():
    assert_close(*image_and_company("group"))
    assert not list(ResNet18(norm="group").buffers())


def test_with_batch_norm_an_image_sees_its_batch():
    first, second = image_and_company("batch")
    assert not torch.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize("network", [ResNet18, DenseNet])
def test_the_cifar_stem_keeps_the_image_size(network):
    stem = next(iter(network().extractor))
    assert stem(torch.randn(1, 3, 32, 32)).shape == (1, 64, 32, 32)


@pytest.mark.parametrize(
    ("network", "smallest"),
    [(LeNet5, 16), (CNN1, 10), (CNN2, 8), (McMahanCNN, 4), (CIFARCNN, 1), (TwoStreamAlexNet, 15), (DenseNet, 8)],
)
def test_the_smallest_image_size_works_and_the_next_smaller_is_refused(network, smallest):
    net = network(in_channels=3, image_size=smallest).eval()
    assert net(torch.randn(1, 3, smallest, smallest)).shape == (1, 10)
    with pytest.raises(ValueError, match=f"`image_size` must be at least {smallest} here, got {smallest - 1}"):
        network(image_size=smallest - 1)


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (MLP, {"hidden": (200, 0)}, "`hidden` must be at least 1 here, got 0"),
        (MLP, {"in_features": 0}, "`in_features` must be at least 1 here, got 0"),
        (CNN1, {"hidden": 0}, "`hidden` must be at least 1 here, got 0"),
        (CNN2, {"padding": -1}, "`padding` must be at least 0 here, got -1"),
        (MoEExpert, {"channels": (6, 0)}, "`channels` must be at least 1 here, got 0"),
        (MoEExpert, {"dropout": -0.1}, r"`dropout` is a probability and must lie in \[0, 1\], got -0.1"),
        (CIFARCNN, {"dropout": 1.5}, r"`dropout` is a probability and must lie in \[0, 1\], got 1.5"),
        (CIFARCNN, {"init": "zeros"}, "`init` must be one of .*'xavier'.*, got 'zeros'"),
        (ResNet18, {"norm": "layer"}, "`norm` must be one of .*'group'.*, got 'layer'"),
    ],
    ids=str,
)
def test_a_bad_option_is_named_with_what_is_allowed_and_what_came(network, options, message):
    with pytest.raises(ValueError, match=message):
        network(**options)


@pytest.mark.parametrize("cls", [LeNet5, CNN2, McMahanCNN, TwoStreamAlexNet])
def test_a_frozen_copy_says_the_same_as_the_network_in_training_to_the_bit(cls):
    network = cls().eval()
    x = torch.randn(2, *((1, 28, 28) if cls is McMahanCNN else (3, 32, 32)))
    trained = network(x).detach()
    assert torch.equal(network.requires_grad_(False)(x), trained)
