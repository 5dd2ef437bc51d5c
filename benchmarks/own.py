"""What users write for themselves: networks, data sets and a partition of which fedlit knows nothing."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedlit.partition import Partition


class MLP(nn.Sequential):
    """McMahan's 2NN."""

    def __init__(self) -> None:
        hidden = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()]
        super().__init__(nn.Flatten(), *hidden, nn.Linear(200, 10))


class Tanh(nn.Sequential):
    """One hidden layer with tanh."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10))


class CNN(nn.Module):
    """McMahan's CNN.

    Args:
        in_channels: Of an image.
    """

    def __init__(self, in_channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(3136, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


class Transformer(nn.Module):
    """A small vision transformer: 16 patches of 7x7 pixels, two layers of width 64.

    Args:
        dropout: In every layer.
    """

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 64, 7, stride=7)
        self.position = nn.Parameter(0.02 * torch.randn(16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.encoder(tokens).mean(dim=1))


def resnet18() -> nn.Module:
    """ResNet18 with a CIFAR stem."""
    import fedlit._imports  # noqa: F401, I001  (torchvision may not import beside this torch without it)
    from torchvision.models import resnet18

    network = resnet18(num_classes=10)
    network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


class Noise(Dataset):
    """Images of noise around a mean per class.

    Args:
        size: Samples; their classes take turns.
        shape: Of an image.
        augment: A random crop, after two pixels of padding, and a random flip, anew at each reading.
    """

    def __init__(self, size: int, shape: tuple[int, int, int] = (1, 28, 28), augment: bool = False) -> None:
        draw = torch.Generator().manual_seed(0)
        means = torch.randn(10, *shape, generator=draw)
        self.y = torch.arange(size) % 10
        self.x = means[self.y] + torch.randn(size, *shape, generator=draw)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self.x[index]
        if self.augment:
            top, left = torch.randint(0, 5, (2,)).tolist()
            height, width = x.shape[1:]
            x = F.pad(x, (2, 2, 2, 2))[:, top : top + height, left : left + width]
            if torch.rand(()) < 0.5:
                x = x.flip(2)
        return x, int(self.y[index])


class Deal(Partition):
    """All samples in equal parts, by chance."""

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        order = np.random.default_rng(seed).permutation(len(labels))
        return np.array_split(order, num_clients)
