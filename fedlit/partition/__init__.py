"""Who holds what. Each `Partition` is a setting of the papers, or of the world."""

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
