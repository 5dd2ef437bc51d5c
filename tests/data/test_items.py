"""Trees of tensors, and batches of them."""

from typing import NamedTuple

import pytest
import torch

from fedlit.data.batches import Batches
from fedlit.data.items import equal, leaves
from fedlit.data.splits import StackedSamples


class Point(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


TREES = {
    "tensor": torch.arange(10.0),
    "dict": {"ids": torch.arange(20).view(10, 2), "mask": torch.arange(10) > 4},
    "tuple": (torch.arange(10.0), [torch.arange(10)]),
    "named": Point(torch.arange(10), torch.arange(10.0)),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_shuffled_batch_of_a_tree_is_that_of_its_tensors(tree):
    def batches(x, seed=0):
        return Batches(StackedSamples(x, torch.arange(10)), 4, torch.Generator().manual_seed(seed))

    seen = list(batches(tree))
    assert [type(x) for x, _ in seen] == [type(tree)] * 3
    for place, leaf in enumerate(leaves(tree)):
        alone = [x for x, _ in batches(leaf)]
        assert all(torch.equal(list(leaves(x))[place], own) for (x, _), own in zip(seen, alone, strict=True))
    assert not equal([x for x, _ in batches(tree, seed=1)], [x for x, _ in seen])


def test_positions_come_with_a_tree_if_they_are_asked_for():
    batches = Batches(
        StackedSamples(TREES["dict"], torch.arange(10)), 4, torch.Generator().manual_seed(0), indexed=True
    )
    for x, y, index in batches:
        assert torch.equal(y, index)
        assert torch.equal(x["ids"][:, 0], 2 * index)
