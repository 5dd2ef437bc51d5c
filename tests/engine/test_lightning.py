"""Local training is a `fit`: one client with all data sees what the Trainer would show it, hook by hook, bit by bit."""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from test_lightning_table import CALLED
from torch import nn
from toys import SGD, Diary, equal, fitted, seeded, toy_data

from fedlit import FedAvg
from fedlit.methods.base import FederatedModule
from fedlit.notices import Notice
from fedlit.rng import generator


def network():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def recording(kind: type[FederatedModule], hooks=CALLED) -> type[FederatedModule]:
    """The same class, with a note of every hook before it does what it did."""

    def noted(name):
        original = getattr(kind, name)

        def hook(self, *args, **options):
            numbers = [value for value in args if isinstance(value, int)]
            outputs = [sorted(value) for value in args if isinstance(value, dict)]
            self.calls.append((name, *numbers, *outputs, self.current_epoch, self.global_step, self.training))
            return original(self, *args, **options)

        return hook

    steps = {"training_step", "configure_optimizers"}
    return type(kind.__name__, (kind,), {"calls": Diary(), **{name: noted(name) for name in {*hooks, *steps}}})


def under_trainer(build, epochs: int = 2, **options) -> FederatedModule:
    data = toy_data(num_clients=1)
    data.setup()
    client = data.client(0, 1)
    method = build()
    method.calls = []
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=epochs, **{**quiet, **options})
    trainer.fit(method, client.train_batches(generator(0, "batches", "federate", 1, 0)), client.val_batches())
    return method


def in_federation(build, epochs: int = 2, **options) -> FederatedModule:
    method = build()
    method.calls = []
    federation = fitted(method, toy_data(num_clients=1), num_rounds=1, local_epochs=epochs, **options)
    method.load_state_dict(federation.global_state)
    return method


class Plain(FedAvg):
    """Nothing of its own."""


class OwnUpdate(FedAvg):
    """Adds gradients of two batches up and steps twice as far on every second batch, through hooks."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 + batch_idx % 2)
        optimizer.step(closure=optimizer_closure)

    def backward(self, loss):
        (2 * loss).backward()

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="value")

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        if batch_idx % 2 == 0:
            optimizer.zero_grad()

    def on_before_optimizer_step(self, optimizer):
        for parameter in self.parameters():
            parameter.grad.mul_(0.25)


class Skips(FedAvg):
    """Leaves the second epoch after two batches, and a batch of the first without a loss."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.current_epoch == 1 and batch_idx == 2 else None

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return {"loss": loss, "size": len(batch[1])} if batch_idx != 1 else None


class Stops(FedAvg):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.trainer.should_stop = batch_idx == 3


class TwoOptimisers(FedAvg):
    """Manual: body and head by turns, one of them frozen meanwhile."""

    def __init__(self, *args):
        super().__init__(*args)
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(self.network[0].parameters(), lr=0.1), torch.optim.Adam(self.network[4].parameters())]

    def training_step(self, batch, batch_idx):
        x, y = batch
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(F.cross_entropy(self(x), y))
            self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            optimizer.step()
            self.untoggle_optimizer(optimizer)


class Closures(TwoOptimisers):
    """The same by closures, in Lightning's own context."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        for optimizer in self.optimizers():

            def closure(optimizer=optimizer):
                optimizer.zero_grad()
                self.manual_backward(F.cross_entropy(self(x), y))

            with optimizer.toggle_model():
                optimizer.step(closure=closure)


class Scheduled(FedAvg):
    """One schedule by steps, one by epochs."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        by_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return [optimizer], [{"scheduler": by_step, "interval": "step", "frequency": 2}, by_epoch]


class Cycle(FedAvg):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Plateau(FedAvg):
    """Halves its rate as soon as its own validation is worse than zero."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0)
        return {"optimizer": optimizer, "lr_scheduler": schedule, "monitor": "val_loss"}


class Quasi(FedAvg):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class FrozenWhenMade(FedAvg):
    def __init__(self, *args):
        super().__init__(*args)
        self.network[1].eval()


KINDS = [Plain, OwnUpdate, Skips, Stops, TwoOptimisers, Closures, Scheduled, Cycle, Plateau, Quasi, FrozenWhenMade]


pytestmark = pytest.mark.filterwarnings("ignore:.*in eval(uation)? mode")  # Lightning warns, and so do we


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_come_as_under_the_trainer_and_weights_end_the_same(kind):
    build = partial(seeded, recording(kind), network, SGD)
    theirs, ours = under_trainer(build), in_federation(build)
    assert ours.calls == theirs.calls
    assert equal(ours.state_dict(), theirs.state_dict())
    assert {"on_train_batch_end", "validation_step", "on_fit_end"} <= {name for name, *_ in ours.calls}


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in (Plain, TwoOptimisers, Closures, Quasi)])
def test_the_methods_above_do_not_train_as_if_they_had_no_hooks(kind):
    plain, own = (in_federation(partial(seeded, k, network, SGD)).state_dict() for k in (Plain, kind))
    assert not equal(plain, own)


def test_a_gradient_is_clipped_as_under_the_trainer():
    build = partial(seeded, recording(Plain), network, SGD)
    clipped = {"gradient_clip_val": 0.05}
    assert equal(under_trainer(build, **clipped).state_dict(), in_federation(build, **clipped).state_dict())
    assert not equal(under_trainer(build, **clipped).state_dict(), in_federation(build).state_dict())


@pytest.mark.parametrize("hook", sorted(CALLED - {"lr_scheduler_step"}))
def test_a_hook_that_alone_is_overridden_is_called(hook):
    method = in_federation(partial(seeded, recording(Plain, {hook}), network, SGD), epochs=1)
    assert hook in {name for name, *_ in method.calls}


class Moody(FedAvg):
    """Notes the modes that local training begins in, and leaves others behind."""

    modes = Diary()

    def __init__(self, *args):
        super().__init__(*args)
        self.network[2].eval()

    def on_fit_start(self):
        self.modes.append([part.training for part in self.modules()])
        self.network.train(self.client.id == 1)


def test_local_training_begins_in_the_modes_that_the_method_was_made_in():
    method = Moody(network, SGD)
    made = [part.training for part in method.modules()]
    assert made.count(False) == 1
    federation = fitted(method, num_rounds=2)
    assert method.modes == [made] * 6
    assert [part.training for part in method.modules()] == made
    federation.test(method, toy_data())
    assert [part.training for part in method.modules()] == made


def test_training_with_parts_in_evaluation_mode_gives_a_notice():
    with pytest.warns(Notice, match=r"FrozenWhenMade is trained with parts in evaluation mode, .*: network.1\."):
        fitted(FrozenWhenMade(network, SGD), num_rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        fitted(Plain(network, SGD), num_rounds=1)
