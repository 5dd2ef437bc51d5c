"""Toy data for every recipe and study that comes with fedlit."""

from pathlib import Path

import numpy as np

GREY, COLOUR = (28, 28), (32, 32, 3)
SHAPES = {"mnist": GREY, "fashion_mnist": GREY, "cifar10": COLOUR, "cifar100": COLOUR, "cinic10": COLOUR}
SHAPES["few_cifar10"] = COLOUR  # for recipes that do with fewer
SIZES = {"cifar100": {"train": 30000, "test": 1000}, "cinic10": {"train": 6000, "test": 20, "valid": 500}}
SIZES["few_cifar10"] = {"train": 1500, "test": 100}


def write_toy_sets(root: Path) -> None:
    """Noise in the shape of each data set, with as few samples as the recipes' partitions allow."""
    draw = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        classes, arrays = (100 if name == "cifar100" else 10), {}
        for split, size in SIZES.get(name, {"train": 6000, "test": 1000}).items():
            arrays[f"{split}_images"] = draw.integers(0, 256, (size, *shape), dtype=np.uint8)
            arrays[f"{split}_labels"] = (np.arange(size) % classes).astype(np.uint8)
        np.savez(root / f"{name}.npz", **arrays)
