"""Peak memory of DLAD with N ResNet18 clients, on a handful of images: `python -m benchmarks.dlad_memory N`."""

import resource
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from fedlit import FederatedData, Federation
from fedlit.methods import DLAD
from fedlit.networks import ResNet18
from fedlit.partition import ClassSets


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    clients = int(sys.argv[1])
    torch.set_num_threads(1)
    x, y = torch.randn(100, 3, 32, 32), torch.arange(100) % 10
    data = FederatedData(
        train_dataset=TensorDataset(x, y),
        test_dataset=TensorDataset(x[:10], y[:10]),
        num_clients=clients,
        partition=ClassSets("niid1", samples_per_client=4),
        public=0.1,
        validation="test",
        batch_size=8,
    )
    method = DLAD(ResNet18, partial(torch.optim.Adam, lr=1e-3), client_epochs=1, density_epochs=1, distil_epochs=2)
    before = peak()
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(logger=False, default_root_dir=folder, enable_progress_bar=False)
        federation.fit(method, data)
        size = (Path(federation.log_dir) / "checkpoints" / "last.ckpt").stat().st_size / 2**20
    print(f"{clients} clients: peak {peak():.0f} MB ({before:.0f} before the fit), checkpoint {size:.0f} MB")
