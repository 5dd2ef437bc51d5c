"""The loops that fedlit is measured against: each method in plain PyTorch, as fast as PyTorch's own means allow.

One working model, into which states are copied; `torch.autograd.grad`; updates and sums in one call for all tensors; an
epoch as views of one permuted tensor; no optimiser objects; a mean in float32. Exact mode is measured against a loop
that rounds as `torch.optim` does, fast mode against one with fused updates and channels last. Each loop takes the
gradient steps of the method of the same name in `fedlit.methods`, evaluates the same models on the same samples
(tests/test_benchmarks.py compares weights and scores), and writes a checkpoint of the same states.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedlit.losses import mmd

Samples = tuple[Tensor, Tensor]
Shuffle = Callable[[int, int], torch.Generator | None]
EVAL_BATCH_SIZE = 256  # as `data.eval_batch_size`


@dataclass(frozen=True)
class Data:
    """Inputs and targets, ready for a network.

    Attributes:
        train: Of each client.
        val: Of each client, what its models are evaluated on.
        test: What the global model is evaluated on.
    """

    train: Sequence[Samples]
    val: Sequence[Samples]
    test: Samples

    def num_samples(self, k: int) -> int:
        return len(self.train[k][1])

    def batches(self, k: int, order: Tensor, batch_size: int) -> Iterable[Samples]:
        """An epoch of client k."""
        x, y = self.train[k]
        return zip(x.index_select(0, order).split(batch_size), y.index_select(0, order).split(batch_size), strict=True)


@dataclass(frozen=True)
class ReadData(Data):
    """The same where a training sample is read from a data set whenever it is wanted.

    Attributes:
        dataset: Gives pairs of an input and a class.
        index: Of each client, its samples in the data set.
    """

    dataset: Dataset
    index: Sequence[Tensor]

    def num_samples(self, k: int) -> int:
        return len(self.index[k])

    def batches(self, k: int, order: Tensor, batch_size: int) -> Iterable[Samples]:
        for part in self.index[k][order].split(batch_size):
            x, y = zip(*[self.dataset[i] for i in part.tolist()], strict=True)
            yield torch.stack(x), torch.tensor(y)


class SGD:
    """Plain SGD.

    Args:
        parameters: What it updates.
        lr: Learning rate.
    """

    def __init__(self, parameters: Sequence[Tensor], lr: float) -> None:
        self.parameters = parameters
        self.lr = lr

    def reset(self) -> None:
        """A client starts without the state of another."""

    def step(self, gradients: Sequence[Tensor]) -> None:
        torch._foreach_add_(self.parameters, gradients, alpha=-self.lr)


class Momentum(SGD):
    """SGD with momentum, to the bits of `torch.optim.SGD`."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, momentum: float = 0.9) -> None:
        super().__init__(parameters, lr)
        self.momentum = momentum
        self.buffers = [torch.zeros_like(p) for p in parameters]

    def reset(self) -> None:
        torch._foreach_zero_(self.buffers)

    def step(self, gradients: Sequence[Tensor]) -> None:
        torch._foreach_mul_(self.buffers, self.momentum)
        torch._foreach_add_(self.buffers, gradients)
        torch._foreach_add_(self.parameters, self.buffers, alpha=-self.lr)


