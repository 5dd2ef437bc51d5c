"""The loop: who takes part, what is left out, what is measured."""

import pytest
import torch
from lightning.pytorch import Trainer
from toys import SGD, SmallCNN, Spy, equal, fitted, linear, rows, seeded, toy_data

from fedlit import FedAvg, FineTuned, LocalOnly
from fedlit.partition import Dirichlet

# --- who takes part


@pytest.mark.parametrize(("fraction", "min_clients", "expected"), [(0.3, 1, 3), (0.01, 1, 1), (0.1, 4, 4)])
def test_a_round_has_as_many_clients_as_asked_for(fraction, min_clients, expected):
    spy = Spy()
    fitted(spy, toy_data(num_clients=10), fraction_fit=fraction, min_clients=min_clients, num_rounds=2)
    assert [len([v for v in spy.trained if v[0] == r]) for r in (1, 2)] == [expected] * 2


def test_the_sample_of_a_round_follows_from_the_seed_alone():
    drawn = []
    for seed in (0, 0, 1):
        spy = Spy()
        fitted(spy, toy_data(num_clients=10), fraction_fit=0.3, num_rounds=4, seed=seed)
        drawn.append(spy.trained)
    assert drawn[0] == drawn[1] != drawn[2]


def test_clients_that_opt_out_or_are_unseen_never_train_in_a_federated_stage():
    spy = Spy()
    fitted(spy, toy_data(num_clients=6, opt_out=[1, 4], unseen_clients=1), num_rounds=2)
    assert {k for _, k in spy.trained} == {0, 2, 3}


@pytest.mark.parametrize("is_shared", [False, True])
def test_opted_out_samples_change_no_upload_whatever_they_are_and_shared_ones_do(is_shared):
    plain, changed = (toy_data(opt_out_samples=0.4, partition=Dirichlet(1.0, 8)) for _ in range(2))
    changed.setup()
    for k in range(3):
        samples = changed.assignment.train[k][changed.assignment.opted_in[k] == is_shared]
        assert len(samples) > 0
        changed.images.train_x[samples] *= 2
    states = [fitted(seeded(FedAvg, SmallCNN, SGD), data).global_state for data in (plain, changed)]
    assert equal(*states) != is_shared


def test_a_round_without_a_single_usable_client_is_an_error_with_its_reason():
    class AllFail(FedAvg):
        def training_step(self, batch, batch_idx):
            raise KeyError("forgotten")

    message = r"Every client of round 1 failed; client 0: KeyError: 'forgotten' \(test_federation.py, line \d+\)\nTrac"
    with pytest.raises(RuntimeError, match=message):
        fitted(AllFail(linear, SGD))


class Undeclared(FedAvg):
    def aggregate(self, uploads, current):
        return {**super().aggregate(uploads, current), "extra": torch.zeros(1)}


def test_an_aggregate_that_is_not_the_shared_state_is_an_error():
    with pytest.raises(ValueError, match="undeclared 'extra'"):
        fitted(Undeclared(linear, SGD))


def test_every_client_is_evaluated_and_every_number_says_which_model_on_whose_data():
    federation = fitted(FineTuned(linear, SGD), toy_data(num_clients=4), fraction_fit=0.5, num_rounds=1)
    accuracy = [row for row in rows(federation) if row["metric"] == "acc"]
    found = {}
    for row in accuracy:
        found.setdefault((row["round"], row["model"], row["data"]), set()).add(row["client"])
    everyone = {"0", "1", "2", "3"}
    assert found["1", "global", "own"] == everyone
    assert found["1", "global", "pooled"] == {"all"}
    assert len(found["1", "trained", "own"]) == 2
    assert found["2", "personal", "own"] == everyone


def test_bfloat16_is_refused_where_a_trial_run_dies(monkeypatch):
    monkeypatch.setattr("fedlit.engine.precision.PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(ValueError, match=r"`trainer.precision: bf16-mixed` does not work on this CPU"):
        fitted(FedAvg(linear, SGD), precision="bf16-mixed")


@pytest.mark.parametrize("method", [FedAvg, LocalOnly])
def test_the_same_module_trains_under_a_plain_trainer(method):
    data, module = toy_data(num_clients=1), method(linear, SGD)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=5, accelerator="cpu", enable_model_summary=False, **quiet)
    before = trainer.validate(module, data, verbose=False)[0]["val_acc"]
    trainer.fit(module, data)
    assert trainer.validate(module, data, verbose=False)[0]["val_acc"] > before


def test_global_and_personal_models_are_evaluated_on_the_clients_share_of_the_test_set():
    federation = fitted(FineTuned(linear, SGD), toy_data(own_test=True, unseen_clients=1), num_rounds=1)
    found = {(row["model"], row["client"]) for row in rows(federation) if row["data"] == "own_test"}
    assert found == {("global", "0"), ("global", "1"), ("personal", "0"), ("personal", "1")}
    batches, _ = federation.state.data.own_test_batches([1])
    right = federation.network(client=1)(batches.x).argmax(dim=1) == batches.y
    [own] = [row for row in rows(federation) if (row["model"], row["data"]) == ("personal", "own_test")][2::4]
    assert (own["client"], own["metric"]) == ("1", "acc")
    assert float(own["value"]) == pytest.approx(float(right.float().mean()))
