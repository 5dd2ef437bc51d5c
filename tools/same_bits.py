"""Does a change keep every bit? Hashes of weights and metrics.csv after a short run of every method.

python tools/same_bits.py > before.txt    # on one commit
python tools/same_bits.py | diff before.txt -    # on another, with the same CPU, torch and number of threads
python tools/same_bits.py FedAvg Ditto --drop_last false    # some methods, with every last batch
"""

import argparse
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from fedlit.data import FederatedData
from fedlit.federation import Federation
from fedlit.methods import (
    APFL,
    DLAD,
    FD,
    FML,
    MOON,
    SCAFFOLD,
    Ditto,
    FedAvg,
    FedBN,
    FedDF,
    FedDyn,
    FedFusion,
    FedMD,
    FedMMD,
    FedNova,
    FedPer,
    FedProto,
    FedProx,
    FedRep,
    FineTuned,
    LGFedAvg,
    LocalOnly,
    MixtureOfExperts,
    PerFedAvg,
    PFedMe,
)
from fedlit.networks import MLP, LeNet5, McMahanCNN
from fedlit.partition import Dirichlet


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def lenet():
    return LeNet5(in_channels=1, image_size=28)


def normalised():
    return LeNet5(in_channels=1, image_size=28, batch_norm=True)


def fusible():
    return McMahanCNN()


METHODS = {
    "FedAvg": lambda: FedAvg(lenet, sgd),
    "FedAvg MLP": lambda: FedAvg(MLP, plain_sgd),
    "FedProx": lambda: FedProx(lenet, sgd),
    "FML": lambda: FML(lenet, MLP, sgd),
    "FedMMD": lambda: FedMMD(fusible, plain_sgd),
    "FedFusion": lambda: FedFusion(fusible, plain_sgd),
    "MixtureOfExperts": lambda: MixtureOfExperts(MLP, plain_sgd, epochs=2),
    "DLAD": lambda: DLAD(MLP, plain_sgd, client_epochs=2, density_epochs=2, distil_epochs=2),
    "LocalOnly": lambda: LocalOnly(lenet, sgd),
    "FineTuned": lambda: FineTuned(MLP, plain_sgd, finetune_epochs=2, stop_on="loss"),
    "FedBN": lambda: FedBN(normalised, sgd),
    "FedPer": lambda: FedPer(lenet, sgd),
    "FedRep": lambda: FedRep(lenet, sgd, head_epochs=1),
    "LGFedAvg": lambda: LGFedAvg(lenet, sgd),
    "Ditto": lambda: Ditto(lenet, sgd),
    "APFL": lambda: APFL(lenet, sgd),
    "PFedMe": lambda: PFedMe(lenet, plain_sgd, inner_steps=2),
    "MOON": lambda: MOON(lenet, sgd, projection=32),
    "SCAFFOLD": lambda: SCAFFOLD(lenet, plain_sgd),
    "FedNova": lambda: FedNova(lenet, sgd),
    "FedDyn": lambda: FedDyn(lenet, plain_sgd),
    "FedProto": lambda: FedProto(lenet, sgd),
    "FD": lambda: FD(lenet, sgd),
    "PerFedAvg": lambda: PerFedAvg(lenet, plain_sgd, variant="hf"),
    "FedDF": lambda: FedDF(MLP, sgd, client_networks={0: lenet}),
    "FedMD": lambda: FedMD(MLP, plain_sgd, subset=200, public_epochs=1, private_epochs=1),
}
WITH_A_POOL = ("DLAD", "FedDF", "FedMD")
DROP_LAST = {"single": "single", "true": True, "false": False}


def data(method: str, **options: Any) -> FederatedData:
    public = 0.5 if method in WITH_A_POOL else 0.0
    samples = Dirichlet(alpha=0.5, min_samples=30)
    return FederatedData(
        num_clients=12, partition=samples, batch_size=20, opt_out_samples=0.2, public=public, **options
    )


def state_hash(federation: Federation) -> str:
    digest = hashlib.sha256()
    states = {"server": federation.global_state, **federation.personal_states}
    for owner, state in states.items():
        for name, tensor in sorted(state.items()):
            digest.update(f"{owner} {name}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help="all by default")
    parser.add_argument("--drop_last", choices=DROP_LAST, help="`data.drop_last`; its default if not given")
    args = parser.parse_args()
    options = {} if args.drop_last is None else {"drop_last": DROP_LAST[args.drop_last]}
    torch.set_num_threads(1)
    for name in args.methods or METHODS:
        for fast in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(1)
                federation = Federation(
                    num_rounds=3,
                    fraction_fit=0.5,
                    fast=fast,
                    default_root_dir=folder,
                    logger=False,
                    enable_progress_bar=False,
                    accelerator="cpu",
                    seed=3,
                )
                federation.fit(METHODS[name](), data(name, **options))
                metrics = next(Path(folder).rglob("metrics.csv")).read_bytes()
                records = hashlib.sha256(metrics).hexdigest()[:16]
                mode = "fast" if fast else "exact"
                print(f"{name:18} {mode:6} weights {state_hash(federation)} metrics {records}", flush=True)


if __name__ == "__main__":
    main()
