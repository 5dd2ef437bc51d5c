"""A client's model after every epoch of a local stage: what is recorded, and that nothing else changes."""

from functools import partial
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toys import SGD, SmallCNN, equal, fitted, linear, rows, toy_data

from fedlit import FedAvg, FineTuned, LocalOnly
from fedlit.methods import DLAD

ADAM = partial(torch.optim.Adam, lr=0.01)


def dlad(**options):
    torch.manual_seed(7)
    method = DLAD(SmallCNN, ADAM, client_epochs=4, density_epochs=1, distil_epochs=1)
    return fitted(method, toy_data(120, public=0.5, num_clients=2), **options)


def values(lines, metric="acc", **wanted):
    """By epoch and client."""
    found = {}
    for line in lines:
        if line["metric"] == metric and all(line[name] == value for name, value in wanted.items()):
            found[int(line["epoch"]), int(line["client"])] = float(line["value"])
    return found


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("followed")
    return dlad(eval_every_n_epochs=1, default_root_dir=str(folder), logger=True, report=True)


def test_classifiers_are_evaluated_after_every_epoch_and_densities_and_the_server_are_not(followed):
    lines = rows(followed, "epochs.csv")
    assert {(line["round"], line["stage"], line["model"]) for line in lines} == {("1", "classify", "personal")}
    wanted = {(epoch, k) for epoch in (1, 2, 3, 4) for k in (0, 1)}
    assert values(lines, data="own").keys() == values(lines, data="pooled").keys() == wanted
    assert [int(line["epoch"]) for line in lines] == sorted(int(line["epoch"]) for line in lines)


def test_the_last_epoch_is_what_the_round_ends_with_and_the_first_is_not(followed):
    curve = values(rows(followed, "epochs.csv"), "loss", data="pooled")
    wanted = ("classify", "pooled", "loss")
    ends = [line for line in rows(followed) if (line["stage"], line["data"], line["metric"]) == wanted]
    values_at_end = {int(line["client"]): float(line["value"]) for line in ends}
    assert {k: curve[4, k] for k in values_at_end} == pytest.approx(values_at_end, rel=1e-6)
    assert {k: curve[1, k] for k in values_at_end} != pytest.approx(values_at_end, rel=1e-6)


def test_training_and_all_other_records_are_as_if_nobody_had_looked(followed):
    plain = dlad()
    assert equal(plain.global_state, followed.global_state)
    assert all(equal(plain.personal_states[k], followed.personal_states[k]) for k in (0, 1))
    assert rows(plain) == rows(followed)
    assert not Path(plain.log_dir, "epochs.csv").exists()


def test_they_are_drawn_and_shown_in_tensorboard(followed):
    assert Path(followed.log_dir, "epochs.png").stat().st_size > 0
    events = EventAccumulator(followed.log_dir)
    events.Reload()
    shown = events.Scalars("epochs of classify/acc/personal_on_pooled/mean")
    assert [event.step for event in shown] == [1, 2, 3, 4]


def test_local_training_counts_the_epochs_of_each_round_and_a_federated_stage_has_none():
    federation = fitted(LocalOnly(linear, SGD), local_epochs=2, num_rounds=2, eval_every_n_epochs=1)
    lines = rows(federation, "epochs.csv")
    assert {(line["round"], line["epoch"]) for line in lines} == {(r, e) for r in "12" for e in "12"}
    federation = fitted(FedAvg(linear, SGD), num_rounds=1, eval_every_n_epochs=1)
    assert not Path(federation.log_dir, "epochs.csv").exists()


def test_a_resumed_run_records_each_epoch_once():
    method = FineTuned(linear, SGD, 2)
    whole = fitted(method, num_rounds=1, eval_every_n_epochs=1)
    before = rows(whole, "epochs.csv")
    path = f"{whole.log_dir}/checkpoints/previous.ckpt"  # before the local stage
    again = fitted(method, None, path, num_rounds=1, eval_every_n_epochs=1)
    assert again.log_dir == whole.log_dir
    assert rows(again, "epochs.csv") == before
