"""Lightning's loggers receive metrics and options, and those that take pictures receive pictures."""

import csv
import sqlite3
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toys import SGD, fitted, linear, toy_data

from fedlit import FedAvg, Federation

PICTURES = ["partition", "curves", "confusion"]


class Recording(Logger):
    """A logger of a user's own, which takes no pictures."""

    name = version = "recording"

    def __init__(self):
        self.calls = []
        self.metrics = {}
        self.options = {}

    def log_metrics(self, metrics, step=None):
        self.calls.append("metrics")
        self.metrics[step] = metrics

    def log_hyperparams(self, params):
        self.calls.append("options")
        self.options = params

    def finalize(self, status):
        self.calls.append(status)


class WithPictures(Recording):
    def log_image(self, key, images, step=None):
        assert [Path(image).read_bytes()[1:4] for image in images] == [b"PNG"]
        self.calls.append(key)


def fit(tmp_path, logger, **options):
    given = {"num_rounds": 2, "report": True, "default_root_dir": str(tmp_path)}
    return fitted(FedAvg(linear, SGD), toy_data(), logger=logger, **{**given, **options})


def test_every_logger_gets_options_first_then_metrics_of_every_round_and_pictures_if_it_takes_them(tmp_path):
    plain, pictured = Recording(), WithPictures()
    federation = fit(tmp_path, [plain, pictured])
    assert plain.calls == ["options", "metrics", "metrics", "success"]
    assert pictured.calls == ["options", "metrics", "metrics", *PICTURES, "success"]
    assert plain.metrics[2]["acc/global_on_own/mean"] == federation.state.scores.last["acc/global_on_own"]["mean"]
    assert plain.metrics[1]["bytes/up"] > 0
    assert plain.options["method"] == "FedAvg"
    assert plain.options["trainer.num_rounds"] == 2


def test_without_pictures_of_the_run_there_are_none_to_log(tmp_path):
    pictured = WithPictures()
    fit(tmp_path, pictured, report=False)
    assert pictured.calls == ["options", "metrics", "metrics", "success"]


def test_an_error_ends_loggers_as_failed(tmp_path):
    class Failing(FedAvg):
        def aggregate(self, *_):
            raise RuntimeError("no")

    plain = Recording()
    with pytest.raises(RuntimeError):
        fitted(Failing(linear, SGD), toy_data(), logger=plain, num_rounds=1, default_root_dir=str(tmp_path))
    assert plain.calls == ["options", "failed"]


def test_tensorboard_in_a_folder_of_its_own_has_pictures_and_is_named(tmp_path, capsys):
    fit(tmp_path, TensorBoardLogger(tmp_path / "tb"), enable_progress_bar=True)
    found = EventAccumulator(str(tmp_path / "tb/lightning_logs/version_0"))
    found.Reload()
    assert found.Tags()["images"] == PICTURES
    image = found.Images("curves")[0]
    assert image.encoded_image_string == (tmp_path / "lightning_logs/version_0/curves.png").read_bytes()
    assert f"tensorboard --logdir {tmp_path}/tb/lightning_logs" in capsys.readouterr().out


def test_a_folder_that_a_logger_numbers_is_no_run(tmp_path):
    """By default, CSVLogger counts on in lightning_logs."""
    own = fit(tmp_path, CSVLogger(tmp_path))
    with (tmp_path / "lightning_logs/version_1/metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["step"] for line in lines] == ["1", "2"]
    assert float(lines[1]["acc/global_on_own/mean"]) > 0
    other = Federation(accelerator="cpu", default_root_dir=str(tmp_path))
    other.test(FedAvg(linear, SGD), toy_data(), ckpt_path="last")
    assert other.log_dir == own.log_dir


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its own libraries
def test_mlflow_has_metrics_parameters_and_pictures(tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    logger = MLFlowLogger(
        "fedlit", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", artifact_location=str(tmp_path / "artifacts")
    )
    fit(tmp_path, logger)
    with sqlite3.connect(tmp_path / "mlflow.db") as base:
        steps = base.execute("select step from metrics where key = 'acc/global_on_own/mean' order by step").fetchall()
        assert steps == [(1,), (2,)]
        assert base.execute("select value from params where key = 'trainer.num_rounds'").fetchall() == [("2",)]
        assert base.execute("select status from runs").fetchall() == [("FINISHED",)]
    assert {path.stem for path in tmp_path.glob("artifacts/**/*.png")} == set(PICTURES)


def test_wandb_offline_has_metrics_options_and_pictures(tmp_path):
    wandb = pytest.importorskip("wandb")
    logger = WandbLogger(project="fedlit", offline=True, save_dir=str(tmp_path))
    fit(tmp_path, logger)
    assert wandb.run.config["trainer.num_rounds"] == 2
    assert wandb.run.summary["acc/global_on_own/mean"] > 0
    wandb.finish()
    pictures = {path.stem.partition("_")[0] for path in tmp_path.glob("wandb/offline-run-*/files/media/images/*.png")}
    assert pictures == set(PICTURES)
