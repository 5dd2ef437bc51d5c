"""Let torchvision import beside a torch without CUDA.

The Linux wheel of torchvision on the package index is built for CUDA. Beside a CPU-only torch its compiled operators do
not load, and ``import torchvision`` (so Lightning, too) fails on the two operators whose shape rules it registers.
fedlit uses neither; where they cannot be loaded, their schemas are declared, just before torchvision is first imported.
"""

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path


class BeforeTorchvision(MetaPathFinder):
    """Finds nothing; but when torchvision is looked for, the operators that it will miss are declared."""

    has_declared = False
    library: object = None  # kept: a Library takes its operators with it when it is collected

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torchvision" and not self.has_declared:
            self.has_declared = True
            self.library = declare_missing_operators()


def declare_missing_operators() -> object:
    """Schemas of the operators that torchvision's rules are about, where its own cannot be loaded."""
    import torch

    found = find_spec("torchvision")
    if torch.version.cuda is not None or found is None or found.origin is None:
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


if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, BeforeTorchvision())
