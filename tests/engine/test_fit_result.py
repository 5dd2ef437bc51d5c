"""What `fit` returns, and that a function which builds a method is called under the seed."""

import signal
import sys
import time

import pytest
import torch
from toys import SGD, SmallCNN, equal, fitted, linear, toy_data

from fedlit import FedAvg, Federation, LocalOnly, read_metrics
from fedlit.callbacks import FederationCallback
from fedlit.engine.runs.fit_result import FitResult

QUIET = {"enable_progress_bar": False, "logger": False, "accelerator": "cpu", "report": False}


def fit(model, seed=0, **options) -> FitResult:
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


def test_without_pandas_it_says_what_to_install(result, monkeypatch):
    bare = FitResult(result.method, result.folder, result.rows, None, result.network)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'fedlit\[report\]'"):
        _ = bare.metrics


class Signals(FederationCallback):
    def on_round_end(self, federation, module, round, rows):
        signal.raise_signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while federation.stopped_by is None and time.monotonic() < end:  # a thread is told, in its own time
            time.sleep(0.001)


def test_it_tells_the_signal_that_ended_it():
    found = fit(FedAvg(linear, SGD), callbacks=[Signals()])
    assert found.stopped_by == signal.SIGTERM
    assert {row.round for row in found.rows} == {1}


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


def test_building_leaves_torchs_generator_as_it_was():
    before = torch.get_rng_state()
    fitted(lambda: FedAvg(linear, SGD), num_rounds=1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("model", [3, lambda: 3])
def test_what_is_no_method_is_refused(model):
    with pytest.raises(ValueError, match="`model` must be a FederatedModule, got a int"):
        fit(model)
