"""The options of a federation, checked and fixed: the only place where they live."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Literal

from lightning.pytorch import Callback
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from torchmetrics import Metric

from fedlit.aggregation import Rule
from fedlit.bounds import MOST, check_choice, check_count, check_kind, check_number, check_positive
from fedlit.encoders import Encoder
from fedlit.engine.plan import KeepOptimizer, NoSuchAttribute
from fedlit.methods.factories import check_builder
from fedlit.privacy import ClientLevelDP
from fedlit.records.run_folder import check_name

RATIOS = ("max_weight_ratio", "max_norm_ratio")
AT_LEAST_ONE = (
    "num_rounds",
    "local_epochs",
    "local_steps",
    "min_clients",
    "eval_every_n_rounds",
    "eval_every_n_epochs",
    "save_every_n_rounds",
    "num_threads",
    "num_nodes",
    "processes_per_device",
)
BatchNorm = Literal["average", "local"]
Deterministic = bool | Literal["warn"]
MAY_BE_NONE = ("local_epochs", "local_steps", "eval_every_n_epochs")
MOST_OF = {
    "num_threads": 1024,
    "devices": 1024,
    "num_nodes": 1024,
    "processes_per_device": 64,
}  # more would not start, or end in a crash


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a `Federation`, which documents them and has their defaults."""

    num_rounds: int
    local_epochs: int | None
    local_steps: int | None
    client_epochs: Mapping[int, int]
    fraction_fit: float
    min_clients: int
    eval_every_n_rounds: int
    eval_every_n_epochs: int | None
    save_every_n_rounds: int
    monitor: str | None
    lr_schedule: LRSchedulerCallable | None
    optimizer_state: KeepOptimizer
    batch_norm: BatchNorm
    gradient_clip_val: float | None
    metrics: Mapping[str, Metric]
    accelerator: str
    devices: int | str
    num_nodes: int
    precision: str
    personal_memory: float
    num_threads: int
    fast: bool
    logger: Logger | Sequence[Logger] | bool = field(repr=False)
    callbacks: Sequence[Callback] = field(repr=False)
    default_root_dir: Path
    fast_dev_run: bool
    enable_progress_bar: bool
    report: bool
    seed: int
    process_timeout: float
    processes_per_device: int
    aggregator: Rule | None
    server_optimizer: OptimizerCallable | None
    upload_encoder: Encoder | None
    privacy: ClientLevelDP | None
    client_timeout: float | None
    max_weight_ratio: float | None
    max_norm_ratio: float | None
    max_round_retries: int
    limit_train_batches: int | float | None
    overfit_batches: int | float | None
    max_time: str | timedelta | Mapping[str, int] | None
    profiler: Profiler = field(repr=False)
    run_name: str | None
    enable_checkpointing: bool
    deterministic: Deterministic | None

    def __post_init__(self) -> None:
        self._check_kinds()
        self._fix()
        for name in AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None or name not in MAY_BE_NONE:
                check_count(f"trainer.{name}", value, most=MOST_OF.get(name, MOST))
        if isinstance(self.devices, int):  # Lightning says what is wrong with 0
            check_count("trainer.devices", self.devices, least=-1, most=MOST_OF["devices"])
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError(
                "`trainer.local_epochs` and `trainer.local_steps` exclude each other; give one "
                "(`--trainer.local_epochs null` takes the other back)."
            )
        if not 0 < check_number("trainer.fraction_fit", self.fraction_fit) <= 1:
            raise ValueError(f"`trainer.fraction_fit` must lie in (0, 1], got {self.fraction_fit}.")
        if isinstance(self.personal_memory, bool) or not isinstance(self.personal_memory, int | float):
            raise ValueError(f"`trainer.personal_memory` must be a number of gigabytes, got {self.personal_memory!r}.")
        if not self.personal_memory >= 0:
            raise ValueError(f"`trainer.personal_memory` must be at least 0 gigabytes, got {self.personal_memory}.")
        clip = self.gradient_clip_val
        if clip is not None:
            check_positive("trainer.gradient_clip_val", clip)
        for client, epochs in self.client_epochs.items():
            check_count(f"trainer.client_epochs[{client}]", epochs)
        self._check_batches()
        if self.run_name is not None:
            check_name(self.run_name)
        self._check_bad_clients()
        self._check_privacy()
        self._check_metrics()
        self._check_monitor()
        self._check_checkpointing()

    def _check_checkpointing(self) -> None:
        """Refuse options about checkpoints where none are written."""
        if self.enable_checkpointing:
            return
        for name, default in (("save_every_n_rounds", 1), ("monitor", None)):
            if getattr(self, name) != default:
                raise ValueError(
                    f"`trainer.{name}` is about checkpoints, and `trainer.enable_checkpointing` false writes none; "
                    f"give one (`--trainer.{name} {'null' if default is None else default}` takes the other back)."
                )

    def _check_batches(self) -> None:
        """A number of batches, or a fraction of them."""
        for name in ("limit_train_batches", "overfit_batches"):
            value = getattr(self, name)
            if isinstance(value, float):
                if not 0 < check_number(f"trainer.{name}", value) <= 1:
                    raise ValueError(f"`trainer.{name}` must be a number of batches, or lie in (0, 1], got {value}.")
            elif value is not None:
                check_count(f"trainer.{name}", value)
        if self.limit_train_batches is not None and self.overfit_batches is not None:
            raise ValueError(
                "`trainer.limit_train_batches` and `trainer.overfit_batches` exclude each other; give one."
            )

    def _check_bad_clients(self) -> None:
        """Options about clients and processes that hang, outweigh the others or fail."""
        if not self.process_timeout > 0:
            raise ValueError(f"`trainer.process_timeout` must be more than 0 seconds, got {self.process_timeout}.")
        if self.client_timeout is not None:
            check_positive("trainer.client_timeout", self.client_timeout)
        for name in RATIOS:
            if getattr(self, name) is not None:
                check_number(f"trainer.{name}", getattr(self, name), least=1)
        check_count("trainer.max_round_retries", self.max_round_retries, least=0)

    def _check_privacy(self) -> None:
        """Noise is for a mean of clients of which none decides about another."""
        if self.privacy is None:
            return
        if self.aggregator is not None:
            raise ValueError("`trainer.privacy` and `trainer.aggregator` exclude each other: noise is for a mean.")
        for name in RATIOS:
            if getattr(self, name) is not None:
                raise ValueError(f"`trainer.privacy` and `trainer.{name}` exclude each other: it compares clients.")

    def _check_kinds(self) -> None:
        """Types, which the command line has checked already, and Python code has not."""
        check_kind("trainer.client_epochs", self.client_epochs, Mapping, "a mapping from client id")
        check_kind("trainer.metrics", self.metrics, Mapping, "a mapping from names to metrics")
        check_kind("trainer.monitor", self.monitor, (str, NoneType), "metric/model_on_data")
        check_count("trainer.seed", self.seed, least=-(2**63), most=2**64 - 1)
        check_choice("trainer.optimizer_state", self.optimizer_state, KeepOptimizer)
        check_choice("trainer.batch_norm", self.batch_norm, BatchNorm)
        if self.deterministic not in (True, False, "warn", None):
            raise ValueError(f"`trainer.deterministic` must be true, false or warn, got {self.deterministic!r}.")
        if self.server_optimizer is not None:
            check_builder("trainer.server_optimizer", self.server_optimizer)
        if self.upload_encoder is not None:
            check_kind("trainer.upload_encoder", self.upload_encoder, Encoder, "an Encoder, such as TopK()")

    def _fix(self) -> None:
        """Immutable copies of lists and mappings, which a user may change later."""
        for name in ("client_epochs", "metrics"):
            object.__setattr__(self, name, MappingProxyType({**getattr(self, name)}))
        for name in ("logger", "callbacks"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))

    def _check_metrics(self) -> None:
        """Names that can be written to metrics.csv."""
        for name in self.metrics:
            if not name or not name.isprintable():
                raise ValueError(f"`trainer.metrics` must have names of printable characters, got {name!r}.")

    def _check_monitor(self) -> None:
        """A key of the records; whether it is measured depends on the method."""
        if self.monitor is None:
            return
        if not re.fullmatch(r".*/\w+_on_(pooled|own|unseen|train|server)", self.monitor):
            raise ValueError(
                "`trainer.monitor` must be metric/model_on_data, such as acc/global_on_pooled or loss/personal_on_own, "
                f"got {self.monitor}."
            )

    def epochs_of(self, client: int) -> int:
        """Local epochs of a client, where its stage does not say."""
        return self.client_epochs.get(client, self.local_epochs or 1)


