"""Two tasks in one federation."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toys import SGD, TrunkAndHead, fitted, linear, rows, toy_datasets

from fedlit import FederatedData
from fedlit.data.joint import JointData
from fedlit.methods import FML


def part(num_classes: int, **options) -> FederatedData:
    train, test = toy_datasets(60, num_classes, seed=num_classes)
    return FederatedData(train_dataset=train, test_dataset=test, batch_size=8, **options)


def two_tasks(**options) -> JointData:
    return JointData([part(3, num_clients=2, **options), part(7, num_clients=1, **options)])


@pytest.mark.parametrize("validation", ["train", "test"])
def test_clients_are_numbered_on_and_hold_their_own_task(validation):
    data = two_tasks(validation=validation)
    data.setup()
    assert [data.client(k).num_classes for k in range(3)] == [3, 3, 7]
    for k, (task, own) in enumerate(((data.parts[0], 0), (data.parts[0], 1), (data.parts[1], 0))):
        for joint, alone in (
            (data.client(k).train_batches(), task.client(own).train_batches()),
            (data.client(k).val_batches(), task.client(own).val_batches()),
        ):
            assert torch.equal(joint.x, alone.x)
            assert torch.equal(joint.y, alone.y)
    assert len(np.concatenate(data.assignment.train)) == len(set(np.concatenate(data.assignment.train)))


def test_fml_trains_clients_of_different_tasks_on_one_trunk():
    other = {"client_networks": {2: lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 7))}}
    other["client_memes"] = {2: lambda: TrunkAndHead(7)}
    method = FML(linear, TrunkAndHead, SGD, share="extractor", **other)
    federation = fitted(method, two_tasks())
    assert set(federation.global_state) == {"meme.extractor.0.weight", "meme.extractor.0.bias"}
    heads = [state["meme.head.1.weight"].shape[0] for state in federation.personal_states.values()]
    assert heads == [3, 3, 7]
    assert {row["data"] for row in rows(federation)} == {"own", "train"}


def test_inputs_of_different_shapes_are_refused():
    data = JointData([part(3), FederatedData()])
    with pytest.raises(ValueError, match=r"`data.parts` must have inputs of one shape, .*uint8 \[N, 1, 28, 28\]"):
        data.setup()


@pytest.mark.filterwarnings("ignore::fedlit.notices.Notice")
def test_samples_that_are_read_or_come_in_trees_cannot_be_joined():
    class Pairs(TensorDataset):
        def __getitem__(self, index):
            return {"a": self.tensors[0][index], "b": torch.zeros(2)}, int(self.tensors[1][index])

    x, y = torch.zeros(20, 2), torch.arange(20) % 2
    options = {"test_size": 0.2, "num_clients": 2}
    for data, message in (
        (FederatedData(train_dataset=TensorDataset(x, y), in_memory=False, **options), "in memory"),
        (FederatedData(train_dataset=[*Pairs(x, y)], **options), r"one tensor, got \{a: float32 \[N, 2\]"),
    ):
        with pytest.raises(ValueError, match=rf"`data.parts` must .*{message}"):
            JointData([data]).setup()


def held(**options) -> list[list[int]]:
    """Who holds which samples of two data sets, whose own partitions have seed 3."""
    data = JointData([part(3, num_clients=2, partition_seed=3), part(7, num_clients=2, partition_seed=3)], **options)
    data.setup()
    return [client.tolist() for client in data.assignment.train]


def test_one_seed_deals_out_all_parts_and_without_it_each_has_its_own():
    assert held(partition_seed=3) == held()
    assert held(partition_seed=4) != held()
