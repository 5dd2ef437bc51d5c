"""What a run leaves behind."""

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toys import SGD, SmallCNN, fitted, linear, rows

from fedlit import FedAvg, FineTuned, LocalOnly


def test_a_folder_holds_all_that_was_promised():
    federation = fitted(FineTuned(SmallCNN, SGD), logger=True, report=True, num_rounds=2)
    names = {path.name for path in Path(federation.log_dir).iterdir()}
    records = {"metrics.csv", "ledger.csv", "events.jsonl", "partition.csv", "confusion.csv", "checkpoints"}
    promised = records | {"partition.png", "curves.png", "confusion.png"}
    assert promised <= names
    assert any(name.startswith("events.out.tfevents") for name in names)


def test_who_wants_no_report_gets_no_pictures():
    federation = fitted(FedAvg(SmallCNN, SGD), num_rounds=1)
    names = {path.name for path in Path(federation.log_dir).iterdir()}
    assert "metrics.csv" in names
    assert "report.html" not in names
    assert not any(name.endswith(".png") for name in names)


def accumulated(federation):
    found = EventAccumulator(federation.log_dir, {"scalars": 0, "histograms": 0})
    found.Reload()
    return found


def test_tensorboard_has_a_line_per_client_and_their_mean_with_range():
    federation = fitted(FedAvg(SmallCNN, SGD), logger=True, num_rounds=2)
    found = accumulated(federation)
    tags = set(found.Tags()["scalars"])
    assert {"acc/global_on_pooled", "clients/acc/global_on_own/client_02", "acc/global_on_own/mean"} <= tags
    assert [event.step for event in found.Scalars("acc/global_on_own/mean")] == [1, 2]
    mean = sum(float(r["value"]) for r in rows(federation) if (r["round"], r["model"], r["data"], r["metric"])
               == ("2", "global", "own", "acc")) / 3  # fmt: skip
    assert abs(found.Scalars("acc/global_on_own/mean")[1].value - mean) < 1e-6


def test_tensorboard_groups_what_belongs_together_and_has_the_bytes_of_a_round():
    federation = fitted(FedAvg(SmallCNN, SGD), logger=True, num_rounds=2)
    found = accumulated(federation)
    groups = {}
    for tag in found.Tags()["scalars"]:
        groups.setdefault(tag.partition("/")[0], []).append(tag)
    assert {"acc", "loss", "bytes", "clients", "range"} <= groups.keys()
    assert sorted(groups["acc"]) == ["acc/global_on_own/mean", "acc/global_on_pooled", "acc/trained_on_own/mean"]
    for direction in ("up", "down"):
        ledger = [line for line in rows(federation, "ledger.csv") if line["round"] == "2"]
        sent = sum(int(line["bytes"]) for line in ledger if line["direction"] == direction)
        assert found.Scalars(f"bytes/{direction}")[1].value == sent > 0


def test_steps_go_on_where_a_resumed_run_left_off(tmp_path):
    options = {"logger": True, "default_root_dir": str(tmp_path)}
    fitted(FedAvg(SmallCNN, SGD), num_rounds=2, **options)
    federation = fitted(FedAvg(SmallCNN, SGD), num_rounds=4, ckpt_path="last", **options)
    found = accumulated(federation)
    assert [event.step for event in found.Scalars("acc/global_on_pooled")] == [1, 2, 3, 4]
    pooled = [row["round"] for row in rows(federation) if (row["data"], row["metric"]) == ("pooled", "acc")]
    assert pooled == ["1", "2", "3", "4"]


def test_events_name_the_clients_of_a_round():
    federation = fitted(FedAvg(SmallCNN, SGD), num_rounds=1)
    events = [json.loads(line) for line in Path(federation.log_dir, "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["fit", "round", "end"]
    assert events[1]["clients"] == [0, 1, 2]


# --- what the global model confuses


def confusion_of(federation):
    counts = torch.zeros(3, 3, dtype=torch.long)
    for row in rows(federation, "confusion.csv"):
        counts[int(row["label"]), int(row["predicted"])] = int(row["samples"])
    return counts


@pytest.mark.parametrize("method", [lambda: FedAvg(linear, SGD), lambda: FineTuned(linear, SGD)])
def test_the_confusion_matrix_is_that_of_the_last_global_model(method):
    federation = fitted(method(), num_rounds=2)
    counts = confusion_of(federation)
    assert counts.sum(dim=1).tolist() == [10, 10, 10]  # the test set
    wanted = ("global", "pooled", "acc")
    found = [row for row in rows(federation) if (row["model"], row["data"], row["metric"]) == wanted]
    assert float(found[-1]["value"]) == pytest.approx(float(counts.trace() / counts.sum()))
    x, y = federation.state.data.images.test_x, federation.state.data.images.test_y
    federation.state.load_global()
    taken_for = federation.state.module.global_model()(x).argmax(dim=1)
    assert int(counts[1, 2]) == int(((y == 1) & (taken_for == 2)).sum())


def test_a_method_without_a_global_model_confuses_nothing():
    federation = fitted(LocalOnly(linear, SGD), num_rounds=1)
    assert not [path.name for path in Path(federation.log_dir).iterdir() if "confusion" in path.name]
