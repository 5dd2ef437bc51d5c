"""What holds for every test.

Torch is imported inside: of `pytest -n 2`, the process that only hands out tests needs none and is up in a second.
"""

import importlib.metadata
from functools import cache
from pathlib import Path

import pytest

import fedlit  # noqa: F401  (without torch; and before a test imports torchvision, which may need its help)


def pytest_configure() -> None:
    """Lightning looks through all installed packages for callbacks whenever a fit begins; once will do."""
    importlib.metadata.entry_points = cache(importlib.metadata.entry_points)


def pytest_collection_finish() -> None:
    """One torch thread per process: bits depend on the thread count, and small networks are faster with one."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """What is printed breaks its lines in the same places wherever the tests run."""
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(autouse=True)
def without_slurm(monkeypatch):
    """Commands that tests start print the same lines on a SLURM host, where Lightning hints at `srun`."""
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:The `srun` command is available")


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    """A folder with every data set that a recipe names, in small."""
    from toy_sets import write_toy_sets

    root = tmp_path_factory.mktemp("data")
    write_toy_sets(root)
    return root


@pytest.fixture(scope="session")
def device_process():
    """A process with a pretend CUDA device: `device_process.run(function, *args)`, see `device/process.py`."""
    from device.build import CannotBuild
    from device.process import DeviceProcess

    try:
        process = DeviceProcess()
    except CannotBuild as reason:
        pytest.skip(f"No pretend CUDA device: {reason}.")
    yield process
    process.close()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Runs go where the test stands, and no test depends on another's random numbers."""
    import torch

    monkeypatch.chdir(tmp_path)
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` notes a traceback for each kind of device, 0.8 ms
