"""The networks of the papers, each cut in two: ``network(x) = head(extractor(x))``.

The *extractor* makes features ``[N, *feature_shape]`` of images ``[N, in_channels, image_size, image_size]`` and ends
with the last pooling; the *head* flattens them and ends in logits ``[N, num_classes]``, without softmax. So fusion and
partial sharing can take either half. Where a paper and its code disagree, the default is the paper's.

Two small ones stand at the end for texts and pixels, each with an extractor and a head, too.

Invariants: parameter counts are the papers'; ``MoEExpert(dropout=0)`` is ``LeNet5``.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from inspect import cleandoc
from itertools import count
from typing import Literal, NamedTuple, get_args

from torch import Tensor, nn

from fedlit.fast.max_pool import MaxPool

Init = Literal["default", "xavier", "truncated_normal"]
Norm = Literal["batch", "group"]


class Network(nn.Module):
    """An extractor and a head in a row; ``feature_shape`` is what one image becomes between them."""

    def __init__(self, extractor: nn.Module, head: nn.Module, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.feature_shape = feature_shape

    def __init_subclass__(cls) -> None:
        # The command line's help reads docstrings. Three options are the same everywhere, so they are described once.
        options = "in_channels: Of an image.", "image_size: Side of a square image.", "num_classes: Number of logits."
        title, _, others = cleandoc(cls.__doc__ or "").partition("\n\nArgs:\n")
        cls.__doc__ = "\n    ".join([f"{title}\n\nArgs:", *options]) + f"\n{others}"

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.extractor(x))


class Block(NamedTuple):
    """A convolution, BatchNorm if asked for, ReLU and a max-pool of stride 2; ``pool=None`` is without the pool."""

    channels: int
    kernel: int
    padding: int = 0
    pool: int | None = 2
    pool_padding: int = 0
    batch_norm: bool = False


def require_at_least(minimum: int, **options: int) -> None:
    """Refuse a smaller option under the name its user typed."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"`{name}` must be a whole number, got {value!r}.")
        if value < minimum:
            raise ValueError(f"`{name}` must be at least {minimum} here, got {value}.")


def output_size(size: int, blocks: Sequence[Block]) -> int:
    """Side of the square that the blocks make of one of side ``size``; below 1 when nothing is left."""
    for block in blocks:
        size += 2 * block.padding - block.kernel + 1
        size = size if block.pool is None else (size + 2 * block.pool_padding - block.pool) // 2 + 1
    return size


def conv_extractor(in_channels: int, image_size: int, *blocks: Block) -> tuple[nn.Sequential, tuple[int, int, int]]:
    """The blocks in a row, and the shape ``(channels, size, size)`` of what comes out."""
    require_at_least(1, in_channels=in_channels, channels=min(block.channels for block in blocks))
    require_at_least(0, padding=min(block.padding for block in blocks))
    require_at_least(next(size for size in count(1) if output_size(size, blocks) >= 1), image_size=image_size)
    layers: list[nn.Module] = []
    for block in blocks:
        pool = [] if block.pool is None else [MaxPool(block.pool, stride=2, padding=block.pool_padding)]
        norm = [nn.BatchNorm2d(block.channels)] if block.batch_norm else []
        layers += [nn.Conv2d(in_channels, block.channels, block.kernel, padding=block.padding), *norm, *pool]
        layers.append(nn.ReLU())  # after the pool: the same outputs and gradients, a quarter of the work
        in_channels = block.channels
    size = output_size(image_size, blocks)
    return nn.Sequential(*layers), (in_channels, size, size)


def fc_head(features: int, classes: int, hidden: Sequence[int] = (), dropout: Sequence[float] = ()) -> nn.Sequential:
    """Flatten, hidden layers with ReLU, logits; the i-th dropout follows the i-th hidden layer."""
    require_at_least(1, num_classes=classes, hidden=min(hidden, default=1))
    if not all(0.0 <= p <= 1.0 for p in dropout):
        raise ValueError(f"`dropout` is a probability and must lie in [0, 1], got {dropout[0]}.")
    layers: list[nn.Module] = [nn.Flatten()]
    for i, width in enumerate(hidden):
        layers += [nn.Linear(features, width), nn.ReLU()]
        # Also where it is 0, so that the names in a state do not depend on the rate; Dropout(0) draws no numbers.
        layers += [nn.Dropout(p) for p in dropout[i : i + 1]]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, classes))


def initialise(network: nn.Module, init: Init) -> None:
    """Draw convolutions and linear layers anew; ``"default"`` keeps what PyTorch drew.

    ``"xavier"`` is uniform with zero biases; ``"truncated_normal"`` has sd 0.1, cut at two sd, and biases of 0.1.
    """
    if init not in get_args(Init):
        raise ValueError(f"`init` must be one of {get_args(Init)}, got {init!r}.")
    for layer in network.modules():
        if init == "default" or not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        if init == "xavier":
            nn.init.xavier_uniform_(layer.weight)
        else:
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
        if layer.bias is not None:
            nn.init.constant_(layer.bias, 0.0 if init == "xavier" else 0.1)


