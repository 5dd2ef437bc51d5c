"""The federation: stages, rounds, evaluation and records, on Lightning Fabric."""

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
from lightning.pytorch import Callback
from lightning.pytorch.cli import LRSchedulerCallable
from lightning.pytorch.loggers import Logger
from torchmetrics import Metric

from fedlit.callbacks import as_callbacks
from fedlit.data import FederatedData
from fedlit.engine.adapt import adapt
from fedlit.engine.checks import check_experiment, check_options, make_fabric
from fedlit.engine.evaluation import Scorer
from fedlit.engine.precision import check_precision
from fedlit.engine.processes import any_process, broadcast
from fedlit.engine.run import Run
from fedlit.engine.schedule import Schedule
from fedlit.engine.server import serve
from fedlit.engine.snapshot import restore
from fedlit.engine.visit import Interrupted, KeepOptimizer, set_fast
from fedlit.fast.memory import keep_large_blocks
from fedlit.methods.base import FederatedModule
from fedlit.records import checkpoint
from fedlit.records.fit_log import Books
from fedlit.records.pictures import draw_curves
from fedlit.records.progress import Progress
from fedlit.records.reports import report, tell_which, write_predictions
from fedlit.records.rows import Row
from fedlit.records.run_folder import find_checkpoint, run_folder, stop_signals

Data = FederatedData | None


