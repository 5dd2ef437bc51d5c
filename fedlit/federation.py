"""The federation: stages, rounds, evaluation and records, on Lightning Fabric."""

from collections.abc import Callable
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.fabric import Fabric
from lightning.pytorch import Callback
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, SimpleProfiler
from torch import nn
from torchmetrics import Metric

from fedlit.aggregation import Aggregator, Rule
from fedlit.callbacks import as_callbacks, command_hooks, load_states, time_limit
from fedlit.data import FederatedData
from fedlit.data.datasets import read_own_images
from fedlit.encoders import Encoder
from fedlit.engine.checkpointing import resume
from fedlit.engine.checks import check_experiment
from fedlit.engine.evaluation import Scorer
from fedlit.engine.fit import Fit, StopRequest
from fedlit.engine.liveness import ClientParallelStrategy
from fedlit.engine.logged_values import refusing_logs
from fedlit.engine.options import Deterministic, Options, first_line
from fedlit.engine.plan import KeepOptimizer
from fedlit.engine.processes import barrier
from fedlit.engine.run_setup import (
    ResumePoint,
    RunFolder,
    chosen_checkpoint,
    fresh_state,
    launch,
    read_checkpoint,
    ready_data,
    title_of,
)
from fedlit.engine.scheduling import Schedule
from fedlit.engine.state import FederationState, Hosts
from fedlit.fit_result import FitResult
from fedlit.inference import adapt, own_network, predict, report, table_of_epochs
from fedlit.methods.base import FederatedModule
from fedlit.methods.hooks import Command
from fedlit.option_names import names_options, no_such_attribute
from fedlit.privacy import ClientLevelDP
from fedlit.records.files import explain_unwritable
from fedlit.records.pictures import draw_curves
from fedlit.records.round_record import Failure
from fedlit.records.rows import Row
from fedlit.records.run_folder import folder_of
from fedlit.rng import isolated
from fedlit.studies import page_after_fit

Method = FederatedModule | Callable[[], FederatedModule]
Data = FederatedData | None
Model = FederatedModule | None


PROFILERS: dict[str | None, type[Profiler]] = {
    None: PassThroughProfiler,
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
}


def make_profiler(given: Profiler | str | None) -> Profiler:
    """The profiler of a federation; the default does nothing."""
    if isinstance(given, Profiler):
        return given
    if given not in PROFILERS:
        raise ValueError(
            f"`trainer.profiler` must be simple, advanced or a profiler of lightning.pytorch.profilers, got {given!r}."
        )
    return PROFILERS[given]()


def built(model: Any, seed: int) -> FederatedModule:
    """A method as it is, or built by a function under the seed: its first weights follow from it, too."""
    if isinstance(model, nn.Module) or not callable(model):  # what is no method is refused before the first round
        return model
    with isolated(seed):
        return model()


def make_fabric(options: Options) -> Fabric:
    """Fabric as the user's options have it; several processes share clients, not gradients."""
    several = options.num_nodes > 1 or str(options.devices) not in ("1", "auto")
    timeout = options.process_timeout
    wanted: dict[str, Any] = {"num_nodes": options.num_nodes, "precision": options.precision}
    try:
        if options.processes_per_device > 1:
            alone: Any = Fabric(accelerator=options.accelerator, devices=options.devices).strategy
            each = getattr(alone, "parallel_devices", None) or [alone.root_device]
            shared = [device for device in each for _ in range(options.processes_per_device)]
            return Fabric(strategy=ClientParallelStrategy(timeout, shared), **wanted)
        strategy = ClientParallelStrategy(timeout) if several else "auto"
        return Fabric(accelerator=options.accelerator, devices=options.devices, strategy=strategy, **wanted)
    except Exception as error:  # Fabric raises many kinds
        names = ("accelerator", "devices", "num_nodes")
        given = ", ".join(f"`trainer.{name}` {getattr(options, name)}" for name in names)
        what = f"{given} with `trainer.precision` {options.precision} cannot be had here"
        raise ValueError(f"{what}: {first_line(error)}") from error