class MLP(Network):
    """Hidden layers with ReLU on the flattened input; by default McMahan's 2NN for MNIST (199,210 parameters).

    Args:
        hidden: Widths of the hidden layers; an empty list is logistic regression.
        in_features: Numbers in one input of any shape, in place of channels times size squared.
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: int = 28,
        num_classes: int = 10,
        hidden: tuple[int, ...] = (200, 200),
        in_features: int | None = None,
    ) -> None:
        features = in_channels * image_size**2 if in_features is None else in_features
        require_at_least(1, in_channels=in_channels, image_size=image_size, in_features=features)
        layers = fc_head(features, num_classes, hidden)
        super().__init__(layers[:-1], layers[-1], (hidden[-1] if hidden else features,))


class LeNet5(Network):
    """LeNet5 of FML, for CIFAR10: 5x5 convolutions (6, 16), layers of 120 and 84 (62,006 parameters).

    Args:
        batch_norm: After each convolution, for FedBN; not in the paper.
    """

    def __init__(
        self, in_channels: int = 3, image_size: int = 32, num_classes: int = 10, batch_norm: bool = False
    ) -> None:
        blocks = [Block(channels, 5, batch_norm=batch_norm) for channels in (6, 16)]
        extractor, shape = conv_extractor(in_channels, image_size, *blocks)
        super().__init__(extractor, fc_head(math.prod(shape), num_classes, (120, 84)), shape)


class MoEExpert(Network):
    """Expert of the mixture, for CIFAR10: LeNet5 with dropout (62,006 parameters). Its gate has one logit (61,241).

    Args:
        channels: Of the 5x5 convolutions; for Fashion-MNIST the code has [6, 12].
        hidden: Widths of the hidden layers; for Fashion-MNIST the code has [84, 42] (22,180), before that [120, 84].
        dropout: After the first hidden layer, as in the code; the paper mentions none.
    """

    def __init__(
        self,
        in_channels: int = 3,
        image_size: int = 32,
        num_classes: int = 10,
        channels: tuple[int, int] = (6, 16),
        hidden: tuple[int, int] = (120, 84),
        dropout: float = 0.5,
    ) -> None:
        extractor, shape = conv_extractor(in_channels, image_size, *(Block(c, 5) for c in channels))
        super().__init__(extractor, fc_head(math.prod(shape), num_classes, hidden, [dropout]), shape)


class CNN1(Network):
    """CNN1 of FML, for CIFAR10: 3x3 convolutions (6, 16), two linear layers (71,498 parameters).

    Args:
        hidden: Width between the linear layers; not in the paper.
        padding: Of the convolutions; not in the paper.
    """

    def __init__(
        self, in_channels: int = 3, image_size: int = 32, num_classes: int = 10, hidden: int = 120, padding: int = 0
    ) -> None:
        extractor, shape = conv_extractor(in_channels, image_size, Block(6, 3, padding), Block(16, 3, padding))
        super().__init__(extractor, fc_head(math.prod(shape), num_classes, [hidden]), shape)


class CNN2(Network):
    """CNN2 of FML, for CIFAR10: three 3x3 convolutions of 128, one linear layer (319,242 parameters).

    Args:
        padding: Of the convolutions; not in the paper, and 0 leaves 303,882 parameters.
    """

    def __init__(self, in_channels: int = 3, image_size: int = 32, num_classes: int = 10, padding: int = 1) -> None:
        extractor, shape = conv_extractor(in_channels, image_size, *[Block(128, 3, padding)] * 3)
        super().__init__(extractor, fc_head(math.prod(shape), num_classes), shape)


class McMahanCNN(Network):
    """FedAvg's CNN for MNIST, also in FedMMD and FedFusion: 5x5 convolutions (32, 64), 512 (1,663,370 parameters).

    Args:
        hidden: Width of the hidden layer; FedMMD's code has 1024.
        dropout: After the hidden layer; FedFusion's code has 0.2.
        init: FedMMD's code has `truncated_normal`, FedFusion's `xavier`.
        fusion_code: The second convolution 3x3 and the pools 3x3, as in FedFusion's code (1,630,602).
    """

    def __init__(
        self,
        in_channels: int = 1,
        image_size: int = 28,
        num_classes: int = 10,
        hidden: int = 512,
        dropout: float = 0.0,
        init: Init = "default",
        fusion_code: bool = False,
    ) -> None:
        paper, code = [Block(32, 5, 2), Block(64, 5, 2)], [Block(32, 5, 2, 3, 1), Block(64, 3, 1, 3, 1)]
        extractor, shape = conv_extractor(in_channels, image_size, *(code if fusion_code else paper))
        super().__init__(extractor, fc_head(math.prod(shape), num_classes, [hidden], [dropout]), shape)
        initialise(self, init)


class CIFARCNN(Network):
    """FedMMD's and FedFusion's CNN for CIFAR10: 5x5 convolutions (64, 64), 384 and 192 (1,756,426 parameters).

    Args:
        dropout: After each hidden layer; FedFusion's code has 0.2.
        init: FedFusion's code has `xavier`.
        batch_norm: After each convolution, for FedBN; not in the papers.
    """

    def __init__(
        self,
        in_channels: int = 3,
        image_size: int = 32,
        num_classes: int = 10,
        dropout: float = 0.0,
        init: Init = "default",
        batch_norm: bool = False,
    ) -> None:
        block = Block(64, 5, 2, pool=3, pool_padding=1, batch_norm=batch_norm)
        extractor, shape = conv_extractor(in_channels, image_size, block, block)
        super().__init__(extractor, fc_head(math.prod(shape), num_classes, (384, 192), [dropout] * 2), shape)
        initialise(self, init)


class TwoStreamAlexNet(Network):
    """FedMMD's code for CIFAR10, not its paper: five convolutions, 1024 and 1024 (3,630,602 parameters).

    Args:
        dropout: After each hidden layer; the code can switch on 0.1.
        init: The code's Glorot is `xavier`.
    """

    def __init__(
        self,
        in_channels: int = 3,
        image_size: int = 32,
        num_classes: int = 10,
        dropout: float = 0.0,
        init: Init = "xavier",
    ) -> None:
        first, middle = [Block(64, 5, 2, pool=3), Block(128, 5, 2, pool=3)], [Block(256, 3, 1, pool=None)] * 2
        extractor, shape = conv_extractor(in_channels, image_size, *first, *middle, Block(128, 3, 1, pool=3))
        super().__init__(extractor, fc_head(math.prod(shape), num_classes, (1024, 1024), [dropout] * 2), shape)
        initialise(self, init)


def cifar_stem(in_channels: int) -> nn.Conv2d:
    """A 3x3 convolution of stride 1 for small images, drawn as torchvision draws the 7x7 one it replaces."""
    require_at_least(1, in_channels=in_channels)
    stem = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    return stem


class ResNet18(Network):
    """ResNet18 of FML v1 and DLAD with a CIFAR stem: 3x3 of stride 1, no max-pool (11,173,962 parameters).

    Args:
        norm: `group` (32 groups) keeps no running statistics, and an image does not see the rest of its batch.
    """

    def __init__(self, in_channels: int = 3, image_size: int = 32, num_classes: int = 10, norm: Norm = "batch") -> None:
        from torchvision.models import resnet18  # type: ignore[import-untyped]  # slow to import

        require_at_least(1, image_size=image_size)
        if norm not in get_args(Norm):
            raise ValueError(f"`norm` must be one of {get_args(Norm)}, got {norm!r}.")
        resnet = resnet18(norm_layer=partial(nn.GroupNorm, 32) if norm == "group" else nn.BatchNorm2d)
        resnet.conv1 = cifar_stem(in_channels)
        parts = OrderedDict((name, part) for name, part in resnet.named_children() if name not in ("maxpool", "fc"))
        super().__init__(nn.Sequential(parts), fc_head(512, num_classes), (512, 1, 1))


class DenseNet(Network):
    """DenseNet121 for DLAD with a CIFAR stem: 3x3 of stride 1, no max-pool (6,956,426 parameters)."""

    def __init__(self, in_channels: int = 3, image_size: int = 32, num_classes: int = 10) -> None:
        from torchvision.models import densenet121  # type: ignore[import-untyped]  # slow to import

        require_at_least(8, image_size=image_size)
        extractor = densenet121().features
        extractor.conv0 = cifar_stem(in_channels)
        del extractor.pool0
        extractor.append(nn.ReLU()).append(nn.AdaptiveAvgPool2d(1))
        super().__init__(extractor, fc_head(1024, num_classes), (1024, 1, 1))


class TextGRU(nn.Module):
    """A recurrent network for the next token of every place: tokens ``[N, T]`` in, logits ``[N, T, V]`` out.

    Args:
        vocabulary: V, how many tokens there are.
        embedding: Numbers that a token becomes.
        hidden: Width of the recurrent layer.
    """

    def __init__(self, vocabulary: int, embedding: int = 16, hidden: int = 64) -> None:
        super().__init__()
        require_at_least(1, vocabulary=vocabulary, embedding=embedding, hidden=hidden)
        self.extractor = nn.Sequential(nn.Embedding(vocabulary, embedding), Recurrent(embedding, hidden))
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.extractor(tokens))


class Recurrent(nn.GRU):
    """A GRU over ``[N, T, D]`` that gives its outputs alone."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class PixelCNN(nn.Module):
    """Convolutions that keep the size of an image: ``[N, in_channels, H, W]`` in, a logit per class of each pixel out.

    Args:
        in_channels: Of an image.
        num_classes: Of a pixel.
        channels: Of the layers between.
        layers: 3x3 convolutions before the last one, which is 1x1.
    """

    def __init__(self, in_channels: int = 1, num_classes: int = 2, channels: int = 16, layers: int = 3) -> None:
        super().__init__()
        require_at_least(1, in_channels=in_channels, channels=channels, layers=layers)
        require_at_least(2, num_classes=num_classes)
        parts: list[nn.Module] = []
        for width in [in_channels] + [channels] * (layers - 1):
            parts += [nn.Conv2d(width, channels, 3, padding=1), nn.ReLU()]
        self.extractor = nn.Sequential(*parts)
        self.head = nn.Conv2d(channels, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.extractor(x))
