"""Partitions: which samples each client holds. Each is a setting of a paper, or a natural one."""

from fedlit.partition.base import Partition
from fedlit.partition.by_class import BinarySeparated, ClassSets, Dirichlet, Majority, Shards
from fedlit.partition.by_size import IID, ByColumn, Quantity
from fedlit.partition.wrappers import FeatureSkew, OverTime, PermutedPixels

__all__ = [
    "IID",
    "BinarySeparated",
    "ByColumn",
    "ClassSets",
    "Dirichlet",
    "FeatureSkew",
    "Majority",
    "OverTime",
    "Partition",
    "PermutedPixels",
    "Quantity",
    "Shards",
]