class Federation:
    """Runs a method over rounds: what `Trainer` is to one model, for a server and its clients.

    Args:
        num_rounds: Rounds of a stage that does not say how many it takes.
        local_epochs: Passes over a client's samples in a visit; 1 unless `local_steps` is given.
        local_steps: Batches in a visit, in place of `local_epochs`.
        client_epochs: Another number of local epochs for some clients, by client id.
        fraction_fit: Fraction in (0, 1] of the clients that take part in a round.
        min_clients: Clients that take part in a round at least.
        eval_every_n_rounds: Rounds between evaluations; the last round of a stage is always evaluated.
        save_every_n_rounds: Rounds between checkpoints; the last round of a stage is always saved.
        monitor: What `best.ckpt` is the best of, such as loss/global_on_own; by default, clients' own accuracy.
        lr_schedule: A torch schedule that is stepped once a round.
        optimizer_state: Kept between visits for `personal` parameters only, for all of them (`keep`) or none (`reset`).
        batch_norm: BatchNorm layers are averaged as everything that is shared, or stay with the client (`local`).
        gradient_clip_val: Largest norm of a gradient; none by default.
        metrics: More torchmetrics metrics, by name; accuracy and loss are always there.
        accelerator: As in Lightning: cpu, gpu, auto ...
        devices: Processes (cpu) or devices that share the clients of a round.
        num_nodes: Machines.
        precision: As in Lightning: 32-true, bf16-mixed, 16-mixed, 64-true ...
        personal_memory: Gigabytes of what stays with clients to hold in memory; the rest goes to files in TMPDIR.
        num_threads: Torch threads per process; the same bits need the same number.
        fast: Faster on a CPU, by other rounding than a plain loop's: still the same bits for the same seed.
        logger: Lightning loggers; true is TensorBoard in the run's folder, false is none.
        callbacks: Callbacks; see fedlit.callbacks.
        default_root_dir: Folder in which `lightning_logs` stands.
        fast_dev_run: One batch of two clients in one round of every stage, and nothing written: does it run at all?
        enable_progress_bar: A bar on a terminal, a line a round elsewhere; off is silence.
        seed: Of every random stream of the run.
    """

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
        seed: int = 0,
    ) -> None:
        self.options = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check_options(self.options)
        self.num_rounds, self.fraction_fit, self.min_clients = num_rounds, fraction_fit, min_clients
        self.monitor, self.lr_schedule, self.batch_norm = monitor, lr_schedule, batch_norm
        self.eval_every_n_rounds, self.save_every_n_rounds = eval_every_n_rounds, save_every_n_rounds
        self.metrics, self.seed, self.num_threads, self.fast = metrics, seed, num_threads, fast
        self.logger, self.default_root_dir = logger, Path(default_root_dir).expanduser()
        self.fast_dev_run, self.enable_progress_bar = fast_dev_run, enable_progress_bar
        self.callbacks = as_callbacks(callbacks)
        self.fabric = make_fabric(accelerator, devices, num_nodes, precision)
        self.should_stop, self.running = False, False
        self.run: Run | None = None
        self._folder: Path | None = None

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
    def global_state(self) -> dict[str, torch.Tensor]:
        """What the server holds."""
        return self.run.global_state

    @property
    def personal_states(self) -> dict[int, dict[str, torch.Tensor]]:
        """What stays with each client."""
        return {k: self.run.personal(k) for k in sorted({*self.run.memories, *self.run.collected})}

    def fit(self, model: FederatedModule, datamodule: Data = None, ckpt_path: str | None = None) -> None:
        """Train a method over its rounds.

        Args:
            model: The method.
            datamodule: The clients' data; the embedded sample by default.
            ckpt_path: A checkpoint to go on from, in its own folder: a file, or `last` or `best` of the newest run.
        """
        schedule = self._set_up(model, datamodule, ckpt_path, training=True)
        self.progress = Progress(len(schedule), self.run.round, self.enable_progress_bar and self.is_global_zero)
        books = Books(self._folder if self.is_global_zero else None, self.logger, self.run, schedule, self.progress)
        if self.run.round >= len(schedule):
            self.progress.say(f"All {len(schedule)} rounds are done; `trainer.num_rounds` says how many there are.")
        self.running = True
        self._call("on_fit_start")
        try:
            with stop_signals(self._stop):
                for number in range(self.run.round + 1, len(schedule) + 1):
                    if any_process(self.fabric, self.should_stop):
                        break
                    self._one_round(number, schedule, books)
        except Interrupted:
            pass  # the round that was begun is forgotten; its clients' states were not touched
        except BaseException:
            books.abandon()
            raise
        self.run.load_global()
        model.client = None
        self._call("on_fit_end")
        books.close(self.options, self.stopped_by)
        self._call("teardown", "fit")
        self.running = False

    def validate(self, model: FederatedModule, datamodule: Data = None, ckpt_path: str | None = None) -> list[Row]:
        """Evaluate every client on its own validation samples, and the global model on the test set too.

        Args:
            model: The method.
            datamodule: The clients' data; the embedded sample by default.
            ckpt_path: The checkpoint to evaluate: a file, or `last` or `best` of the newest run.
        """
        self._set_up(model, datamodule, ckpt_path, training=False)
        return self._report("validate.csv", Scorer(self.run).evaluate(self.run.round))

    def test(self, model: FederatedModule, datamodule: Data = None, ckpt_path: str | None = None) -> list[Row]:
        """Evaluate the global model and every client's own on the pooled test set.

        Args:
            model: The method.
            datamodule: The clients' data; the embedded sample by default.
            ckpt_path: The checkpoint to evaluate: a file, or `last` or `best` of the newest run.
        """
        self._set_up(model, datamodule, ckpt_path, training=False)
        return self._report("test.csv", Scorer(self.run).test())

    def predict(
        self,
        model: FederatedModule,
        datamodule: FederatedData | None = None,
        ckpt_path: str | None = None,
        client: int | None = None,
    ) -> torch.Tensor:
        """Predict the test set, by the global model or by a client's own; writes predictions_*.csv.

        Args:
            model: The method.
            datamodule: The clients' data; the embedded sample by default.
            ckpt_path: The checkpoint to use: a file, or `last` or `best` of the newest run.
            client: Whose model; the global one by default.
        """
        self._set_up(model, datamodule, ckpt_path, training=False)
        probabilities, target = Scorer(self.run).predict(client)
        if self.is_global_zero:
            tell_which(self.run.round, self._folder)
            print(write_predictions(self._folder or Path(), client, probabilities, target))
        return probabilities

    def adapt(
        self, model: FederatedModule, datamodule: Data = None, ckpt_path: str | None = None, epochs: int = 10
    ) -> list[Row]:
        """Let unseen clients join: each trains at home from what the server holds; writes adapt.csv and adapt.png.

        Args:
            model: The method.
            datamodule: The clients' data, some of which are unseen.
            ckpt_path: Where the federation ended: a file, or `last` or `best` of the newest run.
            epochs: Passes over a new client's samples.
        """
        self._set_up(model, datamodule, ckpt_path, training=False)
        rows = self._report("adapt.csv", adapt(self.run, epochs))
        if self.is_global_zero and self._folder is not None:
            draw_curves(self._folder / "adapt.csv", self._folder / "adapt.png")
        return rows

    def _one_round(self, number: int, schedule: Schedule, books: Books) -> None:
        start = perf_counter()
        run, stage, last = self.run, schedule.stage(number), schedule.is_last(number)
        clients = run.sample(stage, number, self.fraction_fit, self.min_clients)
        clients = clients[:2] if self.fast_dev_run else clients
        self._call("on_round_start", number, clients)
        due = last or number % self.eval_every_n_rounds == 0
        # Several processes agree to stop between rounds; one may stop in the middle of a visit.
        should_stop = (lambda: self.stopped_by is not None) if self.fabric.world_size == 1 else bool
        plan_for = partial(schedule.plan, number, self.options, should_stop)
        if stage.side == "clients":
            trained = run.train_round(clients, number, plan_for, due, self.progress.client)
        else:
            trained = serve(run, number, plan_for, self.progress.client)
        scorer = Scorer(run, stage)
        rows = [*trained.rows, *(scorer.evaluate(number) if due else ())]
        trained.failures = {**scorer.failures, **trained.failures}
        improved = run.end_round(number, stage, rows, self.monitor)
        books.round(number, stage, trained, rows, perf_counter() - start)
        if last or improved or number % self.save_every_n_rounds == 0:
            books.save(improved)
        self._call("on_round_end", number, rows)

    def _set_up(self, model: FederatedModule, datamodule: Data, ckpt_path: str | None, training: bool) -> Schedule:
        """Check everything that can be checked before the first round, and make or find the run."""
        self.running, self.should_stop, self.stopped_by = False, False, None
        torch.set_num_threads(self.num_threads)
        keep_large_blocks()
        data = FederatedData() if datamodule is None else datamodule
        if not self.fabric._launched:
            self.fabric.launch()
        check_precision(self.fabric)
        if self.is_global_zero:
            data.prepare_data()
        self.fabric.barrier()
        data.setup()
        stages = check_experiment(model, data, self.options)
        schedule = Schedule(stages, self.num_rounds, self.lr_schedule, self.fast_dev_run)
        path = find_checkpoint(ckpt_path, self.default_root_dir)
        if self.run is not None:
            self.run.data = data
        if training or path is not None or self.run is None or self.run.module is not model:
            self.fabric.setup_module(model)
            set_fast(model, self.fast)
            given = (self.seed, self.batch_norm, self.metrics, self.fast_dev_run, self.options["personal_memory"])
            self.run = Run(self.fabric, model, data, *given)
            self.run.synchronise()
        if path is not None:
            restore(self.run, checkpoint.load(path), str(path), schedule, training)
        if training or path is not None:
            new = training and not self.fast_dev_run and self.is_global_zero
            folder = broadcast(self.fabric, run_folder(path, self.default_root_dir if new else None))
            self._folder = Path(folder) if folder and not self.fast_dev_run else None
        for callback in self.callbacks:
            callback.setup(self, model, "fit" if training else "validate")
        return schedule

    def _report(self, name: str, rows: list[Row]) -> list[Row]:
        if self.is_global_zero:
            report(rows, name, self.run.round, self._folder)
        return rows

    def _stop(self, signal: int) -> None:
        self.should_stop, self.stopped_by = True, signal

    def _call(self, hook: str, *details: Any) -> None:
        for callback in self.callbacks:
            if hasattr(callback, hook):
                getattr(callback, hook)(self, self.run.module, *details)
