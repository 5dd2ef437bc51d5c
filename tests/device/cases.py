"""Every method in small: fitted on the CPU and on the device, and taken from one to the other between rounds.

What is called here runs in a process that has the pretend device (`device.process`), also for the CPU's part.
"""

import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from every_method import METHODS, SGD, Normalised, data_for
from torch import Tensor, nn
from toys import fitted

from fedlit import FedAvg, FederatedModule, Federation
from fedlit.callbacks import FederationCallback

ROUNDS = 3


class Cut(Exception):
    """A fit is to end here."""


class CutBefore(FederationCallback):
    def __init__(self, round: int) -> None:
        self.round = round

    def on_round_start(self, federation: Federation, module: FederatedModule, round: int, clients: list[int]) -> None:
        if round == self.round:
            raise Cut


def fit(method: str, accelerator: str, precision: str, fast: bool, folder: str, **options: Any) -> Federation:
    torch.manual_seed(7)
    given = {"num_rounds": ROUNDS, "default_root_dir": folder, **options}
    with patch("fedlit.engine.run_setup.check_precision", lambda fabric: None):
        return fitted(
            METHODS[method](), data_for(method), accelerator=accelerator, precision=precision, fast=fast, **given
        )


def states(federation: Federation) -> dict[str, Tensor]:
    owners = {"global": federation.global_state, **federation.personal_states}
    return {f"{owner} {name}": tensor.cpu() for owner, state in owners.items() for name, tensor in state.items()}


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one if one[name].numel())


def resumed(method: str, accelerators: tuple[str, ...], precision: str, fast: bool, folder: str) -> Federation:
    """A fit with a round on each accelerator, the last of which goes on to the end."""
    *others, last = accelerators
    for number, accelerator in enumerate(others, start=1):
        with suppress(Cut):
            ckpt_path = None if number == 1 else "last"
            options = {"callbacks": CutBefore(number + 1), "ckpt_path": ckpt_path}
            fit(method, accelerator, precision, fast, folder, **options)
    return fit(method, last, precision, fast, folder, ckpt_path="last" if others else None)


def trial(method: str, precision: str = "32-true", fast: bool = False) -> dict[str, Any]:
    """A method on the device, beside the CPU and with its rounds on both."""
    found = {}
    runs = {"cpu": ("cpu",), "device": ("gpu",), "resumed": ("cpu", "gpu", "cpu")}
    for name, accelerators in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            federation = resumed(method, accelerators, precision, fast, folder)
            found[name] = states(federation)
            assert '"left_out"' not in (Path(federation.log_dir) / "events.jsonl").read_text()
    return {
        "is_finite": all(bool(tensor.isfinite().all()) for tensor in found["device"].values()),
        "device": difference(found["device"], found["cpu"]),
        "resumed": difference(found["resumed"], found["cpu"]),
    }


class WithDropout(Normalised):
    """Its random numbers are drawn on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(36, 3))


def global_model(method: type[FederatedModule], **options: Any) -> dict[str, Tensor]:
    """What a method agrees on, on the device, with a network that has dropout."""
    torch.manual_seed(7)
    federation = fitted(method(WithDropout, SGD), data_for(""), accelerator="gpu", **options)
    return {name: tensor.cpu() for name, tensor in federation.global_state.items()}


def waits(optimizer: Any, precision: str, steps: int) -> dict[str, int]:
    """What a fit of one round makes the host wait for, by cause, with so many steps of each client."""
    import pretend_cuda

    torch.manual_seed(7)
    pretend_cuda.reset()
    options = {"accelerator": "gpu", "precision": precision, "num_rounds": 1, "local_steps": steps}
    fitted(FedAvg(Normalised, optimizer), data_for(""), **options)
    return pretend_cuda.counts()


def counted_steps(method: type[FederatedModule], counter: str) -> list[tuple[int, int]]:
    """Of every client in 16-mixed, the steps that a method has counted and those that its optimiser has taken."""
    found: list[tuple[int, int]] = []

    class Counting(method):  # type: ignore[misc, valid-type]
        def loss(self, output: Any, target: Any) -> Tensor:
            return 1e3 * super().loss(output, target)  # overflows until the scale has fallen

        def configure_optimizers(self) -> Any:
            self.taken = 0
            optimizer = super().configure_optimizers()
            optimizer.register_step_post_hook(self.count)
            return optimizer

        def count(self, *step: Any) -> None:
            self.taken += 1

        def on_client_end(self, client: Any) -> None:
            found.append((int(getattr(self, counter)), self.taken))
            super().on_client_end(client)

    torch.manual_seed(7)
    plain = partial(torch.optim.SGD, lr=1e-4)
    fitted(Counting(Normalised, plain), data_for(""), accelerator="gpu", precision="16-mixed", local_steps=12)
    return found
