"""Every method in small, for tests of what holds for all of them."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from toys import TrunkAndHead, toy_data

from fedlit import FederatedData, methods
from fedlit.partition import Dirichlet

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.5)
PLAIN = partial(torch.optim.SGD, lr=0.05)
# With Adam's own eps of 1e-8 a gradient that is 0 but for rounding moves a weight as far as any other.
ADAM = partial(torch.optim.Adam, lr=0.01, eps=1e-3)


class Normalised(nn.Module):
    """A trunk with BatchNorm, and a head."""

    feature_shape = (4, 3, 3)

    def __init__(self) -> None:
        super().__init__()
        self.extractor = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.extractor(x))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))


METHODS = {
    "FedAvg": partial(methods.FedAvg, Normalised, SGD),
    "FedProx": partial(methods.FedProx, Normalised, SGD),
    "FML": partial(methods.FML, Normalised, perceptron, ADAM),
    "FedMMD": partial(methods.FedMMD, Normalised, SGD),
    "FedFusion": partial(methods.FedFusion, Normalised, SGD),
    "MixtureOfExperts": partial(methods.MixtureOfExperts, Normalised, ADAM, epochs=2),
    "DLAD": partial(methods.DLAD, Normalised, ADAM, client_epochs=2, density_epochs=2, distil_epochs=2),
    "LocalOnly": partial(methods.LocalOnly, Normalised, ADAM),
    "FineTuned": partial(methods.FineTuned, Normalised, SGD, finetune_epochs=2, stop_on="loss"),
    "FedBN": partial(methods.FedBN, Normalised, SGD),
    "FedPer": partial(methods.FedPer, Normalised, SGD),
    "FedRep": partial(methods.FedRep, Normalised, SGD, head_epochs=1),
    "LGFedAvg": partial(methods.LGFedAvg, Normalised, SGD),
    "Ditto": partial(methods.Ditto, Normalised, SGD),
    "APFL": partial(methods.APFL, Normalised, SGD),
    "PFedMe": partial(methods.PFedMe, Normalised, PLAIN, inner_steps=2),
    "MOON": partial(methods.MOON, Normalised, SGD, projection=5),
    "SCAFFOLD": partial(methods.SCAFFOLD, Normalised, PLAIN),
    "FedNova": partial(methods.FedNova, Normalised, SGD),
    "FedDyn": partial(methods.FedDyn, Normalised, PLAIN),
    "FedProto": partial(methods.FedProto, Normalised, SGD, lam=0.1),
    "FD": partial(methods.FD, Normalised, SGD),
    "PerFedAvg": partial(methods.PerFedAvg, TrunkAndHead, PLAIN, variant="hf"),
    "FedDF": partial(methods.FedDF, Normalised, SGD, client_networks={0: perceptron}, distil_optimizer=ADAM),
    "FedMD": partial(methods.FedMD, perceptron, PLAIN, subset=20, public_epochs=1, private_epochs=1),
}
WITH_A_POOL = ("DLAD", "FedDF", "FedMD")


def data_for(method: str, **options: Any) -> FederatedData:
    """Three clients that differ in size; a fifth of their samples is opted out."""
    given = {"partition": Dirichlet(alpha=1.0, min_samples=9), "opt_out_samples": 0.2, **options}
    return toy_data(150, public=0.5, **given) if method in WITH_A_POOL else toy_data(75, **given)
