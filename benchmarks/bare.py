"""What one would write by hand: FedAvg and FML in plain PyTorch, without fedlit. The yardstick of `make bench`.

Exact mode ends in the same bits (tests/fast/test_shortcuts.py), given the same order of batches and a mean in float64.
"""

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shard = tuple[Tensor, Tensor]
Shuffle = Callable[[int, int], torch.Generator | None]


def mlp() -> nn.Module:
    """McMahan's 2NN."""
    layers = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def cnn() -> nn.Module:
    """McMahan's CNN."""
    blocks = [
        layer for i, o in ((1, 32), (32, 64)) for layer in (nn.Conv2d(i, o, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))


def cnn2() -> nn.Module:
    """FML's CNN2."""
    blocks = [layer for i in (3, 128, 128) for layer in (nn.Conv2d(i, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(2048, 10))


def resnet18() -> nn.Module:
    """ResNet18 with a CIFAR stem."""
    import fedlit._torchvision  # noqa: F401, I001  (torchvision may not import beside this torch without it)
    from torchvision.models import resnet18

    network = resnet18(num_classes=10)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return network


class FedAvg:
    """Clients train copies in turn; the server averages them.

    Args:
        network: The global model.
        shards: Inputs and targets of each client, ready for the network.
        mean_dtype: What the mean is added up in.
    """

    def __init__(
        self,
        network: nn.Module,
        shards: Sequence[Shard],
        batch_size: int,
        epochs: int,
        lr: float = 0.05,
        shuffle: Shuffle = lambda round, client: None,
        mean_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.network, self.shards, self.batch_size, self.epochs, self.lr = network, shards, batch_size, epochs, lr
        self.shuffle, self.mean_dtype = shuffle, mean_dtype

    def round(self, number: int, clients: Sequence[int]) -> None:
        total: dict[str, Tensor] = {}
        for k in clients:
            local = self.train(number, k)
            for name, value in local.state_dict().items():
                if name in total:
                    total[name] += value
                else:
                    total[name] = value.to(self.mean_dtype, copy=True) if value.is_floating_point() else value.clone()
        mean = {name: value / len(clients) if value.is_floating_point() else value for name, value in total.items()}
        self.network.load_state_dict(mean)

    def train(self, number: int, k: int) -> nn.Module:
        (x, y), local, order = self.shards[k], copy.deepcopy(self.network), self.shuffle(number, k)
        optimizer = torch.optim.SGD(local.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            for batch in torch.randperm(len(y), generator=order).split(self.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(local(x[batch]), y[batch]).backward()
                optimizer.step()
        return local


class FML(FedAvg):
    """As FedAvg of memes, each beside a personal network of its client; half labels, half the other's opinion."""

    def __init__(self, personal: Sequence[nn.Module], network: nn.Module, *args, **kwargs) -> None:
        super().__init__(network, *args, **kwargs)
        self.personal = personal

    def train(self, number: int, k: int) -> nn.Module:
        (x, y), order = self.shards[k], self.shuffle(number, k)
        personal, meme = self.personal[k], copy.deepcopy(self.network)
        optimizers = [torch.optim.SGD(network.parameters(), lr=self.lr) for network in (personal, meme)]
        for _ in range(self.epochs):
            for batch in torch.randperm(len(y), generator=order).split(self.batch_size):
                z_personal, z_meme, target = personal(x[batch]), meme(x[batch]), y[batch]
                for optimizer, z, peer in zip(optimizers, (z_personal, z_meme), (z_meme, z_personal), strict=True):
                    log_p, log_q = F.log_softmax(z, dim=1), F.log_softmax(peer.detach(), dim=1)
                    imitation = F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
                    optimizer.zero_grad()
                    (0.5 * F.nll_loss(log_p, target) + 0.5 * imitation).backward()
                    optimizer.step()
        return meme
