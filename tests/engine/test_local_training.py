"""Local training: steps, optimisers, schedules, early stopping, BatchNorm."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from toys import SGD, Diary, SmallCNN, Spy, equal, fitted, linear, rows, toy_data

from fedlit import FedAvg, FineTuned, LocalOnly
from fedlit.notices import Notice


def test_local_epochs_steps_and_batch_sizes_can_differ_by_client():
    spy = Spy()
    fitted(spy, toy_data(client_batch_sizes={1: 3}), num_rounds=1, local_epochs=2, client_epochs={2: 5})
    assert spy.steps == {(1, 0): 2 * 3, (1, 1): 2 * 6, (1, 2): 5 * 3}  # 18 samples each
    assert spy.batch_sizes == {0: 8, 1: 3, 2: 8}


def test_batch_norm_trains_where_the_last_batch_would_hold_one_sample():
    network = lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))  # noqa: E731
    fitted(FedAvg(network, SGD), toy_data(size=30, val_size=1), num_rounds=1)
    with pytest.raises(RuntimeError, match=r"see `data.drop_last`"):
        fitted(FedAvg(network, SGD), toy_data(size=30, val_size=1, drop_last=False), num_rounds=1)


class NoLoss(FedAvg):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)


class EverySecondLoss(FedAvg):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if batch_idx == 1 else None


class Manual(NoLoss):
    automatic_optimization = False


def notices_of(method, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted(method(linear, SGD), num_rounds=2, **options)
    return [str(warning.message) for warning in caught if issubclass(warning.category, Notice)]


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_method_whose_steps_all_return_none_is_named_once_with_its_client(timeout):
    [notice] = notices_of(NoLoss, client_timeout=timeout)
    message = "`training_step` of NoLoss returned None in every step of client 0 (3 in all)"
    assert notice == f"{message}, so nothing was trained; return a loss."


@pytest.mark.parametrize("method", [EverySecondLoss, Manual])
def test_a_step_may_be_skipped_and_one_that_steps_itself_need_not_return_a_loss(method):
    assert notices_of(method) == []


def test_local_steps_are_counted_across_epochs():
    spy = Spy()
    fitted(spy, num_rounds=1, local_steps=7)  # of three batches in an epoch
    assert set(spy.steps.values()) == {7}


def test_optimisers_and_networks_can_differ_by_client():
    wide = partial(nn.Linear, 64, 3)
    network = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, 3))  # noqa: E731
    method = LocalOnly(network, SGD, {1: lambda: nn.Sequential(nn.Flatten(), wide())}, {2: partial(SGD, lr=0.0)})
    federation = fitted(method, num_rounds=1)
    states = federation.personal_states
    assert states[0].keys() == states[2].keys() != states[1].keys()
    assert not equal(states[0], states[2])


def test_a_learning_rate_schedule_steps_once_a_round():
    spy = Spy(optimizer=partial(SGD, lr=0.4))
    fitted(spy, num_rounds=4, lr_schedule=partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5))
    assert spy.rates == {1: 0.4, 2: 0.4, 3: 0.2, 4: 0.2}


class RuinedLater(FineTuned):
    """Learns while it federates; in the last round every step climbs the loss."""

    def configure_optimizers(self):
        ruin = self.client is not None and self.client.round == 3
        return torch.optim.SGD(self.parameters(), lr=0.1, maximize=ruin)


@pytest.mark.parametrize(("monitor", "is_kept"), [("loss", True), (None, False)])
def test_early_stopping_goes_back_to_a_copy_of_the_best_state(monitor, is_kept):
    federation = fitted(RuinedLater(linear, SGD, finetune_epochs=6, stop_on=monitor), num_rounds=2)
    assert {equal(state, federation.global_state) for state in federation.personal_states.values()} == {is_kept}


class Counting(FineTuned):
    epochs = Diary(int)

    def on_train_epoch_start(self):
        self.epochs += 1


def test_early_stopping_stops_after_its_patience():
    flat = partial(torch.optim.SGD, lr=0.0)  # nothing changes, so no check after the first is an improvement
    method = Counting(linear, flat, finetune_epochs=200, stop_on="loss")
    fitted(method, toy_data(num_clients=1), num_rounds=1)
    assert method.epochs == 1 + 10 * 5  # one federated epoch; then ten checks, five epochs apart


# --- BatchNorm


def test_batch_norm_is_averaged_with_its_buffers_or_stays_local():
    federation = fitted(FedAvg(SmallCNN, SGD))
    assert "network.1.running_mean" in federation.global_state
    assert federation.global_state["network.1.num_batches_tracked"] == 9
    local = fitted(FedAvg(SmallCNN, SGD), batch_norm="local")
    assert not any(name.startswith("network.1.") for name in local.global_state)
    assert {"network.1.running_mean", "network.1.weight"} <= local.personal_states[0].keys()
    assert not torch.equal(*(local.personal_states[k]["network.1.running_mean"] for k in (0, 1)))
    pooled = [row for row in rows(local) if row["data"] == "pooled"]
    assert pooled == []  # the server cannot run the model alone
