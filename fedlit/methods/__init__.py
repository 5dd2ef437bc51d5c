"""The methods, one file per paper, and what methods of your own need: the base class, stages, factories, copies."""

from lightning.pytorch.cli import OptimizerCallable

from fedlit.methods.apfl import APFL
from fedlit.methods.base import Card, FederatedModule, Weighting
from fedlit.methods.ditto import Ditto
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
from fedlit.methods.fedbn import FedBN
from fedlit.methods.feddf import Architectures, FedDF
from fedlit.methods.feddyn import FedDyn
from fedlit.methods.fedfusion import FedFusion
from fedlit.methods.fedmd import FedMD
from fedlit.methods.fedmmd import FedMMD
from fedlit.methods.fednova import FedNova
from fedlit.methods.fedper import FedPer
from fedlit.methods.fedproto import FedProto
from fedlit.methods.fedprox import FedProx
from fedlit.methods.fedrep import FedRep
from fedlit.methods.finetuned import FineTuned
from fedlit.methods.fml import FML, Ramp
from fedlit.methods.lgfedavg import LGFedAvg
from fedlit.methods.local import LocalOnly
from fedlit.methods.moe import MixtureOfExperts
from fedlit.methods.moon import MOON
from fedlit.methods.perfedavg import PerFedAvg
from fedlit.methods.pfedme import PFedMe
from fedlit.methods.scaffold import SCAFFOLD
from fedlit.methods.stage import EarlyStopping, Stage
from fedlit.methods.states import Vectors, copy_into, frozen, mean_gradient, numbers, record, trained
from fedlit.modes import evaluating

__all__ = [
    "APFL",
    "DLAD",
    "FD",
    "FML",
    "MOON",
    "SCAFFOLD",
    "Architectures",
    "Card",
    "ClientNetworks",
    "ClientOptimizers",
    "Ditto",
    "EarlyStopping",
    "FedAvg",
    "FedBN",
    "FedDF",
    "FedDyn",
    "FedFusion",
    "FedMD",
    "FedMMD",
    "FedNova",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FederatedModule",
    "FineTuned",
    "LGFedAvg",
    "LocalOnly",
    "MixtureOfExperts",
    "NetworkFactory",
    "OptimizerCallable",
    "PFedMe",
    "PerFedAvg",
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
