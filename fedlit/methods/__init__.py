"""One paper, one file. A new method is a file here and a line below.

Beside the methods there is what the author of another one needs: the contract, stages, and what
networks are built and copied with.
"""

from fedlit.methods.apfl import APFL
from fedlit.methods.base import FederatedModule, Weighting
from fedlit.methods.card import Card
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
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.fedbn import FedBN
from fedlit.methods.fedfusion import FedFusion
from fedlit.methods.fedmmd import FedMMD
from fedlit.methods.fedper import FedPer
from fedlit.methods.fedprox import FedProx
from fedlit.methods.fedrep import FedRep
from fedlit.methods.finetuned import FineTuned
from fedlit.methods.fml import FML
from fedlit.methods.lgfedavg import LGFedAvg
from fedlit.methods.local import LocalOnly
from fedlit.methods.moe import MixtureOfExperts
from fedlit.methods.moon import MOON
from fedlit.methods.pfedme import PFedMe
from fedlit.methods.ramp import Ramp
from fedlit.methods.stage import EarlyStopping, Stage
from fedlit.methods.states import copy_into, frozen, record

__all__ = [
    "APFL",
    "DLAD",
    "FML",
    "MOON",
    "Card",
    "ClientNetworks",
    "ClientOptimizers",
    "Ditto",
    "EarlyStopping",
    "FedAvg",
    "FedBN",
    "FedFusion",
    "FedMMD",
    "FedPer",
    "FedProx",
    "FedRep",
    "FederatedModule",
    "FineTuned",
    "LGFedAvg",
    "LocalOnly",
    "MixtureOfExperts",
    "NetworkFactory",
    "PFedMe",
    "Ramp",
    "Stage",
    "Weighting",
    "build",
    "check_choices",
    "check_ids",
    "copy_into",
    "for_client",
    "frozen",
    "record",
]
