"""What is whole is saved before an error is shown, and a metric that fails is left out where it fails."""

import signal
import warnings
from pathlib import Path

import pytest
import torch
from torchmetrics import Metric
from toys import SGD, KillAt, equal, events, fitted, in_a_child, linear, rows, seeded, toy_data

from fedlit import FedAvg, LocalOnly
from fedlit.callbacks import FederationCallback
from fedlit.notices import Notice
from fedlit.partition import Dirichlet


class FailsAt(FederationCallback):
    def __init__(self, moment: str, round: int = 3) -> None:
        self.moment, self.round = moment, round

    def on_round_start(self, federation, module, round, clients):
        if (self.moment, self.round) == ("start", round):
            raise KeyError("unexpected")

    def on_round_end(self, federation, module, round, rows):
        if (self.moment, self.round) == ("end", round):
            raise KeyError("unexpected")


@pytest.mark.parametrize(("moment", "saved"), [("start", 2), ("end", 3)])
def test_rounds_since_the_last_checkpoint_are_saved_before_an_error_is_shown(moment, saved, tmp_path):
    options = {"default_root_dir": str(tmp_path / "cut"), "num_rounds": 5, "save_every_n_rounds": 100}
    monitored = {"monitor": "loss/global_on_unseen"}  # never measured, so that no round is the best
    straight = fitted(seeded(FedAvg, linear, SGD), num_rounds=5)
    with pytest.raises(KeyError, match="unexpected"):
        fitted(seeded(FedAvg, linear, SGD), callbacks=FailsAt(moment), **options, **monitored)
    last = torch.load(tmp_path / "cut/lightning_logs/version_0/checkpoints/last.ckpt", weights_only=True)
    assert last["round"] == saved
    resumed = fitted(seeded(FedAvg, linear, SGD), ckpt_path="last", **options, **monitored)
    assert equal(resumed.global_state, straight.global_state)
    assert Path(resumed.log_dir, "metrics.csv").read_text() == Path(straight.log_dir, "metrics.csv").read_text()


def test_a_run_that_went_back_and_was_killed_at_once_has_records_without_a_gap(tmp_path):
    def run(**options):
        return fitted(seeded(FedAvg, linear, SGD), num_rounds=4, default_root_dir=str(tmp_path), **options)

    whole = run()
    metrics = Path(whole.log_dir, "metrics.csv").read_text()
    path = f"{whole.log_dir}/checkpoints/previous.ckpt"
    assert torch.load(path, weights_only=True)["round"] == 3
    assert in_a_child(lambda: run(ckpt_path=path, callbacks=KillAt(4, "start"))) == -signal.SIGKILL
    resumed = run(ckpt_path="last")
    assert Path(resumed.log_dir, "metrics.csv").read_text() == metrics
    assert equal(resumed.global_state, whole.global_state)


class Picky(Metric):
    def __init__(self, cannot: list[int]) -> None:
        super().__init__()
        self.cannot = cannot
        self.add_state("size", torch.tensor(0.0))

    def update(self, logits, target):
        if target.tolist() == self.cannot:
            raise ValueError("not\nthese")
        self.size += len(target)

    def compute(self):
        return self.size


def test_a_metric_that_raises_on_one_clients_samples_is_left_out_there_and_reported():
    data = toy_data(partition=Dirichlet(0.5))
    data.setup()
    labels = [data.images.train_y[held].tolist() for held in data.assignment.val]
    refused = {k for k in range(3) if labels[k] == labels[1]}
    assert len(refused) < 3
    with pytest.warns(Notice, match=r"^`trainer.metrics.picky` is left out .*: ValueError: not these$"):
        federation = fitted(LocalOnly(linear, SGD), data, metrics={"picky": Picky(labels[1])}, num_rounds=2)
    measured = {int(row["client"]) for row in rows(federation) if row["metric"] == "picky"}
    assert measured == set(range(3)) - refused
    found = {(event["client"], event["metric"]) for event in events(federation.log_dir, "metric_left_out")}
    assert found == {(k, "picky") for k in refused}
    assert events(federation.log_dir, "left_out") == []


@pytest.mark.parametrize(
    ("rate", "notices"), [(0.2, ["`model.optimizer.lr`: 0.1 -> 0.2, from round 2 on."]), (0.1, [])]
)
def test_in_python_an_optimiser_in_a_function_is_known_by_what_it_builds(rate, notices, tmp_path):
    def run(rate, **options):
        method = FedAvg(linear, lambda parameters: torch.optim.SGD(parameters, lr=rate))
        fitted(method, default_root_dir=str(tmp_path), **options)

    run(0.1, num_rounds=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(rate, num_rounds=2, ckpt_path="last")
    assert [str(warning.message) for warning in caught if issubclass(warning.category, Notice)] == notices
