"""The environment of a run, to repeat it: versions, processor and threads."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("fedlit", "torch", "lightning")


def environment() -> dict[str, str | int]:
    """Versions of what computes, the processor by name, and torch's threads.

    Example:
        >>> list(environment())
        ['fedlit', 'torch', 'lightning', 'python', 'cpu', 'threads']
    """
    found: dict[str, str | int] = {name: _version(name) for name in PACKAGES}
    found["python"] = platform.python_version()
    found["cpu"] = processor()
    found["threads"] = torch.get_num_threads()
    return found


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name; its architecture, such as x86_64, where the name is unknown."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # a copy that was never installed
        return "unknown"