class Federation:
    """Runs a method over rounds: what `Trainer` is to one model, for a server and its clients.

    Args:
        num_rounds: Rounds of a stage that does not say how many it takes.
        local_epochs: Passes over a client's samples in a round; 1 unless `local_steps` is given.
        local_steps: Batches of a client in a round, in place of `local_epochs`.
        client_epochs: Another number of local epochs for some clients, by client id.
        fraction_fit: Fraction in (0, 1] of the clients that take part in a round.
        min_clients: Minimum number of clients per round; also the minimum number of valid updates.
        max_round_retries: How often a round with too few valid updates is repeated with other clients.
        client_timeout: Seconds after which a client is left out; each client then trains in a process of its own.
        max_weight_ratio: Leave out a client whose weight is more than so many times the median of its round.
        max_norm_ratio: Leave out a client whose update is more than so many times as long as the median of its round.
        eval_every_n_rounds: Rounds between evaluations; the last round of a stage is always evaluated.
        eval_every_n_epochs: Epochs between evaluations of a model that is not averaged (epochs.csv); none by default.
        save_every_n_rounds: Rounds between checkpoints; the last round of a stage is always saved.
        enable_checkpointing: Write checkpoints; without, a run cannot be resumed, tested by `ckpt_path` or adapted.
        monitor: Metric of best.ckpt, such as loss/global_on_own; clients' own accuracy or the task's first by default.
        lr_schedule: A torch schedule that is stepped once a round.
        optimizer_state: What a client keeps of it: that of `personal` parameters, of all (`keep`) or none (`reset`).
        batch_norm: BatchNorm layers are averaged as everything that is shared, or stay with the client (`local`).
        aggregator: Makes one state of uploads: a rule of fedlit.aggregation or a function; their mean by default.
        server_optimizer: Steps with the mean update for a gradient: fedlit.server_optimizers.FedAdam; none by default.
        upload_encoder: Compresses uploads: Float16, Int8, TopK or your own of fedlit.encoders (docs/exchange.md).
        privacy: Differential privacy of clients, fedlit.privacy.ClientLevelDP (extra `dp`); none by default.
        gradient_clip_val: Largest norm of a gradient; none by default.
        limit_train_batches: Batches of a local epoch at most, or a fraction of them in (0, 1]; all by default.
        overfit_batches: The same first batches in every epoch, unshuffled: so many, or a fraction of them.
        max_time: Ends a fit after this time, resumed runs included: "00:12:00:00" (days to seconds), or by name.
        profiler: Where the time goes: simple, advanced, or a profiler of Lightning's; reported at the end of a fit.
        metrics: More torchmetrics metrics, by name; the loss and those of the task are always there.
        accelerator: As in Lightning: cpu, gpu, auto ...
        devices: Processes (cpu) or devices that share the clients of a round.
        processes_per_device: Processes that share each device, where one alone does not fill it.
        num_nodes: Machines.
        process_timeout: Seconds without a sign of life after which a process is taken for dead.
        precision: As in Lightning: 32-true, bf16-mixed, 16-mixed, 64-true ...
        deterministic: As in Lightning: true refuses nondeterministic operations of torch, `warn` warns of them.
        personal_memory: Gigabytes of host memory for what stays with clients; the rest goes to files in TMPDIR.
        num_threads: Torch threads per process; the same bits need the same number.
        fast: Faster on a CPU, by other rounding than a plain loop's: still the same bits for the same seed.
        logger: Lightning loggers; true is TensorBoard in the run's folder, false is none.
        callbacks: Callbacks; see fedlit.callbacks.
        default_root_dir: Folder in which `lightning_logs` stands.
        run_name: Folder of the run in `lightning_logs`, whose `last` and `best` are meant; a number by default.
        fast_dev_run: One batch of two clients in one round of every stage, and nothing written: does it run at all?
        enable_progress_bar: A bar on a terminal and in a notebook, a line a round elsewhere; off is silence.
        report: Draw pictures of the run and, where the extra `report` is installed, write its page, report.html.
        seed: Of every random stream of the run.
    """

    @names_options
    def __init__(
        self,
        num_rounds: int = 10,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        client_epochs: dict[int, int] | None = None,
        fraction_fit: float = 1.0,
        min_clients: int = 1,
        eval_every_n_rounds: int = 1,
        save_every_n_rounds: int = 1,
        monitor: str | None = None,
        lr_schedule: LRSchedulerCallable | None = None,
        optimizer_state: KeepOptimizer = "personal",
        batch_norm: Literal["average", "local"] = "average",
        gradient_clip_val: float | None = None,
        metrics: dict[str, Metric] | None = None,
        accelerator: str = "auto",
        devices: int | str = 1,
        num_nodes: int = 1,
        precision: str = "32-true",
        personal_memory: float = 2.0,
        num_threads: int = 1,
        fast: bool = False,
        logger: Logger | list[Logger] | bool = True,
        callbacks: list[Callback] | Callback | None = None,
        default_root_dir: str = ".",
        fast_dev_run: bool = False,
        enable_progress_bar: bool = True,
        report: bool = True,
        seed: int = 0,
        eval_every_n_epochs: int | None = None,
        process_timeout: float = 1800.0,
        aggregator: Aggregator | Rule | None = None,
        privacy: ClientLevelDP | None = None,
        client_timeout: float | None = None,
        max_weight_ratio: float | None = None,
        max_norm_ratio: float | None = None,
        max_round_retries: int = 3,
        server_optimizer: OptimizerCallable | None = None,
        limit_train_batches: int | float | None = None,
        overfit_batches: int | float | None = None,
        max_time: str | timedelta | dict[str, int] | None = None,
        profiler: Profiler | str | None = None,
        run_name: str | None = None,
        processes_per_device: int = 1,
        upload_encoder: Encoder | None = None,
        enable_checkpointing: bool = True,
        deterministic: Deterministic | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        given["callbacks"] = [*as_callbacks(callbacks), *time_limit(max_time)]
        given["default_root_dir"] = Path(default_root_dir).expanduser()
        given["profiler"] = make_profiler(profiler)
        self.options = Options(**given)
        self.fabric = make_fabric(self.options)
        self.running = False
        self._stop = StopRequest()
        self._state: FederationState | None = None
        self.hosts: Hosts | None = None
        self._folder: Path | None = None
        self._own_run: RunFolder | None = None  # of the last fit
        self.has_rounds_left = True  # for a fit, once it is set up

    if not TYPE_CHECKING:  # a type checker would take every name for an option

        def __getattr__(self, name: str) -> Any:
            """An option may be read as an attribute."""
            if name in OPTIONS and "options" in vars(self):
                return getattr(self.options, name)
            raise no_such_attribute(name, {*dir(self), *OPTIONS})

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OPTIONS:
            raise AttributeError(f"`{name}` is an option and fixed: make another Federation({name}={value!r}).")
        super().__setattr__(name, value)

    @property
    def is_global_zero(self) -> bool:
        return self.fabric.is_global_zero

    @property
    def log_dir(self) -> str | None:
        return None if self._folder is None else str(self._folder)

    @property
    def strategy(self) -> Any:
        return self.fabric.strategy

    @property
    def should_stop(self) -> bool:
        """Whether the fit ends after this round; a callback may set it."""
        return self._stop.asked

    @should_stop.setter
    def should_stop(self, asked: bool) -> None:
        self._stop.asked = asked

    @property
    def stopped_by(self) -> int | None:
        """The signal that ended the last fit early, if one did."""
        return self._stop.signal

    @property
    def state(self) -> FederationState:
        """The states of server and clients, from the first `fit`, `validate` ... on."""
        if self._state is None:
            raise RuntimeError("A federation has no state before its first `fit`, `validate`, `test` or `predict`.")
        return self._state

    @property
    def global_state(self) -> dict[str, torch.Tensor]:
        """What the server holds."""
        return self.state.global_state

    @property
    def personal_states(self) -> dict[int, dict[str, torch.Tensor]]:
        """What stays with each client; on several processes, all must ask."""
        return self.state.personal_states()

    def fit(self, model: Method, datamodule: Data = None, ckpt_path: str | None = None) -> FitResult:
        """Train a method over its rounds.

        Args:
            model: The method, or a function that builds it, which is called under `trainer.seed`.
            datamodule: The clients' data; the embedded sample by default.
            ckpt_path: A file, `last` or `best` of the config's own run or the newest; `auto` is its last, if any.
        """
        method = built(model, self.options.seed)
        with RunFolder(self.fabric, self.options) as run_folder:
            schedule, resume_point = self._set_up("fit", method, datamodule, ckpt_path, run_folder=run_folder)
            with explain_unwritable(self._folder):
                with command_hooks("fit", self._call):
                    rows = self._fit(method, schedule, resume_point)
                if self.options.report and self.is_global_zero:
                    page_after_fit(self._folder)
            barrier(self.fabric)  # a launcher may take one that ends by a signal's code for a reason to kill the first
        self.running = False
        best = self.state.scores.best_with_direction
        return FitResult(method, self._folder, rows, self.stopped_by, self.network, self.state.round, best)

    def _fit(self, model: FederatedModule, schedule: Schedule, resume_point: ResumePoint) -> list[Row]:
        if resume_point.content:
            self._call("on_load_checkpoint", resume_point.content)
            load_states(resume_point.content, self.options.callbacks)
        fit = Fit(self.state, schedule, self._folder, self._stop, self._call, resume_point)
        self.running = True
        with fit.log:
            self._call("on_fit_start")
            self._call("on_train_start")
            fit.run()
            model.client = None
            self._call("on_train_end")
            self._call("on_fit_end")
            fit.close()
        return fit.rows

    def validate(self, model: Model = None, datamodule: Data = None, ckpt_path: str | None = None) -> list[Row]:
        """Evaluate every client on its own validation samples, and the global model on the test set too.

        Args:
            model: The method; that of the last `fit` by default.
            datamodule: The clients' data; those of the last `fit` by default, else the embedded sample.
            ckpt_path: The checkpoint: a file, or `last` or `best` of this fit, the config's own run or the newest.
        """
        self._set_up("validate", model, datamodule, ckpt_path)
        with command_hooks("validate", self._call):
            scorer = Scorer(self.state)
            return self._report("validate.csv", scorer.evaluate(self.state.round), scorer.failures)

    def test(self, model: Model = None, datamodule: Data = None, ckpt_path: str | None = None) -> list[Row]:
        """Evaluate the global model and every client's own on the pooled test set.

        Args:
            model: The method; that of the last `fit` by default.
            datamodule: The clients' data; those of the last `fit` by default, else the embedded sample.
            ckpt_path: The checkpoint: a file, or `last` or `best` of this fit, the config's own run or the newest.
        """
        self._set_up("test", model, datamodule, ckpt_path)
        with command_hooks("test", self._call):
            scorer = Scorer(self.state)
            return self._report("test.csv", scorer.test(), scorer.failures)

    def predict(
        self,
        model: Model = None,
        datamodule: Data = None,
        ckpt_path: str | None = None,
        client: int | None = None,
        images: str | None = None,
    ) -> torch.Tensor | list[torch.Tensor]:
        """Predict the test set or own images, by the global model or a client's own; writes predictions_*.csv.

        Class probabilities; of another task, what it takes outputs for (a list of batches, if they differ in shape).

        Args:
            model: The method; that of the last `fit` by default.
            datamodule: The clients' data; those of the last `fit` by default, else the embedded sample.
            ckpt_path: The checkpoint: a file, or `last` or `best` of this fit, the config's own run or the newest.
            client: Whose model; the global one by default.
            images: In place of the test set: an .npz with `images`, uint8 [N, H, W] or [N, H, W, C], or a folder.
        """
        self._set_up("predict", model, datamodule, ckpt_path, samples=images is None)
        own = None if images is None else read_own_images(images, self.state.data)
        with command_hooks("predict", self._call):
            return predict(self.state, client, own, self._folder)

    def load(self, model: Model = None, datamodule: Data = None, ckpt_path: str | None = None) -> None:
        """Take up a checkpoint without training or evaluating it, for its states or `network`.

        The data need not be there: a checkpoint knows how inputs are prepared.

        Args:
            model: The method; that of the last `fit` by default.
            datamodule: The clients' data; what the checkpoint knows of them by default.
            ckpt_path: The checkpoint: a file, or `last` or `best` of this fit, the config's own run or the newest.
        """
        self._set_up("load", model, datamodule, ckpt_path, samples=False)

    def network(self, client: int | None = None, with_preprocessing: bool = False) -> torch.nn.Module:
        """The network that `predict` uses: a copy with nothing of the federation around it, on the CPU, in eval mode.

        It takes images in [0, 1], after the steps of `data.augmentation` that are not random, minus `data.mean`, over
        `data.std`, and gives logits ``[N, C]``. A method whose `forward` is not that of one part is given whole.

        Args:
            client: Whose model; the global one by default.
            with_preprocessing: Let it take samples as the data set holds them: uint8 images ``[N, C, H, W]``.
        """
        return own_network(Scorer(self.state), client, with_preprocessing)

    def adapt(
        self, model: Model = None, datamodule: Data = None, ckpt_path: str | None = None, epochs: int = 10
    ) -> list[Row]:
        """Let unseen clients join: each trains locally from the server's state; writes adapt.csv and adapt.png.

        Args:
            model: The method; that of the last `fit` by default.
            datamodule: The clients' data, some of which are unseen.
            ckpt_path: The checkpoint: a file, or `last` or `best` of this fit, the config's own run or the newest.
            epochs: Passes over a new client's samples.
        """
        self._set_up("adapt", model, datamodule, ckpt_path)
        with command_hooks("adapt", self._call):
            rows, failures = adapt(self.state, epochs)
            self._report("adapt.csv", rows, failures, table_of_epochs(rows, self.state.measures))
            if self.is_global_zero and self._folder is not None:
                title = f"{title_of(self.state)}: new clients of {self._folder.name}"
                source, picture = self._folder / "adapt.csv", self._folder / "adapt.png"
                draw_curves(source, picture, metric=self.state.measures.first, title=title, axis_label="epoch")
        return rows

    def _set_up(
        self,
        command: Command,
        given_model: Model,
        datamodule: Data,
        ckpt_path: str | None,
        samples: bool = True,
        run_folder: RunFolder | None = None,
    ) -> tuple[Schedule, ResumePoint]:
        """Check everything that can be checked before the first round, and make or find the run."""
        training = command == "fit"
        model, datamodule, ckpt_path = self._meant(command, given_model, datamodule, ckpt_path)
        self._stop = StopRequest()
        if isinstance(datamodule, FederatedData):
            self._check_devices(datamodule.num_clients)
        launch(self.fabric, self.options)
        path = chosen_checkpoint(self.fabric, ckpt_path, self.options, training)
        if run_folder is not None and path is not None:
            run_folder.resume(path)
        resume_point = read_checkpoint(path)
        data = ready_data(self.fabric, datamodule, ResumePoint() if samples else resume_point)
        schedule = Schedule(check_experiment(command, model, data, self.options, self.fabric), self.options)
        if training or path is not None or self._state is None or self._state.module is not model:
            self._state = fresh_state(self.fabric, model, data, self.options)
            self._state.hosts = self.hosts
        self.state.use(data)
        if path is not None:
            resume(self.state, resume_point, schedule, training)
            self._folder = None if self.options.fast_dev_run else folder_of(path)
        if run_folder is not None:
            self._folder = run_folder.claim()
            self._own_run = run_folder
        self.has_rounds_left = self.state.round < len(schedule)
        return schedule, resume_point

    def _check_devices(self, num_clients: int) -> None:
        """Refuse more processes than there are clients to share, before they are started."""
        devices = str(self.options.devices)
        if devices.isdigit() and int(devices) > num_clients:
            raise ValueError(f"`trainer.devices` is {devices}, but `data.num_clients` is {num_clients}.")

    def _meant(
        self, command: Command, model: Model, datamodule: Data, ckpt_path: str | None
    ) -> tuple[FederatedModule, Data, str | None]:
        """The arguments of a command after a fit: the fit's model and data by default, its `last` and `best`."""
        state = None if command == "fit" else self._state
        run = None if command == "fit" else self._own_run
        if state is not None and model in (None, state.module):
            model = state.module
            if datamodule is None and not state.data.is_placeholder:
                datamodule = state.data
        elif model is None:
            raise ValueError(f"`{command}` needs a `model`: this federation has fitted none.")
        if run is not None and ckpt_path in ("last", "best"):
            if run.path is None or not self.options.enable_checkpointing:
                why = "`trainer.enable_checkpointing` is false" if run.path else "`trainer.fast_dev_run` is true"
                raise ValueError(f"`ckpt_path` {ckpt_path}: {why}, so the fit wrote no checkpoints.")
            ckpt_path = str(run.path / "checkpoints" / f"{ckpt_path}.ckpt")
        return model, datamodule, ckpt_path

    def _report(self, name: str, rows: list[Row], failures: dict[int, Failure], text: str | None = None) -> list[Row]:
        if self.is_global_zero:
            report(rows, name, self.state.round, self._folder, failures, text)
        return rows

    def _call(self, hook: str, *details: Any) -> None:
        for callback in self.options.callbacks:
            if hasattr(callback, hook):
                with refusing_logs(self.state.module, hook):
                    getattr(callback, hook)(self, self.state.module, *details)


OPTIONS = signature(Federation).parameters.keys()
