"""A user's own optimiser, or what a user does to one in training, has the effect that it has under the Trainer."""

from functools import partial

import pytest
import torch
from test_lightning import in_federation, network, under_trainer
from toys import equal, seeded

from fedlit import FedAvg

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
MOMENTUM = partial(PLAIN, momentum=0.9)
OPTIMIZERS = {
    "SGD": PLAIN,
    "decay": partial(PLAIN, weight_decay=0.1, maximize=True),
    "dampening": partial(MOMENTUM, dampening=0.2, weight_decay=0.1),
    "Nesterov": partial(MOMENTUM, nesterov=True),
    "foreach": partial(MOMENTUM, foreach=False),
    "Adam": partial(torch.optim.Adam, weight_decay=0.1),
    "AMSGrad": partial(torch.optim.Adam, amsgrad=True),
    "AdamW": partial(torch.optim.AdamW, betas=(0.8, 0.99), eps=1e-6),
    "RMSprop": torch.optim.RMSprop,
    "a rate that is a tensor": partial(torch.optim.Adam, lr=torch.tensor(0.1)),
}
USERS.update({name: (FedAvg, optimizer) for name, optimizer in OPTIMIZERS.items()})
SAME_AS_PLAIN = {"SGD", "an optimiser that needs a closure", "a hook before a step"}


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
