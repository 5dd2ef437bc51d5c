"""`torch.cuda` of the pretend device, and what it has counted.

A copy of this module lies in the folder that `device.build` makes. With that folder on PYTHONPATH, `sitecustomize`
loads the library before torch, and torch calls `autoload` at the end of its import (entry point `torch.backends`).
"""

import ctypes
from collections import namedtuple
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LIBRARY = Path(__file__).with_name("libpretend_cuda.so")
NAME = "Pretend A100"
Properties = namedtuple("Properties", "name major minor total_memory multi_processor_count")
COUNTED = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int64)
RETURNED = {  # by the functions of the library
    "start": None,
    "use": None,
    "is_used": ctypes.c_bool,
    "is_forked": ctypes.c_bool,
    "current": ctypes.c_int,
    "set_current": None,
    "synchronize": None,
    "allocated": ctypes.c_int64,
    "most_allocated": ctypes.c_int64,
    "reset_peak": None,
    "counts": None,
    "reset": None,
    "generator": ctypes.py_object,
}


@cache
def library() -> SimpleNamespace:
    """The functions of the library: plain ones, since torch hashes what it finds in `torch.cuda`."""
    loaded = ctypes.PyDLL(str(LIBRARY), mode=ctypes.RTLD_GLOBAL)  # keeps the GIL: one of them makes a Python object
    return SimpleNamespace(**{name: _plain(loaded[f"pretend_{name}"], kind) for name, kind in RETURNED.items()})


def _plain(function: Any, returned: Any) -> Callable[..., Any]:
    function.restype = returned
    return lambda *args: function(*args)


def counts() -> dict[str, int]:
    """Since the last `reset`: `kernels`, copies `to_device` and `to_host`, `waits`, and waits by cause `wait:...`."""
    found = {"kernels": 0, "to_device": 0, "to_host": 0, "waits": 0}
    library().counts(COUNTED(lambda name, number: found.update({name.decode(): number})))
    return found


def reset() -> None:
    """Begin to count at 0."""
    library().reset()


def autoload() -> None:
    """Put the device in the place of the one that this torch has been built without."""
    import torch

    if torch.version.cuda is not None:
        raise RuntimeError("The pretend CUDA device is for a torch that is built without CUDA.")
    library().start()
    for name, value in {**_devices(), **_waits(), **_memory(), **_random_numbers()}.items():
        setattr(torch.cuda, name, value)
        if hasattr(torch.cuda.random, name):
            setattr(torch.cuda.random, name, value)
    for name, value in _bindings().items():
        if not hasattr(torch._C, name):
            setattr(torch._C, name, value)
    _place_storages(torch)


def _index(device: Any = None) -> int:
    import torch

    if isinstance(device, int):
        return device if device >= 0 else library().current()
    index = None if device is None else torch.device(device).index
    return library().current() if index is None else index


def _lazy_init() -> None:
    """Whatever asks the device first begins it, also for the state of a generator; after a fork it is refused."""
    if library().is_forked():
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
            "'spawn' start method (pretend)"
        )
    library().use()


def _devices() -> dict[str, Any]:
    c = library()

    def current_device() -> int:
        _lazy_init()
        return c.current()

    def set_device(device: Any) -> None:
        _lazy_init()
        c.set_current(_index(device))

    def get_device_properties(device: Any = None) -> Properties:
        _lazy_init()
        return Properties(NAME, 8, 0, 40 * 2**30, 108)

    return {
        "_lazy_init": _lazy_init,
        "init": _lazy_init,
        "_is_in_bad_fork": c.is_forked,
        "is_initialized": lambda: c.is_used() and not c.is_forked(),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "_device_count_nvml": lambda: 1,
        "current_device": current_device,
        "set_device": set_device,
        "get_device_properties": get_device_properties,
        "get_device_capability": lambda device=None: get_device_properties()[1:3],
        "get_device_name": lambda device=None: get_device_properties().name,
        "is_bf16_supported": lambda *_, **__: True,
    }


def _waits() -> dict[str, Any]:
    c = library()
    stream = SimpleNamespace(
        synchronize=c.synchronize,
        wait_stream=lambda other: None,
        wait_event=lambda event: None,
        record_event=lambda event=None: SimpleNamespace(synchronize=c.synchronize, query=lambda: True),
        query=lambda: True,
        cuda_stream=0,
    )
    return {
        "synchronize": lambda device=None: c.synchronize(),
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "is_current_stream_capturing": lambda: False,
    }


def _memory() -> dict[str, Any]:
    c = library()
    return {
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: c.allocated(),
        "max_memory_allocated": lambda device=None: c.most_allocated(),
        "reset_peak_memory_stats": lambda device=None: c.reset_peak(),
        "memory_stats": lambda device=None: {},
    }


def _random_numbers() -> dict[str, Any]:
    generator = library().generator(0)

    def get_rng_state(device: Any = "cuda") -> Any:
        _lazy_init()
        return generator.get_state()

    # These do not begin the device; the real ones are put off until something does.
    def set_rng_state(state: Any, device: Any = "cuda") -> None:
        generator.set_state(state)

    def manual_seed(seed: int) -> None:
        generator.manual_seed(int(seed))

    return {
        "default_generators": (generator,),
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [get_rng_state()],
        "set_rng_state_all": lambda states: set_rng_state(*states),
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "seed": generator.seed,
        "seed_all": generator.seed,
        "initial_seed": generator.initial_seed,
    }


def _bindings() -> dict[str, Any]:
    """What torch's own Python code calls of its C++ part."""
    c = library()

    def exchange(index: int) -> int:
        before = c.current()
        if index >= 0:
            c.set_current(index)
        return before

    return {
        "_cuda_isInBadFork": c.is_forked,
        "_cuda_getDevice": c.current,
        "_cuda_setDevice": c.set_current,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_synchronize": c.synchronize,
        "_cuda_clearCublasWorkspaces": lambda: None,
    }


def _place_storages(torch: Any) -> None:
    """Storages are made and moved by code that only a build with CUDA has; `torch.load` and `deepcopy` need it."""

    def on_device(size: int, device: Any) -> Any:
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    def clone(self: Any) -> Any:
        if self.device.type != "cuda":
            return type(self)(self.nbytes(), device=self.device).copy_(self)
        return on_device(self.nbytes(), self.device).copy_(self)

    def to(self: Any, device: Any, non_blocking: bool = False) -> Any:
        device = torch.device(device)
        if self.device == device:
            return self
        if device.type == "cpu":
            return torch.UntypedStorage(self.size()).copy_(self, False)
        return on_device(self.nbytes(), device).copy_(self, False)

    torch.storage._StorageBase.clone = clone
    torch.UntypedStorage.clone = clone
    torch.storage._to = to
    torch._utils._to = to
