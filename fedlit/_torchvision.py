"""Let torchvision import beside a torch without CUDA.

The Linux wheel of torchvision on the package index is built for CUDA. Beside a CPU-only torch its compiled operators do
not load, and ``import torchvision`` (so Lightning, too) fails on the two operators whose shape rules it registers.
fedlit uses neither; where they cannot be loaded, their schemas are declared.
"""

import importlib.util
import sys
from pathlib import Path

import torch


def _declare_missing_operators() -> "torch.library.Library | None":
    found = importlib.util.find_spec("torchvision")
    if torch.version.cuda is not None or found is None or "torchvision" in sys.modules:
        return None
    try:
        for compiled in Path(found.origin).parent.glob("_C*"):
            torch.ops.load_library(compiled)  # a matching build: its own operators, as torchvision would load them
    except OSError:
        pass
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


_LIBRARY = _declare_missing_operators()  # kept: a Library takes its operators with it when it is collected
