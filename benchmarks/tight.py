"""The same by hand once more, as fast as PyTorch's own means allow: the tighter yardstick of `make bench`.

One working model, into which states are copied; updates and sums in one call for all tensors; an epoch as views of one
permuted tensor; no optimiser. The new model is tried on test images after every round.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bare import Shard, Shuffle

EVALUATED_AT_ONCE = 200


class FedAvg:
    """Clients train the working model in turn, each from the server's state; the server averages.

    Args:
        network: The working model, which holds the global one between rounds.
        shards: Inputs and targets of each client, ready for the network.
        test: The same of the test images.
        mean_dtype: What the mean is added up in.
    """

    def __init__(
        self,
        network: nn.Module,
        shards: Sequence[Shard],
        test: Shard,
        batch_size: int,
        epochs: int,
        lr: float = 0.05,
        shuffle: Shuffle = lambda round, client: None,
        mean_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.network = network
        self.shards = shards
        self.test = test
        self.batch_size = batch_size
        self.epochs = epochs
        self.lr = lr
        self.shuffle = shuffle
        self.parameters = list(network.parameters())
        # BatchNorm's counters of steps run on: nothing is computed of them.
        self.live = [*self.parameters, *(buffer for buffer in network.buffers() if buffer.is_floating_point())]
        self.server = [tensor.detach().clone() for tensor in self.live]
        self.sums = [torch.zeros_like(tensor, dtype=mean_dtype) for tensor in self.server]
        self.accuracy = 0.0

    @torch.no_grad()
    def round(self, number: int, clients: Sequence[int]) -> None:
        torch._foreach_zero_(self.sums)
        for k in clients:
            torch._foreach_copy_(self.live, self.server)
            self.train(number, k)
            torch._foreach_add_(self.sums, self.live)
        torch._foreach_div_(self.sums, len(clients))
        torch._foreach_copy_(self.server, self.sums)
        torch._foreach_copy_(self.live, self.server)
        self.accuracy = self.evaluate()

    def train(self, number: int, k: int) -> None:
        x, y = self.shards[k]
        generator = self.shuffle(number, k)
        self.network.train()
        for _ in range(self.epochs):
            order = torch.randperm(len(y), generator=generator)
            x_batches = x.index_select(0, order).split(self.batch_size)
            y_batches = y.index_select(0, order).split(self.batch_size)
            for batch in zip(x_batches, y_batches, strict=True):
                self.step(k, *batch)

    def step(self, k: int, x: Tensor, y: Tensor) -> None:
        with torch.enable_grad():
            loss = F.cross_entropy(self.network(x), y)
            gradients = torch.autograd.grad(loss, self.parameters)
        torch._foreach_add_(self.parameters, gradients, alpha=-self.lr)

    def evaluate(self) -> float:
        """Accuracy on the test images."""
        self.network.eval()
        x, y = self.test
        z = torch.cat([self.network(part) for part in x.split(EVALUATED_AT_ONCE)])
        return float((z.argmax(dim=1) == y).float().mean())


class FML(FedAvg):
    """As FedAvg of memes, each beside a personal network of its client; half labels, half the other's opinion."""

    def __init__(self, personal: Sequence[nn.Module], network: nn.Module, *args, **kwargs) -> None:
        super().__init__(network, *args, **kwargs)
        self.personal = personal

    def step(self, k: int, x: Tensor, y: Tensor) -> None:
        trained = [*self.personal[k].parameters(), *self.parameters]
        with torch.enable_grad():
            log_p = F.log_softmax(self.personal[k](x), dim=1)
            log_q = F.log_softmax(self.network(x), dim=1)
            # Peers are constants, so the gradient of the sum is each network's own.
            loss = mutual_loss(log_p, log_q.detach(), y) + mutual_loss(log_q, log_p.detach(), y)
            gradients = torch.autograd.grad(loss, trained)
        torch._foreach_add_(trained, gradients, alpha=-self.lr)


def mutual_loss(log_p: Tensor, log_q: Tensor, y: Tensor) -> Tensor:
    imitation = F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
    return 0.5 * F.nll_loss(log_p, y) + 0.5 * imitation
