"""Every line of docs/lightning.md: what it says is called is called, what it says is refused is refused."""

import inspect
import re
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from lightning.pytorch.core.mixins import HyperparametersMixin
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from toys import SGD, Diary, Spy, equal, fitted, linear, rows, seeded, toy_data

from fedlit import FedAvg, FineTuned
from fedlit.methods import Stage

PAGE = (Path(__file__).parents[2] / "docs" / "lightning.md").read_text()


def table(section: str) -> dict[str, str]:
    """What a section says of each name."""
    _, _, text = PAGE.partition(f"## {section}\n")
    lines = [line.split("|") for line in text.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return {name: cells[2].strip() for cells in lines for name in re.findall(r"`([^`]+)`", cells[1])}


HOOKS, NAMES, ARGUMENTS = table("Hooks"), table("Attributes and methods"), table("`self.log`")


def named(said: str) -> set[str]:
    return {name for name, status in (HOOKS | NAMES).items() if status == said}


CALLED = named("called") - {"configure_optimizers", "training_step", "forward"}


def test_the_whole_surface_of_lightning_is_in_the_table():
    surface = set()
    for kind in (LightningModule, ModelHooks, DataHooks, CheckpointHooks, HyperparametersMixin):
        surface |= {name for name, value in vars(kind).items() if hasattr(value, "__get__") and name[0] != "_"}
    assert surface - (HOOKS | NAMES).keys() == set()
    assert set(inspect.signature(LightningModule.log).parameters) - {"self", "name"} == ARGUMENTS.keys()


def overriding(kind: type, *hooks: str) -> type:
    """A method with hooks that do what they did."""
    return type("Mine", (kind,), {hook: lambda self, *args, h=hook: getattr(kind, h)(self, *args) for hook in hooks})


@pytest.mark.parametrize("hook", sorted(named("refused")))
def test_a_hook_that_is_refused_is_refused_by_name_before_the_first_round(hook):
    method = overriding(FedAvg, hook)(linear, SGD)
    method.on_client_start = lambda client: pytest.fail("local training has begun")
    with pytest.raises(ValueError, match=rf"^`model`: Mine overrides `{hook}`, which a federation never calls: \w+"):
        fitted(method)


@pytest.mark.parametrize("command", ["test", "predict"])
def test_a_hook_of_a_command_is_refused_there_and_nowhere_else(command):
    data = toy_data(unseen_clients=1)
    plain = FedAvg(linear, SGD)
    federation = fitted(plain, data, num_rounds=1)
    getattr(federation, command)(plain, data)
    for hook in sorted(named(f"refused in {command}")):
        with pytest.raises(ValueError, match=f"Mine overrides `{hook}`, but `fedlit {command}` calls `forward`"):
            getattr(federation, command)(overriding(FedAvg, hook)(linear, SGD), data)
    method = overriding(FedAvg, f"{command}_step")(linear, SGD)
    federation = fitted(method, data, num_rounds=1)
    federation.validate(method, data)
    federation.adapt(method, data, epochs=1)


def test_a_hook_of_a_method_whose_stages_train_its_parts_is_refused():
    class Whole(FedAvg):
        def __init__(self):
            super().__init__(linear, SGD)
            self.part = FedAvg(linear, SGD)

        def configure_stages(self):
            return [Stage("part", module=self.part)]

    for hook in sorted(CALLED):
        with pytest.raises(ValueError, match=f"Mine overrides `{hook}`, but its stages train FedAvg; override"):
            fitted(overriding(Whole, hook)())


def test_an_argument_that_no_step_gets_is_refused():
    class Mine(FedAvg):
        def training_step(self, batch, dataloader_iter):
            pass

    with pytest.raises(ValueError, match="`training_step` of Mine takes `dataloader_iter`"):
        fitted(Mine(linear, SGD))


class Uses(FedAvg):
    seen = Diary()

    def __init__(self, use, automatic=True):
        super().__init__(linear, SGD)
        self.use, self.automatic_optimization = use, automatic

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.seen.append(self.use(self, loss))
        return loss


def first_of(use, automatic=True, **options):
    method = Uses(use, automatic)
    fitted(method, toy_data(num_clients=1), num_rounds=1, **options)
    return method.seen


def manual(self, loss):
    optimizer = self.optimizers()
    self.manual_backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return self.global_step, self.lr_schedulers()


def lengths(self, loss):
    trainer = self.trainer
    return trainer.max_epochs, trainer.num_training_batches, trainer.max_steps


def clipped(self, loss):
    loss.backward(retain_graph=True)
    self.clip_gradients(self.optimizers(), 0.1)


def toggled(self, loss):
    optimizer = self.optimizers()
    with self.toggled_optimizer(optimizer):
        self.toggle_optimizer(optimizer)
        self.untoggle_optimizer(optimizer)
    return all(parameter.requires_grad for parameter in self.parameters())


WORKS = {
    ("current_epoch", "global_step"): (lambda self, _: (self.current_epoch, self.global_step), True, (1, 13)),
    ("trainer",): (lengths, True, (2, 7, -1)),
    ("optimizers", "lr_schedulers", "automatic_optimization", "manual_backward"): (manual, False, (14, None)),
    ("toggle_optimizer", "untoggle_optimizer", "toggled_optimizer"): (toggled, False, True),
    ("clip_gradients",): (clipped, False, None),
    ("print",): (lambda self, _: self.print("x", end=""), True, None),
    ("global_rank", "local_rank"): (lambda self, _: (self.global_rank, self.local_rank), True, (0, 0)),
    ("fabric",): (lambda self, _: self.fabric, True, None),
}


@pytest.mark.parametrize(("use", "automatic", "last"), WORKS.values(), ids=map(" ".join, WORKS))
def test_what_works_gives_what_the_trainer_would(use, automatic, last):
    seen = first_of(use, automatic, local_epochs=2)
    assert len(seen) == 14
    assert seen[-1] == last


ENDS = {
    "logger": (lambda self, _: self.logger, "`self.logger` is the federation's"),
    "loggers": (lambda self, _: self.loggers, "`self.loggers` is the federation's"),
    "all_gather": (lambda self, loss: self.all_gather(loss), "`self.all_gather` has no meaning in local training"),
}


def test_every_attribute_of_the_table_is_tried():
    elsewhere = {"log", "log_dict", "hparams", "hparams_initial", "save_hyperparameters"}  # below, and test_checks.py
    assert named("works") == {name for names in WORKS for name in names} | elsewhere
    assert named("ends the run") == ENDS.keys()


@pytest.mark.parametrize(
    ("use", "message"),
    [*ENDS.values(), (lambda self, _: self.trainer.fit_loop, r"`self.trainer.fit_loop` has no meaning.*global_step")],
)
def test_what_would_go_wrong_for_every_client_ends_the_run(use, message):
    with pytest.raises(ValueError, match=message):
        first_of(use)


def logged(use, **options) -> dict[str, float]:
    method = Uses(use)
    federation = fitted(method, toy_data(num_clients=1), num_rounds=1, **options)
    return {row["metric"]: float(row["value"]) for row in rows(federation) if row["data"] == "train"}


def test_values_are_reduced_as_asked_for():
    def use(self, loss):
        step = float(self.global_step)  # 0 to 6
        self.log("mean", step, prog_bar=True, sync_dist=True, rank_zero_only=True)
        self.log_dict({"max": step}, reduce_fx="max")
        self.log("min", step + 1, reduce_fx=torch.min)
        self.log("sum", step, reduce_fx="sum", on_epoch=True)
        self.log("weighted", torch.tensor(step), batch_size=3 if step == 6 else 1)
        self.log("last", step, False, None, True, False, "max")
        self.log("nowhere", step, logger=False)
        self.log("never", step, on_step=False, on_epoch=False)

    expected = {"mean": 3.0, "max": 6.0, "min": 1.0, "sum": 21.0, "weighted": 33 / 9, "last": 6.0}
    assert logged(use) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_graph": True}, "enable_graph=True.* has no meaning in a federation"),
        ({"sync_dist_group": 1}, "sync_dist_group.* has no meaning in a federation"),
        ({"reduce_fx": torch.median}, "must be mean, sum, max or min"),
        ({"value": "text"}, "takes a number, a tensor of one element or a torchmetrics Metric"),
        ({"on_stepp": True}, "there is no such argument"),
    ],
)
def test_an_argument_without_a_meaning_ends_the_run(options, message):
    arguments = {"value": 1.0, **options}
    with pytest.raises(ValueError, match=message):
        logged(lambda self, _: self.log("x", **arguments))
    assert logged(lambda self, _: self.log("x", 1.0)) == {"x": 1.0}


