"""Importing torchmetrics and torchvision: faster, and possible beside a torch without CUDA.

torchmetrics imports torchvision and scipy.signal (0.8 s of CPU) for metrics of images and speech. While it is imported,
stand-ins take their place; whoever uses one of those metrics imports the real module then.

The Linux wheel of torchvision on the package index is built for CUDA. Beside a CPU-only torch its compiled operators do
not load, and ``import torchvision`` fails on the two operators whose shape rules it registers. fedlit uses neither;
where they cannot be loaded, their schemas are declared just before torchvision is first imported.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

DEFERRED = {"torchmetrics": ("torchvision", "torchvision.models", "scipy.signal")}


class Deferred(ModuleType):
    """Stands in for a module, and for what is imported from it, until it is called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)  # by which packages ask whether it is installed

    def __getattr__(self, name: str) -> "Deferred":
        if name.startswith("__"):
            raise AttributeError(name)
        return Deferred(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, _, name = self.__name__.rpartition(".")
        return getattr(import_module(module), name)(*args, **kwargs)


class Imports(MetaPathFinder):
    """Finds the packages whose imports are deferred, and declares what torchvision will miss."""

    library: object = None  # kept: a Library takes its operators with it when it is collected

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname == "torchvision" and self.library is None:
            self.library = object()  # `declare_missing_operators` looks for torchvision, too
            self.library = declare_missing_operators()
        if fullname not in DEFERRED:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(_import_deferring, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _import_deferring(exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a package's code with stand-ins for the modules that it seldom needs."""
    added = [name for name in DEFERRED[module.__name__] if name not in sys.modules]
    sys.modules.update({name: Deferred(name) for name in added})
    try:
        exec_module(module)
    finally:
        for name in added:
            sys.modules.pop(name, None)


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


sys.meta_path.insert(0, Imports())