class FusedMomentum(Momentum):
    """The same in one pass, which rounds otherwise."""

    def step(self, gradients: Sequence[Tensor]) -> None:
        options = {"weight_decay": 0.0, "dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}
        torch._fused_sgd_(self.parameters, gradients, self.buffers, lr=self.lr, momentum=self.momentum, **options)


class Adam(SGD):
    """Adam, to the bits of `torch.optim.Adam`."""

    betas = (0.9, 0.999)
    eps = 1e-8

    def __init__(self, parameters: Sequence[Tensor], lr: float) -> None:
        super().__init__(parameters, lr)
        self.means = [torch.zeros_like(p) for p in parameters]
        self.squares = [torch.zeros_like(p) for p in parameters]
        self.steps = 0

    def reset(self) -> None:
        torch._foreach_zero_(self.means)
        torch._foreach_zero_(self.squares)
        self.steps = 0

    def step(self, gradients: Sequence[Tensor]) -> None:
        beta1, beta2 = self.betas
        self.steps += 1
        torch._foreach_lerp_(self.means, gradients, 1 - beta1)
        torch._foreach_mul_(self.squares, beta2)
        torch._foreach_addcmul_(self.squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(roots, (1 - beta2**self.steps) ** 0.5)
        torch._foreach_add_(roots, self.eps)
        torch._foreach_addcdiv_(self.parameters, self.means, roots, -self.lr / (1 - beta1**self.steps))


class FusedAdam(Adam):
    """The same in one pass, which rounds otherwise."""

    def step(self, gradients: Sequence[Tensor]) -> None:
        self.steps += 1
        beta1, beta2 = self.betas
        steps = [torch.tensor(float(self.steps))] * len(self.parameters)
        options = {"weight_decay": 0.0, "amsgrad": False, "maximize": False, "eps": self.eps}
        options |= {"lr": self.lr, "beta1": beta1, "beta2": beta2}
        torch._fused_adam_(self.parameters, gradients, self.means, self.squares, [], steps, **options)


class FedAvg:
    """Clients train the working model in turn, each from the server's state; the server averages.

    Args:
        network: Builds the network.
        data: Of all clients.
        optimizer: Builds the optimiser of local training from parameters.
        shuffle: The generator that a client's samples are shuffled by in a round; torch's own by default.
        mean_dtype: What the mean is added up in.
    """

    has_global_model = True
    has_personal_models = False

    def __init__(
        self,
        network: Callable[[], nn.Module],
        data: Data,
        optimizer: Callable[[Sequence[Tensor]], SGD],
        batch_size: int,
        epochs: int,
        shuffle: Shuffle = lambda round, client: None,
        mean_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.network = network()
        self.data = data
        self.batch_size = batch_size
        self.epochs = epochs
        self.shuffle = shuffle
        self.parameters = list(self.network.parameters())
        self.optimizer = optimizer(self.parameters)
        # What is shared. BatchNorm's counters of steps are left out: nothing is computed from them.
        tensors = [*self.network.named_parameters(), *self.network.named_buffers()]
        self.live = [tensor for name, tensor in tensors if self.is_shared(name, tensor)]
        self.server = [tensor.detach().clone() for tensor in self.live]
        self.sums = [torch.zeros_like(tensor, dtype=mean_dtype) for tensor in self.server]
        self.scores: dict[str, Tensor] = {}  # of each evaluation, loss and accuracy, [2] or [2, K]
        self.val = [torch.cat(parts) for parts in zip(*data.val, strict=True)]  # all clients' in a row,
        self.sizes = torch.tensor([len(y) for _, y in data.val])  # so many of each
        self.owners = torch.repeat_interleave(torch.arange(len(self.sizes)), self.sizes)

    def is_shared(self, name: str, tensor: Tensor) -> bool:
        return tensor.is_floating_point()

    @torch.no_grad()
    def round(self, number: int, clients: Sequence[int], evaluate: bool = False) -> None:
        """Train clients and average; in a round that is evaluated, all models are."""
        torch._foreach_zero_(self.sums)
        self.network.train()
        trained = []
        for k in clients:
            torch._foreach_copy_(self.live, self.server)
            self.optimizer.reset()
            self.begin(k)
            self.train(number, k)
            self.end(k)
            if evaluate:
                trained.append(self.score(self.network, self.data.val[k]))
            torch._foreach_add_(self.sums, self.live)
        torch._foreach_div_(self.sums, len(clients))
        torch._foreach_copy_(self.server, self.sums)
        torch._foreach_copy_(self.live, self.server)
        if evaluate:
            self.scores = {"trained": torch.stack(trained, dim=1)}
            self.evaluate()

    def begin(self, k: int) -> None:
        """Client k is about to train; the server's state is loaded."""

    def end(self, k: int) -> None:
        """Client k has trained."""

    def train(self, number: int, k: int) -> None:
        generator = self.shuffle(number, k)
        for _ in range(self.epochs):
            self.epoch(k, generator)

    def epoch(self, k: int, generator: torch.Generator | None) -> None:
        order = torch.randperm(self.data.num_samples(k), generator=generator)
        for x, y in self.data.batches(k, order, self.batch_size):
            self.step(k, x, y)

    def step(self, k: int, x: Tensor, y: Tensor) -> None:
        with torch.enable_grad():
            loss = F.cross_entropy(self.network(x), y)
        self.optimizer.step(torch.autograd.grad(loss, self.parameters))

    def evaluate(self) -> None:
        """Global model on the test samples and on every client's own, every client's own model on its own."""
        if self.has_global_model:
            self.scores["test"] = self.score(self.network, self.data.test)
            x, y = self.val
            values = torch.stack(measured(self.network, x, y))
            sums = torch.zeros(2, len(self.sizes)).index_add_(1, self.owners, values)
            self.scores["own"] = sums / self.sizes
        if self.has_personal_models:
            personal = [self.score(self.personal_model(k), samples) for k, samples in enumerate(self.data.val)]
            self.scores["personal"] = torch.stack(personal, dim=1)

    def personal_model(self, k: int) -> nn.Module:
        """The network that client k uses, where it is not the global one."""
        raise NotImplementedError

    def score(self, network: nn.Module, samples: Samples) -> Tensor:
        """Loss and accuracy."""
        loss, is_right = measured(network, *samples)
        return torch.stack([loss.mean(), is_right.mean()])

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"server": self.server}

    def save(self, path: Path) -> None:
        """Write a checkpoint; at every moment, a whole one stands there."""
        temporary = path.with_suffix(".tmp")
        torch.save(self.state(), temporary)
        os.replace(temporary, path)


def measured(network: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of each sample the loss, and whether it is classified correctly, ``[N]``; in evaluation mode."""
    network.eval()
    z = torch.cat([network(part) for part in x.split(EVAL_BATCH_SIZE)])
    network.train()
    return F.cross_entropy(z, y, reduction="none"), (z.argmax(dim=1) == y).float()


class FedMMD(FedAvg):
    """As FedAvg; the loss also has the distance of outputs to the received model's, computed once a client."""

    def __init__(self, *args: Any, lam: float = 0.1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lam = lam

    def begin(self, k: int) -> None:
        self.network.eval()
        self.reference = self.network(self.data.train[k][0])
        self.network.train()

    def epoch(self, k: int, generator: torch.Generator | None) -> None:
        order = torch.randperm(self.data.num_samples(k), generator=generator)
        parts = self.reference.index_select(0, order).split(self.batch_size)
        for (x, y), reference in zip(self.data.batches(k, order, self.batch_size), parts, strict=True):
            with torch.enable_grad():
                z = self.network(x)
                loss = F.cross_entropy(z, y) + self.lam * mmd(reference, z).clamp_min(1e-4)
            self.optimizer.step(torch.autograd.grad(loss, self.parameters))


class SCAFFOLD(FedAvg):
    """As FedAvg, with control variates (option II); plain SGD."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.c = [torch.zeros_like(p) for p in self.parameters]
        self.changes = [torch.zeros_like(p) for p in self.parameters]
        self.c_i: dict[int, list[Tensor]] = {}
        self.x = self.server[: len(self.parameters)]

    def begin(self, k: int) -> None:
        if k not in self.c_i:
            self.c_i[k] = [torch.zeros_like(p) for p in self.parameters]
        self.drift = torch._foreach_sub(self.c, self.c_i[k])
        self.steps = 0

    def step(self, k: int, x: Tensor, y: Tensor) -> None:
        super().step(k, x, y)
        self.optimizer.step(self.drift)
        self.steps += 1

    def end(self, k: int) -> None:
        # c_i+ - c_i = (x - y) / (K lr) - c
        change = torch._foreach_sub(self.x, self.parameters)
        torch._foreach_div_(change, self.steps * self.optimizer.lr)
        torch._foreach_sub_(change, self.c)
        torch._foreach_add_(self.c_i[k], change)
        torch._foreach_add_(self.changes, change)

    @torch.no_grad()
    def round(self, number: int, clients: Sequence[int], evaluate: bool = False) -> None:
        torch._foreach_zero_(self.changes)
        super().round(number, clients, evaluate)
        torch._foreach_add_(self.c, self.changes, alpha=1 / len(self.data.val))

    def state(self) -> dict[str, Any]:
        return {"server": self.server, "c": self.c, "c_i": self.c_i}


class FedRep(FedAvg):
    """The last linear layer stays with the client; it trains in the first epochs, the rest of the network after them.

    Features of a frozen body are computed in every epoch, as they must be for networks with dropout or BatchNorm.
    """

    has_global_model = False
    has_personal_models = True

    def __init__(self, *args: Any, head_epochs: int = 5, body_epochs: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        named = list(self.network.named_parameters())
        self.head = [p for name, p in named if self.is_head(name)]
        self.body = [p for name, p in named if not self.is_head(name)]
        self.initial = [p.detach().clone() for p in self.head]
        self.heads: dict[int, list[Tensor]] = {}
        self.head_epochs = head_epochs
        self.body_epochs = body_epochs

    def is_head(self, name: str) -> bool:
        linear = [path for path, part in self.network.named_modules() if isinstance(part, nn.Linear)]
        return name.startswith(f"{linear[-1]}.")

    def is_shared(self, name: str, tensor: Tensor) -> bool:
        return super().is_shared(name, tensor) and not self.is_head(name)

    def begin(self, k: int) -> None:
        torch._foreach_copy_(self.head, self.heads.get(k, self.initial))

    def end(self, k: int) -> None:
        self.heads[k] = [p.detach().clone() for p in self.head]

    def train(self, number: int, k: int) -> None:
        generator = self.shuffle(number, k)
        for epochs, trained, frozen in (
            (self.head_epochs, self.head, self.body),
            (self.body_epochs, self.body, self.head),
        ):
            for parameter in trained:
                parameter.requires_grad_(True)
            for parameter in frozen:
                parameter.requires_grad_(False)
            self.parameters = self.optimizer.parameters = trained
            for _ in range(epochs):
                self.epoch(k, generator)

    def personal_model(self, k: int) -> nn.Module:
        self.begin(k)
        return self.network

    def state(self) -> dict[str, Any]:
        return {"server": self.server, "heads": self.heads}


class WithPersonalNetworks(FedAvg):
    """Beside the shared network every client has one of its own; both train on the same batches."""

    has_personal_models = True

    def __init__(self, network: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> None:
        super().__init__(network, *args, **kwargs)
        self.personal = [network() for _ in self.data.val]
        self.personal_parameters = [list(own.parameters()) for own in self.personal]
        self.has_trained: set[int] = set()

    def end(self, k: int) -> None:
        self.has_trained.add(k)

    def personal_model(self, k: int) -> nn.Module:
        return self.personal[k]

    def state(self) -> dict[str, Any]:
        return {"server": self.server, "personal": {k: self.personal[k].state_dict() for k in self.has_trained}}


class Ditto(WithPersonalNetworks):
    """A client's own network is pulled towards the one that it received."""

    def __init__(self, *args: Any, lam: float = 0.1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lam = lam
        self.anchors = self.server[: len(self.parameters)]
        for own in self.personal:
            own.load_state_dict(self.network.state_dict())

    def step(self, k: int, x: Tensor, y: Tensor) -> None:
        own = self.personal_parameters[k]
        with torch.enable_grad():
            loss = F.cross_entropy(self.network(x), y) + F.cross_entropy(self.personal[k](x), y)
        gradients = torch.autograd.grad(loss, [*self.parameters, *own])
        self.optimizer.step(gradients[: len(own)])
        # v - lr (g + lam (v - w)), the pull first.
        torch._foreach_lerp_(own, self.anchors, self.optimizer.lr * self.lam)
        torch._foreach_add_(own, gradients[len(own) :], alpha=-self.optimizer.lr)


class FML(WithPersonalNetworks):
    """A client's own network and the shared one learn from labels and from each other, half and half."""

    def step(self, k: int, x: Tensor, y: Tensor) -> None:
        trained = [*self.personal_parameters[k], *self.parameters]
        with torch.enable_grad():
            log_p = F.log_softmax(self.personal[k](x), dim=1)
            log_q = F.log_softmax(self.network(x), dim=1)
            # Peers are constants, so the gradient of the sum is each network's own.
            loss = mutual_loss(log_p, log_q.detach(), y) + mutual_loss(log_q, log_p.detach(), y)
        torch._foreach_add_(trained, torch.autograd.grad(loss, trained), alpha=-self.optimizer.lr)


def mutual_loss(log_p: Tensor, log_q: Tensor, y: Tensor) -> Tensor:
    imitation = F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)
    return 0.5 * F.nll_loss(log_p, y) + 0.5 * imitation