def test_what_is_logged_by_step_and_by_epoch_has_both_names_in_callback_metrics():
    def use(self, loss):
        self.log("x", self.global_step, on_step=True, on_epoch=True)
        self.log("y", 1.0)
        return {name: float(value) for name, value in self.trainer.callback_metrics.items()}

    assert first_of(use)[2] == {"x": 1.0, "x_step": 2.0, "x_epoch": 1.0, "y": 1.0}
    assert logged(use) == {"x": 3.0, "y": 1.0}


class LogsEverywhere(FedAvg):
    def aggregate(self, uploads, current):
        uploads = list(uploads)
        self.log("uploads", len(uploads))
        return super().aggregate(uploads, current)

    def probe(self, client):
        assert not self.training
        self.log("logged", client.id)
        return {"returned": client.id + 0.5}


def test_what_aggregate_and_probe_log_is_recorded():
    federation = fitted(LogsEverywhere(linear, SGD), num_rounds=2)
    found = {}
    for row in rows(federation):
        found.setdefault(row["metric"], []).append((row["client"], row["model"], row["data"], float(row["value"])))
    assert found["uploads"] == [("all", "global", "server", 3.0)] * 2
    assert found["logged"] == [(str(k), "global", "own", float(k)) for k in range(3)] * 2
    assert found["returned"] == [(str(k), "global", "own", k + 0.5) for k in range(3)] * 2
    assert len(found["train_loss"]) == 6  # as without other logs


