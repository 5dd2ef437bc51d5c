"""One paper, one file. A new method is a file here and a line below."""

from fedlit.methods.base import FederatedModule
from fedlit.methods.dlad import DLAD
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.fedfusion import FedFusion
from fedlit.methods.fedmmd import FedMMD
from fedlit.methods.fedprox import FedProx
from fedlit.methods.finetuned import FineTuned
from fedlit.methods.fml import FML
from fedlit.methods.local import LocalOnly
from fedlit.methods.moe import MixtureOfExperts
from fedlit.methods.stage import EarlyStopping, Stage

__all__ = [
    "DLAD",
    "FML",
    "EarlyStopping",
    "FedAvg",
    "FedFusion",
    "FedMMD",
    "FedProx",
    "FederatedModule",
    "FineTuned",
    "LocalOnly",
    "MixtureOfExperts",
    "Stage",
]
