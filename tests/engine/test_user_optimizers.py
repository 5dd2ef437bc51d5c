"""A user's own optimiser, or what a user does to one in a visit, has the effect that it has under the Trainer."""

from functools import partial

import pytest
import torch
from test_lightning import in_federation, network, seeded, under_trainer
from torch import nn
from toys import Diary, equal, fitted, toy_data

from fedlit import FedAvg
from fedlit.engine.optimisation import revived

PLAIN = partial(torch.optim.SGD, lr=0.1)


class Sharp(torch.optim.SGD):
    """Sharpness-aware, if it is given a closure: the gradient of a worse place near by."""

    @torch.no_grad()
    def step(self, closure=None):
        if closure is None:
            return super().step()
        with torch.enable_grad():
            loss = closure()
        parameters = self.param_groups[0]["params"]
        ways = [0.05 * parameter.grad for parameter in parameters]
        torch._foreach_add_(parameters, ways)
        with torch.enable_grad():
            closure()
        torch._foreach_sub_(parameters, ways)
        super().step()
        return loss


class Demanding(torch.optim.SGD):
    """Needs a closure."""

    def step(self, closure):
        loss = closure()
        super().step()
        return loss


def shrink(optimizer, *_):
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.grad is not None:  # under the Trainer, those of the step before
            parameter.grad.mul_(0.1)


class Watched(FedAvg):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        optimizer.register_step_pre_hook(shrink)
        return optimizer


def grow(optimizer, *_):
    optimizer.param_groups[0]["lr"] *= 1.1


class Decays(FedAvg):
    def training_step(self, batch, batch_idx):
        self.optimizers().param_groups[0]["weight_decay"] = 0.5 * (batch_idx > 0)
        return super().training_step(batch, batch_idx)


class Gains(FedAvg):
    def on_train_epoch_end(self):
        self.optimizers().param_groups[0]["momentum"] = 0.9


class Grows(FedAvg):
    """The first layer joins in the second epoch."""

    def parameters_of(self, client):
        return self.network[4].parameters()

    def on_train_epoch_end(self):
        if self.current_epoch == 0:
            self.optimizers().optimizer.add_param_group({"params": list(self.network[0].parameters())})


USERS = {
    "an optimiser that uses a closure": (FedAvg, partial(Sharp, lr=0.1)),
    "an optimiser that needs a closure": (FedAvg, partial(Demanding, lr=0.1)),
    "a hook before a step": (Watched, PLAIN),
    "decay set in a step": (Decays, PLAIN),
    "momentum set after an epoch": (Gains, PLAIN),
    "a group added after an epoch": (Grows, PLAIN),
}
SAME_AS_PLAIN = {"an optimiser that needs a closure", "a hook before a step"}


@pytest.mark.parametrize(("kind", "optimizer"), USERS.values(), ids=USERS)
def test_a_user_s_optimiser_does_what_it_does_under_the_trainer(kind, optimizer):
    build = partial(seeded, kind, network, optimizer)
    assert equal(in_federation(build).state_dict(), under_trainer(build).state_dict())


@pytest.mark.parametrize("name", sorted(USERS.keys() - SAME_AS_PLAIN))
def test_those_above_do_not_end_as_plain_sgd_does(name):
    kind, optimizer = USERS[name]
    own = in_federation(partial(seeded, kind, network, optimizer))
    plain = in_federation(partial(seeded, FedAvg, network, PLAIN))
    assert not equal(own.state_dict(), plain.state_dict())


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))


def num_gradients(method):
    return sum(parameter.grad is not None for parameter in method.parameters())


class Looks(FedAvg):
    """Notes how many gradients there are, of a network whose steps could do without them."""

    seen = Diary(lambda: {"weight": [], "epoch": [], "aggregate": []})

    def client_weight(self, client):
        self.seen["weight"].append(num_gradients(self))
        return super().client_weight(client)

    def on_train_epoch_start(self):
        self.seen["epoch"].append(num_gradients(self))

    def aggregate(self, uploads, current):
        def watched():
            for upload in uploads:
                self.seen["aggregate"].append(num_gradients(self))
                yield upload

        return super().aggregate(watched(), current)


class HookedLooks(Looks):
    def on_after_backward(self):
        pass


@pytest.mark.parametrize("kind", [Looks, HookedLooks])
def test_gradients_are_there_between_steps_and_end_with_the_visit(kind):
    method = kind(perceptron, PLAIN)
    fitted(method, toy_data(num_clients=2), num_rounds=1, local_epochs=2)
    assert method.seen == {"weight": [4, 4], "epoch": [0, 4, 0, 4], "aggregate": [0, 0]}


SETTINGS = {"plain": {}, "fused": {"fused": True}, "capturable": {"capturable": True}}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam])
def test_what_an_optimiser_kept_comes_back_to_where_it_would_have_been_made(kind, settings):
    """From a CPU to a device, for one: a fused Adam needs its counter there, a plain one reads it in each step."""
    parameter = nn.Parameter(torch.ones(2, 3))
    parameter.grad = torch.ones(2, 3)
    before = kind([parameter])
    before.step()
    on_device = nn.Parameter(torch.empty(2, 3, device="meta"))
    group = {**before.param_groups[0], **settings}
    found = revived(before.state[parameter], on_device, group)
    counters = {"step", "mu_product"} & found.keys()
    assert {found[name].device.type for name in counters} == {"meta" if settings else "cpu"}
    assert {value.device.type for name, value in found.items() if name not in counters} == {"meta"}


def test_a_history_of_tensors_comes_back_to_the_device_as_a_copy():
    """LBFGS keeps lists, and appends to them."""
    parameter = nn.Parameter(torch.empty(3, device="meta"))
    kept = {"old_dirs": [torch.ones(3), torch.ones(3)], "al": [None], "n_iter": 2}
    found = revived(kept, parameter, {})
    assert [direction.device.type for direction in found["old_dirs"]] == ["meta", "meta"]
    assert found["old_dirs"] is not kept["old_dirs"]
    assert [found["al"], found["n_iter"]] == [[None], 2]
