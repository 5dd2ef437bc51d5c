"""What `fit` returns, and that a function which builds a method is called under the seed."""

import re

import pytest
import torch
from toys import SGD, SmallCNN, equal, linear, toy_data

from fedlit import FedAvg, Federation, LocalOnly, read_metrics

QUIET = {"enable_progress_bar": False, "logger": False, "accelerator": "cpu", "report": False}


def fit(model, seed=0, **options):
    return Federation(**{**QUIET, "num_rounds": 2, "seed": seed, **options}).fit(model, toy_data())


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return fit(lambda: LocalOnly(linear, SGD), default_root_dir=str(tmp_path_factory.mktemp("result")))


def test_it_has_the_last_rounds_rows_and_all_metrics(result):
    assert {row.round for row in result.rows} == {2}
    assert result.metrics.equals(read_metrics(result.folder))
    last = result.metrics[result.metrics["round"] == 2]
    assert sorted(last["value"]) == pytest.approx(sorted(row.value for row in result.rows))


def test_it_has_paths_and_networks(result):
    assert result.checkpoint == result.folder / "checkpoints" / "last.ckpt"
    assert torch.load(result.best_checkpoint)["round"] in (1, 2)
    own = torch.load(result.checkpoint)["personal_states"][1]
    assert torch.equal(result.network(client=1)[1].weight, own["network.1.weight"])
    assert isinstance(result.method, LocalOnly)
    assert result.stopped_by is None
    assert "version_0" in repr(result)


def test_a_development_run_leaves_rows_and_no_files():
    found = fit(FedAvg(linear, SGD), fast_dev_run=True)
    assert found.folder is found.checkpoint is found.best_checkpoint is None
    assert found.rows
    with pytest.raises(ValueError, match="A development run leaves no metrics; its last ones are `rows`"):
        _ = found.metrics


def weights(model, seed):
    return fit(model, seed).method.state_dict()


def test_a_function_that_builds_the_method_gives_the_same_bits_for_the_same_seed():
    def build():
        return FedAvg(SmallCNN, SGD)

    first, again, other = (weights(build, seed) for seed in (3, 3, 4))
    assert equal(first, again)
    assert not equal(first, other)


def test_a_ready_method_takes_its_weights_from_torchs_own_generator():
    assert not equal(weights(FedAvg(SmallCNN, SGD), 3), weights(FedAvg(SmallCNN, SGD), 3))
    torch.manual_seed(3)
    ready = weights(FedAvg(SmallCNN, SGD), 3)
    assert equal(ready, weights(lambda: FedAvg(SmallCNN, SGD), 3))  # as `seed_everything: 3` on the command line


def test_what_is_no_method_is_refused():
    with pytest.raises(ValueError, match="`model` must be a FederatedModule, got a int"):
        fit(lambda: 3)


def test_after_a_fit_its_model_data_and_checkpoints_are_meant(tmp_path):
    federation = Federation(**QUIET, num_rounds=2, default_root_dir=str(tmp_path))
    with pytest.raises(ValueError, match="`test` needs a `model`: this federation has fitted none"):
        federation.test(ckpt_path="best")
    method, data = FedAvg(linear, SGD), toy_data()
    folder = federation.fit(method, data).folder
    expected = federation.test(method, data, ckpt_path=str(folder / "checkpoints" / "best.ckpt"))
    fit(FedAvg(linear, SGD), num_rounds=1, default_root_dir=str(tmp_path))  # a newer run
    assert federation.test(ckpt_path="best") == expected
    assert {row.round for row in federation.validate(ckpt_path="last")} == {2}
    assert federation.predict().shape == (30, 3)
    assert federation.test(method) == federation.test(method, data)


def test_without_checkpoints_a_run_leaves_its_records_alone(tmp_path):
    options = {"default_root_dir": str(tmp_path), "enable_checkpointing": False, "run_name": "bare"}
    federation = Federation(**QUIET, num_rounds=2, **options)
    method, data = FedAvg(linear, SGD), toy_data()
    found = federation.fit(method, data)
    assert found.checkpoint is found.best_checkpoint is None
    assert not [*tmp_path.rglob("*.ckpt")]
    assert not (found.folder / "checkpoints").exists()
    with_them = fit(FedAvg(linear, SGD), default_root_dir=str(tmp_path))
    assert [row.round for row in found.rows] == [row.round for row in with_them.rows]
    assert federation.test()
    with pytest.raises(ValueError, match=r"`ckpt_path` best: `trainer.enable_checkpointing` is false"):
        federation.test(ckpt_path="best")
    with pytest.raises(ValueError, match=r"there is such a run in [^;]*; give another name"):
        federation.fit(method, data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"report": True, "logger": True}, r"Look at \S+report.html and curves.png beside it, or run: tensorboard"),
        ({"report": False, "logger": False}, r"Look at \S+version_0, or run: fedlit report \S+version_0$"),
    ],
)
def test_the_end_of_a_fit_says_where_to_look(options, message, tmp_path, capsys):
    given = {**QUIET, "enable_progress_bar": True, "num_rounds": 1, **options, "default_root_dir": str(tmp_path)}
    found = Federation(**given).fit(FedAvg(linear, SGD), toy_data())
    assert re.search(message, capsys.readouterr().out, re.MULTILINE)
    assert (found.folder / "report.html").exists() == options["report"]
