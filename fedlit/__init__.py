"""Federated learning for clients that differ, in data, model and objective, as a PyTorch Lightning user expects it.

partition and datasets -> data -> networks, losses, aggregation -> methods -> visit -> run -> federation -> cli
"""

import fedlit._torchvision  # noqa: F401  (before anything imports torchvision)
from fedlit.aggregation import Upload
from fedlit.client import Client
from fedlit.data import FederatedData
from fedlit.federation import Federation
from fedlit.methods import FedAvg, FederatedModule, FedProx, FineTuned, LocalOnly, Stage

__version__ = "0.1.0"
__all__ = [
    "Client",
    "FedAvg",
    "FedProx",
    "FederatedData",
    "FederatedModule",
    "Federation",
    "FineTuned",
    "LocalOnly",
    "Stage",
    "Upload",
]
