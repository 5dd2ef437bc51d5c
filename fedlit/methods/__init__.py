"""One paper, one file. A new method is a file here and a line below.

Beside the methods there is what the author of another one needs: the contract, stages, and what
networks are built and copied with.
"""

from fedlit.methods.base import FederatedModule, Weighting
from fedlit.methods.card import Card
from fedlit.methods.dlad import DLAD
from fedlit.methods.factories import (
    ClientNetworks,
    ClientOptimizers,
    NetworkFactory,
    build,
    check_choices,
    check_ids,
    for_client,
)
from fedlit.methods.fd import FD
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.feddyn import FedDyn
from fedlit.methods.fedfusion import FedFusion
from fedlit.methods.fedmmd import FedMMD
from fedlit.methods.fednova import FedNova
from fedlit.methods.fedproto import FedProto
from fedlit.methods.fedprox import FedProx
from fedlit.methods.finetuned import FineTuned
from fedlit.methods.fml import FML
from fedlit.methods.local import LocalOnly
from fedlit.methods.moe import MixtureOfExperts
from fedlit.methods.ramp import Ramp
from fedlit.methods.scaffold import SCAFFOLD
from fedlit.methods.stage import EarlyStopping, Stage
from fedlit.methods.states import Vectors, copy_into, evaluating, frozen, mean_gradient, numbers, record, trained

__all__ = [
    "DLAD",
    "FD",
    "FML",
    "SCAFFOLD",
    "Card",
    "ClientNetworks",
    "ClientOptimizers",
    "EarlyStopping",
    "FedAvg",
    "FedDyn",
    "FedFusion",
    "FedMMD",
    "FedNova",
    "FedProto",
    "FedProx",
    "FederatedModule",
    "FineTuned",
    "LocalOnly",
    "MixtureOfExperts",
    "NetworkFactory",
    "Ramp",
    "Stage",
    "Vectors",
    "Weighting",
    "build",
    "check_choices",
    "check_ids",
    "copy_into",
    "evaluating",
    "for_client",
    "frozen",
    "mean_gradient",
    "numbers",
    "record",
    "trained",
]
