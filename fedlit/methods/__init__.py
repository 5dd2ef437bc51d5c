"""One paper, one file. A new method is a file here and a line below."""

from fedlit.methods.base import FederatedModule, Stage
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.fedprox import FedProx
from fedlit.methods.finetuned import FineTuned
from fedlit.methods.local import LocalOnly

__all__ = ["FedAvg", "FedProx", "FederatedModule", "FineTuned", "LocalOnly", "Stage"]