IN_TRAINING = "`self.trainer` of a method has it, in local training"
CALLED_HERE = {
    "callback_metrics": "`state.scores.last`",
    "checkpoint_callback": "`save_every_n_rounds`, an option",
    "current_epoch": "`state.round`",
    "datamodule": "`state.data`",
    "early_stopping_callback": "fedlit.callbacks.StopAt",
    "estimated_stepping_batches": IN_TRAINING,
    "global_rank": "`fabric.global_rank`",
    "global_step": "`state.round`",
    "lightning_module": "`state.module`",
    "local_rank": "`fabric.local_rank`",
    "logged_metrics": "`state.scores.last`",
    "loggers": "`logger`, an option",
    "max_epochs": "`num_rounds` and `local_epochs`, options",
    "max_steps": "`num_rounds` and `local_steps`, options",
    "model": "`state.module`",
    "num_training_batches": IN_TRAINING,
    "optimizers": IN_TRAINING,
    "progress_bar_callback": "`enable_progress_bar`, an option",
    "save_checkpoint": "`save_every_n_rounds`, an option",
    "train_dataloader": "`state.data`",
    "world_size": "`fabric.world_size`",
}

ROUNDS, EPOCHS, STEPS = "trainer.num_rounds", "trainer.local_epochs", "trainer.local_steps"
RATE = "model.optimizer.lr"
SYNONYMS: dict[str, tuple[str, ...]] = {  # options of Lightning, Flower, PFLlib and others, as they are typed here
    **dict.fromkeys(("epochs", "max_epochs", "num_epochs", "n_epochs"), (ROUNDS, EPOCHS)),
    **dict.fromkeys(("rounds", "n_rounds", "max_rounds", "global_rounds", "num_server_rounds"), (ROUNDS,)),
    **dict.fromkeys(("comm_round", "comm_rounds", "communication_rounds"), (ROUNDS,)),
    **dict.fromkeys(("local_epoch", "local_ep", "client_epoch"), (EPOCHS,)),
    "max_steps": (ROUNDS, STEPS),
    **dict.fromkeys(("local_iterations", "local_updates"), (STEPS,)),
    **dict.fromkeys(("clients_per_round", "join_ratio", "fraction_train"), ("trainer.fraction_fit",)),
    **dict.fromkeys(("client_fraction", "sample_fraction", "participation_rate", "frac"), ("trainer.fraction_fit",)),
    **dict.fromkeys(("min_fit_clients", "min_train_nodes", "min_available_clients"), ("trainer.min_clients",)),
    **dict.fromkeys(("eval_gap", "eval_every", "check_val_every_n_epoch"), ("trainer.eval_every_n_rounds",)),
    **dict.fromkeys(("save_gap", "save_every"), ("trainer.save_every_n_rounds",)),
    **dict.fromkeys(("lr", "learning_rate", "local_learning_rate", "local_lr", "client_lr"), (RATE,)),
    **dict.fromkeys(("server_lr", "server_learning_rate"), ("trainer.server_optimizer",)),
    "momentum": ("model.optimizer.momentum",),
    "weight_decay": ("model.optimizer.weight_decay",),
    **dict.fromkeys(("batch_size", "local_batch_size", "local_bs"), ("data.batch_size",)),
    **dict.fromkeys(("num_clients", "n_clients", "num_users", "num_supernodes"), ("data.num_clients",)),
    **dict.fromkeys(("dirichlet_alpha", "dir_alpha"), ("data.partition.alpha",)),
    "partitioner": ("data.partition",),
    **dict.fromkeys(("algorithm", "algo"), ("model",)),
    **dict.fromkeys(("gpus", "num_gpus", "device"), ("trainer.accelerator", "trainer.devices")),
    "num_processes": ("trainer.devices",),
    **dict.fromkeys(("output_dir", "save_dir", "log_dir"), ("trainer.default_root_dir",)),
    **dict.fromkeys(("resume", "resume_from_checkpoint"), ("ckpt_path",)),
}


def no_such_attribute(name: str, known: Iterable[str]) -> AttributeError:
    """The error for an attribute that a federation does not have."""
    if name.startswith("_"):  # copying and pickling ask for such
        return AttributeError(f"'Federation' object has no attribute {name!r}")
    if name in CALLED_HERE:
        return NoSuchAttribute(f"`trainer.{name}`: a federation has none; here it is {CALLED_HERE[name]}.")
    public = ", ".join(sorted(other for other in known if not other.startswith("_")))
    return NoSuchAttribute(f"`trainer.{name}`: a federation has none; there are {public}.")


def no_such_option(name: str, options: Iterable[str]) -> TypeError:
    """The error for an option that a federation does not have, from Python."""
    meant = [option.removeprefix("trainer.") for option in SYNONYMS.get(name, ())]
    meant = meant or get_close_matches(name, list(options), n=1)
    hint = f" Did you mean `{'` or `'.join(meant)}`?" if meant else ""
    return TypeError(f"`{name}` is not an option of Federation.{hint}")
