"""The options of a federation, checked: the only place where they live."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from torchmetrics import Metric

from fedlit.bounds import MOST, check_choice, check_count, check_kind, check_number, check_positive
from fedlit.encoders import Encoder
from fedlit.engine.plan import KeepOptimizer
from fedlit.methods.factories import check_builder
from fedlit.records.run_folder import check_name

BatchNorm = Literal["average", "local"]
Deterministic = bool | Literal["warn"]
COUNTS = {  # at least 1, and at most: more threads or processes would not start, or end in a crash
    "num_rounds": MOST,
    "min_clients": MOST,
    "eval_every_n_rounds": MOST,
    "save_every_n_rounds": MOST,
    "local_epochs": MOST,
    "local_steps": MOST,
    "eval_every_n_epochs": MOST,
    "num_threads": 1024,
    "num_nodes": 1024,
    "processes_per_device": 64,
}
MOST_DEVICES = 1024
SELF_EXPLANATORY = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)
MAY_BE_NONE = ("local_epochs", "local_steps", "eval_every_n_epochs")
RATIOS = ("max_weight_ratio", "max_norm_ratio")
EXCLUSIVE = (
    ("local_epochs", "local_steps"),
    ("limit_train_batches", "overfit_batches"),
    ("privacy", "aggregator"),  # noise is for a mean
    *(("privacy", ratio) for ratio in RATIOS),  # they compare clients
)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Refuse in one line what raises within, whatever it is: methods, networks and metrics may raise anything."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The first line of an error, with its class where the text alone is not clear."""
    line = str(error).partition("\n")[0]
    if "dtype" in line:
        line += "; see `trainer.precision`"
    if not isinstance(error, SELF_EXPLANATORY) or not line:
        return f"{type(error).__name__}: {line}".removesuffix(": ")
    return line


class Options:
    """Options of a `Federation`, whose constructor lists and documents them."""

    optimizer_state: KeepOptimizer

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)
        self._check_kinds()
        self.client_epochs: dict[int, int] = dict(given["client_epochs"] or {})
        self.metrics: dict[str, Metric] = dict(given["metrics"] or {})
        self._check_numbers()
        for one, other in EXCLUSIVE:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ValueError(
                    f"`trainer.{one}` and `trainer.{other}` exclude each other; null takes an option of a recipe back."
                )
        if self.run_name is not None:
            check_name(self.run_name)
        # Whether it is measured depends on the method.
        if self.monitor and not re.fullmatch(r".*/\w+_on_(pooled|own|unseen|train|server)", self.monitor):
            raise ValueError(
                "`trainer.monitor` must be metric/model_on_data, such as acc/global_on_pooled or loss/personal_on_own, "
                f"got {self.monitor}."
            )
        for name, default in (("save_every_n_rounds", 1), ("monitor", None)):
            if not self.enable_checkpointing and getattr(self, name) != default:
                raise ValueError(
                    f"`trainer.{name}` is about checkpoints, and `trainer.enable_checkpointing` false writes none; "
                    f"give one (`--trainer.{name} {'null' if default is None else default}` takes the other back)."
                )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def _check_kinds(self) -> None:
        """What the command line has checked already, and Python code has not."""
        check_kind("trainer.client_epochs", self.client_epochs, (Mapping, NoneType), "a mapping from client id")
        check_kind("trainer.metrics", self.metrics, (Mapping, NoneType), "a mapping from names to metrics")
        check_kind("trainer.monitor", self.monitor, (str, NoneType), "metric/model_on_data")
        check_kind("trainer.upload_encoder", self.upload_encoder, (Encoder, NoneType), "an Encoder, such as TopK()")
        check_choice("trainer.optimizer_state", self.optimizer_state, KeepOptimizer)
        check_choice("trainer.batch_norm", self.batch_norm, BatchNorm)
        if self.deterministic not in (True, False, "warn", None):
            raise ValueError(f"`trainer.deterministic` must be true, false or warn, got {self.deterministic!r}.")
        if self.server_optimizer is not None:
            check_builder("trainer.server_optimizer", self.server_optimizer)

    def _check_numbers(self) -> None:
        for name, most in COUNTS.items():
            value = getattr(self, name)
            if value is not None or name not in MAY_BE_NONE:
                check_count(f"trainer.{name}", value, most=most)
        for client, epochs in self.client_epochs.items():
            check_count(f"trainer.client_epochs[{client}]", epochs)
        if isinstance(self.devices, int):  # Lightning says what is wrong with 0
            check_count("trainer.devices", self.devices, least=-1, most=MOST_DEVICES)
        check_count("trainer.seed", self.seed, least=-(2**63), most=2**64 - 1)
        check_count("trainer.max_round_retries", self.max_round_retries, least=0)
        check_number("trainer.personal_memory", self.personal_memory, least=0)
        check_positive("trainer.process_timeout", self.process_timeout)
        if not 0 < check_number("trainer.fraction_fit", self.fraction_fit) <= 1:
            raise ValueError(f"`trainer.fraction_fit` must lie in (0, 1], got {self.fraction_fit}.")
        for name in ("gradient_clip_val", "client_timeout"):
            if getattr(self, name) is not None:
                check_positive(f"trainer.{name}", getattr(self, name))
        for name in RATIOS:
            if getattr(self, name) is not None:
                check_number(f"trainer.{name}", getattr(self, name), least=1)
        for name in ("limit_train_batches", "overfit_batches"):  # a number of batches, or a fraction of them
            value = getattr(self, name)
            if isinstance(value, float):
                if not 0 < check_number(f"trainer.{name}", value) <= 1:
                    raise ValueError(f"`trainer.{name}` must be a number of batches, or lie in (0, 1], got {value}.")
            elif value is not None:
                check_count(f"trainer.{name}", value)

    def epochs_of(self, client: int) -> int:
        """Local epochs of a client, where its stage does not say."""
        return self.client_epochs.get(client, self.local_epochs or 1)
