"""The options of a federation, checked: the only place where they live."""

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
RATIOS = ("max_weight_ratio", "max_norm_ratio")
BATCHES = ("limit_train_batches", "overfit_batches")  # a number of them, or a fraction
OPTIONAL_COUNTS = ("local_epochs", "local_steps", "eval_every_n_epochs")
MAY_BE_NONE = (*RATIOS, *BATCHES, *OPTIONAL_COUNTS, "gradient_clip_val", "client_timeout")
POSITIVE = ("gradient_clip_val", "client_timeout", "process_timeout")
MOST_OF = {"num_threads": 1024, "num_nodes": 1024, "processes_per_device": 64}  # more would not start, or crash
COUNTS = ("num_rounds", "min_clients", "eval_every_n_rounds", "save_every_n_rounds", *OPTIONAL_COUNTS, *MOST_OF)
SELF_EXPLANATORY = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)
EXCLUSIVE = (
    ("local_epochs", "local_steps"),
    BATCHES,
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
        for name, value in vars(self).items():
            option = f"trainer.{name}"
            if value is None and name in MAY_BE_NONE:
                continue
            if name in COUNTS or (name in BATCHES and isinstance(value, int)):
                check_count(option, value, most=MOST_OF.get(name, MOST))
            elif name in POSITIVE:
                check_positive(option, value)
            elif name in RATIOS:
                check_number(option, value, least=1)
            elif name in ("fraction_fit", *BATCHES) and not 0 < check_number(option, value) <= 1:
                what = "lie in (0, 1]" if name == "fraction_fit" else "be a number of batches, or lie in (0, 1]"
                raise ValueError(f"`{option}` must {what}, got {value}.")
        for client, epochs in self.client_epochs.items():
            check_count(f"trainer.client_epochs[{client}]", epochs)
        if isinstance(self.devices, int):  # Lightning says what is wrong with 0
            check_count("trainer.devices", self.devices, least=-1, most=1024)
        check_count("trainer.seed", self.seed, least=-(2**63), most=2**64 - 1)
        check_count("trainer.max_round_retries", self.max_round_retries, least=0)
        check_number("trainer.personal_memory", self.personal_memory, least=0)

    def epochs_of(self, client: int) -> int:
        """Local epochs of a client, where its stage does not say."""
        return self.client_epochs.get(client, self.local_epochs or 1)
