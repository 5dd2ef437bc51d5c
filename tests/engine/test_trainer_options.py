"""Options that Lightning's Trainer has: how many batches, how long, how patient, and where the time goes."""

import logging
import os
import time
from datetime import timedelta

import pytest
import torch
from lightning.pytorch.profilers import SimpleProfiler
from toys import SGD, Diary, Spy, equal, fitted, linear, seeded, toy_data

from fedlit import FedAvg
from fedlit.callbacks import FederationCallback, Patience

# --- batches


@pytest.mark.parametrize(("limit", "steps"), [(2, 2), (100, 3), (0.5, 1), (0.01, 1)])
def test_an_epoch_has_as_many_batches_as_said(limit, steps):
    method = Spy()
    fitted(method, num_rounds=1, local_epochs=2, limit_train_batches=limit)  # 18 samples in batches of 8
    assert set(method.steps.values()) == {2 * steps}


class Noting(Spy):
    seen = Diary()

    def training_step(self, batch, batch_idx):
        self.seen.append(batch[0].clone())
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("option", "same"), [("overfit_batches", True), ("limit_train_batches", False)])
def test_the_same_batches_come_in_every_epoch_only_to_be_learned_by_heart(option, same):
    method = Noting()
    fitted(method, toy_data(num_clients=1), num_rounds=1, local_epochs=4, **{option: 2})
    first, second = method.seen[0::2], method.seen[1::2]
    assert all(torch.equal(first[0], x) for x in first) == same
    assert all(torch.equal(second[0], x) for x in second) == same


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit_train_batches": 0}, "`trainer.limit_train_batches` must be at least 1"),
        ({"overfit_batches": 0.0}, r"`trainer.overfit_batches` must be a number of batches, or lie in \(0, 1\]"),
        ({"overfit_batches": 1, "limit_train_batches": 1}, "exclude each other"),
        ({"max_time": "1h"}, '`trainer.max_time` must be "DD:HH:MM:SS"'),
        ({"max_time": 3600}, "in quotes, got 3600"),
        ({"profiler": "clock"}, "`trainer.profiler` must be simple, advanced or a profiler of lightning"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fitted(FedAvg(linear, SGD), **options)


class Sleeps(FederationCallback):
    def on_round_start(self, federation, module, round, clients):
        time.sleep(0.06)


def test_a_fit_ends_with_the_round_in_which_its_time_is_over_and_what_is_resumed_counts(tmp_path):
    options = {"num_rounds": 50, "default_root_dir": str(tmp_path), "callbacks": [Sleeps()], "save_every_n_rounds": 100}
    method = FedAvg(linear, SGD)
    stopped = fitted(method, max_time=timedelta(seconds=0.1), **options)
    done = stopped.state.round
    assert 1 <= done <= 2
    again = fitted(method, ckpt_path="last", max_time=timedelta(seconds=0.1), **options)
    assert again.state.round == done
    more = fitted(method, ckpt_path="last", max_time={"seconds": 0.3}, **options)
    assert done < more.state.round < 50
    more = fitted(method, ckpt_path="last", max_time="00:00:00:01", **options)
    assert more.state.round < 50
    assert torch.load(tmp_path / "lightning_logs/version_0/checkpoints/last.ckpt")["round"] == more.state.round


@pytest.mark.parametrize(("metric", "rounds"), [("loss/global_on_own", 2), ("acc/global_on_own", 3)])
def test_patience_ends_a_fit_some_rounds_after_the_best(metric, rounds, tmp_path):
    options = {"callbacks": [Patience(rounds, metric)], "num_rounds": 40, "default_root_dir": str(tmp_path)}
    wild = FedAvg(linear, lambda parameters: torch.optim.SGD(parameters, lr=5.0))
    federation = fitted(wild, **options)
    best = federation.state.scores.best[metric]["round"]
    assert federation.state.round == best + rounds < 40
    resumed = fitted(wild, ckpt_path="last", **options)
    assert resumed.state.round == best + rounds  # it had none left


def test_a_profiler_reports_where_the_time_went(caplog, tmp_path):
    with caplog.at_level(logging.INFO):
        fitted(FedAvg(linear, SGD), num_rounds=2, profiler="simple")
    assert all(word in caplog.text for word in ("local_training", "evaluate", "record", "save"))
    profiler = SimpleProfiler(filename="times")
    federation = fitted(seeded(FedAvg, linear, SGD), num_rounds=2, profiler=profiler)
    assert len(profiler.recorded_durations["local_training"]) == 6
    [file] = tmp_path.rglob("*times*.txt")
    assert file.parent.name == "version_1"
    assert equal(federation.global_state, fitted(seeded(FedAvg, linear, SGD), num_rounds=2).global_state)


def test_a_pair_of_loss_and_more_is_refused_with_what_to_return():
    class Pair(FedAvg):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx), {"more": 1}

    with pytest.raises(ValueError, match=r"must return a loss, a mapping .* got a tuple; .* that mapping, or to `self"):
        fitted(Pair(linear, SGD))


@pytest.fixture
def _torch_as_before(monkeypatch):
    mode = torch.get_deterministic_debug_mode()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.set_deterministic_debug_mode(mode)


class Seeing(Spy):
    seen = Diary()

    def training_step(self, batch, batch_idx):
        self.seen = (torch.get_deterministic_debug_mode(), os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
        return super().training_step(batch, batch_idx)


@pytest.mark.usefixtures("_torch_as_before")
@pytest.mark.parametrize(
    ("deterministic", "seen"),
    [(True, (2, ":4096:8")), ("warn", (1, ":4096:8")), (False, (0, None)), (None, (1, None))],
)
def test_deterministic_sets_what_lightnings_trainer_sets(deterministic, seen):
    torch.use_deterministic_algorithms(True, warn_only=True)  # which is left alone by default
    torch.backends.cudnn.benchmark = True
    method = Seeing()
    fitted(method, num_rounds=1, deterministic=deterministic)
    assert method.seen == seen
    assert torch.backends.cudnn.benchmark is (not deterministic)


class Undetermined(FedAvg):
    def training_step(self, batch, batch_idx):
        torch.zeros(3).put_(torch.tensor([1, 1]), torch.ones(2))
        return super().training_step(batch, batch_idx)


@pytest.mark.usefixtures("_torch_as_before")
def test_what_torch_refuses_names_the_option():
    with pytest.raises(RuntimeError, match=r"put_ does not have a deterministic .* \(see `trainer.deterministic`\)"):
        fitted(Undetermined(linear, SGD), num_rounds=1, deterministic=True)
    fitted(Undetermined(linear, SGD), num_rounds=1, deterministic=False)


def test_more_processes_than_clients_are_refused_before_they_start():
    with pytest.raises(ValueError, match=r"^`trainer.devices` is 4, but `data.num_clients` is 3\.$"):
        fitted(FedAvg(linear, SGD), devices=4)