@pytest.mark.parametrize("where", ["on_train_start", "client_weight"])
def test_what_no_round_could_record_is_refused_by_name(where):
    mine = type("Mine", (FedAvg,), {"client_weight": lambda self, client: self.log("x", 1.0)})
    logs = LambdaCallback(on_train_start=lambda trainer, method: method.log("x", 1.0))
    method, callbacks = (FedAvg, logs) if where == "on_train_start" else (mine, None)
    with pytest.raises(ValueError, match=rf"^`self.log\('x', ...\)` in `{where}` would be recorded nowhere; log in"):
        fitted(method(linear, SGD), callbacks=callbacks)


def test_one_name_has_one_reduction():
    def use(self, loss):
        self.log("x", 1.0)
        self.log("x", 1.0, reduce_fx="max")

    with pytest.raises(ValueError, match=r"'x'.* is (mean|max) in one place and (mean|max) in another"):
        logged(use)


def test_the_table_of_arguments_is_tried():
    assert {name for name, said in ARGUMENTS.items() if said == "ends the run"} == {"enable_graph", "sync_dist_group"}
    assert set(ARGUMENTS.values()) == {"works", "ends the run", "no effect"}


class Measured(FedAvg):
    samples = Diary()

    def __init__(self):
        super().__init__(linear, SGD)
        self.accuracy = MulticlassAccuracy(3, average="micro")
        self.others = MetricCollection({"f1": MulticlassF1Score(3), "mean_acc": MulticlassAccuracy(3)})

    def training_step(self, batch, batch_idx):
        z = self(batch[0])
        self.accuracy(z, batch[1])
        self.others.update(z, batch[1])
        self.log("train_acc", self.accuracy, on_epoch=True)
        self.log_dict(self.others)
        return F.cross_entropy(z, batch[1])

    def on_train_end(self):
        self.samples.append(int(self.accuracy.tp + self.accuracy.fn))


def test_a_metric_is_computed_after_local_training_begins_anew_and_changes_nothing():
    method = seeded(Measured)
    federation = fitted(method, num_rounds=2)
    assert equal(federation.global_state, fitted(seeded(FedAvg, linear, SGD), num_rounds=2).global_state)
    found = {row["metric"]: float(row["value"]) for row in rows(federation) if row["data"] == "train"}
    assert found.keys() == {"train_acc", "f1", "mean_acc"}
    assert all(0.0 < value <= 1.0 for value in found.values())
    assert method.samples == [18] * 6  # each client's own, however many came before


def test_a_metric_with_persistent_state_is_refused():
    method = Measured()
    method.accuracy.persistent(True)
    with pytest.raises(ValueError, match="the metric 'accuracy' of Measured has persistent state"):
        fitted(method)


class Validated(FineTuned):
    number = Diary(int)

    def on_fit_start(self):
        super().on_fit_start()
        self.number = 0

    def on_validation_epoch_end(self):
        self.number += 1
        self.log("validation", self.number)
        assert (self.trainer.training, self.trainer.validating) == (False, True)


def test_validation_comes_with_every_check_of_early_stopping():
    flat = partial(torch.optim.SGD, lr=0.0)  # the first check stays the best
    method = Validated(linear, flat, finetune_epochs=10, stop_on="loss")
    federation = fitted(method, toy_data(num_clients=1), num_rounds=1)
    found = [(row["stage"], float(row["value"])) for row in rows(federation) if row["metric"] == "validation"]
    assert found == [("federate", 1.0), ("finetune", 1.0)]
    assert method.number == 3  # before the first epoch, after five and after ten


def test_validation_must_not_log_under_the_name_of_what_is_measured_on_the_same_samples():
    class Mine(FedAvg):
        def validation_step(self, batch, batch_idx):
            self.log("acc", 1.0)

    with pytest.raises(ValueError, match=r"`self.log\('acc', ...\)` in validation: the federation measures 'acc'"):
        fitted(Mine(linear, SGD), num_rounds=1)


class Decaying(Spy):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def test_a_schedule_of_local_training_begins_anew_from_the_rate_of_the_round():
    method = Decaying(optimizer=partial(torch.optim.SGD, lr=0.4))
    by_round = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.1)
    fitted(method, num_rounds=3, local_epochs=2, lr_schedule=by_round)
    assert method.rates == pytest.approx({1: 0.1, 2: 0.1, 3: 0.01})
