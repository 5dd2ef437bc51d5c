"""Data made on the spot, for tasks that are no classification: seeded, small, and the clients' differ.

Samples lie in the order of their clients, so that `Blocks` deals them out.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import TensorDataset

from fedlit.bounds import check_count
from fedlit.partition import Partition
from fedlit.partition.base import enough
from fedlit.rng import generator

LETTERS = "abcdefghijk"
VOCABULARY = len(LETTERS) + 1  # and a space


class Blocks(Partition):
    """Samples as they lie: the first block is the first client's, as those of fedlit.data.toy are made."""

    by_class = False

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        enough(len(labels), num_clients, "num_clients")
        return np.array_split(np.arange(len(labels)), num_clients)


class Toy(TensorDataset):
    """Inputs and targets of some clients, block by block.

    Args:
        train: Training samples; else test samples, which are others of the same clients.
        samples: Of all clients together.
        num_clients: Blocks.
        seed: Of what there is to learn, and of the samples.
    """

    def __init__(self, train: bool = True, samples: int = 800, num_clients: int = 8, seed: int = 0) -> None:
        check_count("samples", samples)
        check_count("num_clients", num_clients, most=samples)
        self.num_clients = num_clients
        world = generator(seed, type(self).__name__)
        draw = generator(seed, type(self).__name__, "train" if train else "test")
        sizes = [len(part) for part in np.array_split(np.arange(samples), num_clients)]
        client = torch.from_numpy(np.repeat(np.arange(num_clients), sizes))
        super().__init__(*self.made(client, world, draw))

    def made(self, client: Tensor, world: Generator, draw: Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the clients `client` ``[N]``.

        `world` draws what is the same for training and test, `draw` the samples.
        """
        raise NotImplementedError


class ToyRegression(Toy):
    """A bent plane over 8 features, targets ``[N, 1]``; each client looks at another place of it."""

    features = 8

    def made(self, client: Tensor, world: Generator, draw: Generator) -> tuple[Tensor, Tensor]:
        places = torch.randn(self.num_clients, self.features, generator=world)
        slope = torch.randn(self.features, generator=world) / math.sqrt(self.features)
        x = places[client] + torch.randn(len(client), self.features, generator=draw)
        y = x @ slope + (2 * x[:, 0]).sin() + 0.1 * torch.randn(len(client), generator=draw)
        return x, y[:, None]


class ToyMultiLabel(Toy):
    """Five labels, each a half of the space of 16 features; a client's samples have some of them more often."""

    features = 16
    labels = 5

    def made(self, client: Tensor, world: Generator, draw: Generator) -> tuple[Tensor, Tensor]:
        places = torch.randn(self.num_clients, self.features, generator=world)
        planes = torch.randn(self.features, self.labels, generator=world)
        x = places[client] + torch.randn(len(client), self.features, generator=draw)
        return x, (x @ planes > 0).float()


class ToyText(Toy):
    """Texts of made words, ``[N, 24]`` letters as numbers, and each next letter as targets; clients prefer other words.

    There are eleven letters and the space, 0: who knows nothing has a perplexity of 12.
    """

    length = 24
    words = 30

    def made(self, client: Tensor, world: Generator, draw: Generator) -> tuple[Tensor, Tensor]:
        sizes = torch.randint(2, 6, (self.words,), generator=world).tolist()
        words = [torch.randint(1, VOCABULARY, (size,), generator=world).tolist() for size in sizes]
        taste = torch.rand(self.num_clients, self.words, generator=world) ** 4  # few words are most of a text
        texts = torch.tensor([self._text(words, taste[k], draw) for k in client.tolist()])
        return texts[:, :-1].contiguous(), texts[:, 1:].contiguous()

    def _text(self, words: Sequence[Sequence[int]], taste: Tensor, draw: Generator) -> list[int]:
        chosen = torch.multinomial(taste, self.length, replacement=True, generator=draw).tolist()
        letters = [letter for number in chosen for letter in (*words[number], 0)]
        return letters[: self.length + 1]


class ToySegmentation(Toy):
    """Grey images ``[N, 1, 16, 16]`` with a disc or a square; targets ``[N, 16, 16]``.

    A pixel is of nothing (0), a disc (1) or a square (2). Clients have one of them more often, in a light of their own.
    """

    size = 16
    classes = 3

    def made(self, client: Tensor, world: Generator, draw: Generator) -> tuple[Tensor, Tensor]:
        number = len(client)
        squares = torch.linspace(0.2, 0.8, self.num_clients)
        light = 1 + torch.rand(self.num_clients, generator=world)
        is_square = torch.rand(number, generator=draw) < squares[client]
        centre = torch.randint(5, self.size - 5, (2, number, 1, 1), generator=draw)
        places = torch.arange(self.size)
        down = (places[:, None] - centre[0]).abs()
        across = (places[None, :] - centre[1]).abs()
        disc = down**2 + across**2 <= 16
        square = torch.maximum(down, across) <= 3
        y = torch.where(is_square[:, None, None], 2 * square.long(), disc.long())
        noise = 0.3 * torch.randn(number, self.size, self.size, generator=draw)
        x = light[client][:, None, None] * (y > 0) + noise
        return x[:, None], y
