"""A federation whose samples are read one by one, with a random transform: the same bits however they are read."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from toys import SGD, SmallCNN, equal, fitted, toy_datasets

from fedlit import FedAvg, FederatedData


class Crops(Dataset):
    def __init__(self, split: int = 0, seed: int = 0) -> None:
        self.images = toy_datasets(seed=seed)[split]
        self.targets = self.images.tensors[1]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int):
        x, y = self.images[index]
        shift = int(torch.randint(-2, 3, ()))
        return x.roll(shift, dims=2) * np.random.uniform(0.9, 1.1), int(y)


@pytest.fixture(autouse=True)
def _quiet(recwarn):
    """That samples are read one by one is reported by a notice."""


def crops(**options) -> FederatedData:
    defaults = {"num_clients": 2, "batch_size": 8, "in_memory": "auto"}
    return FederatedData(train_dataset=Crops(), test_dataset=Crops(1), **{**defaults, **options})


def run(data: FederatedData | None = None, **options):
    torch.manual_seed(1)
    return fitted(FedAvg(SmallCNN, SGD), data or crops(), **{"num_rounds": 2, **options})


def test_a_random_transform_is_another_result_than_a_frozen_one_and_another_seed_another(tmp_path):
    ends = [run(crops(in_memory=how)).global_state for how in ("auto", False, True)]
    assert equal(ends[0], ends[1])
    assert not equal(ends[0], ends[2])
    assert not equal(ends[0], run(seed=1).global_state)
