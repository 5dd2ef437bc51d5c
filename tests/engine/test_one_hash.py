"""One hash over 1, 2, 3 and 5 processes: FedFusion's and DLAD's stages, exact and fast, whatever visits do."""

import hashlib
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from forked import exit_codes, forked
from test_homes import StopAfter
from toys import SGD, TrunkAndHead, fitted, linear, toy_data

from fedlit.methods import DLAD, FedFusion
from fedlit.partition import Quantity

ADAM = partial(torch.optim.Adam, lr=0.01)
FILES = ("metrics.csv", "ledger.csv")


class Fused(TrunkAndHead):
    """What FedFusion takes apart."""

    def __init__(self):
        super().__init__()
        self.feature_shape = (4, 3, 3)


class FailingFusion(FedFusion):
    """Some fail in round 2, after they have trained."""

    def on_client_end(self, client):
        super().on_client_end(client)
        if client.id < 3 and client.round == 2:
            raise RuntimeError


class MixedFusion(FedFusion):
    """A part of what is shared in half precision, and something in double."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.register_buffer("of_half", torch.ones(3, dtype=torch.float16))
        self.register_buffer("of_double", torch.ones(3, dtype=torch.float64))

    def on_client_end(self, client):
        super().on_client_end(client)
        self.of_half *= 1 + client.id / 7
        self.of_double /= 3 + client.id


class FailingDLAD(DLAD):
    """Some have no classifier to give, others no density."""

    def on_client_end(self, client):
        super().on_client_end(client)
        if (client.id, client.round) in ((1, 1), (4, 2)):
            raise RuntimeError


def dlad(kind=DLAD):
    return kind(linear, ADAM, client_epochs=1, density_epochs=1, distil_epochs=3)


METHODS = {
    "multi": (lambda: FedFusion(Fused, SGD, operator="multi", ema=0.5), {}),
    "conv": (lambda: FedFusion(Fused, ADAM, operator="conv"), {"optimizer_state": "keep", "fraction_fit": 0.6}),
    "fusion fast": (lambda: FedFusion(Fused, SGD, operator="single", ema=0.5), {"fast": True}),
    "fusion failing": (lambda: FailingFusion(Fused, SGD, operator="multi"), {}),
    "fusion mixed": (lambda: MixedFusion(Fused, SGD, operator="conv", weighting="uniform"), {}),
    "DLAD": (dlad, {}),
    "DLAD fast": (dlad, {"fast": True}),
    "DLAD failing": (lambda: dlad(FailingDLAD), {}),
    "DLAD of means": (lambda: DLAD(linear, ADAM, client_epochs=1, distil_epochs=2, aggregator="average"), {}),
}


def run(name, devices, folder, **more):
    build, options = METHODS[name]
    torch.manual_seed(3)
    public = 0.3 if "DLAD" in name else 0.0
    partition = Quantity(power=1.0, min_samples=8)  # unequal weights
    data = toy_data(160, num_clients=7, public=public, partition=partition, val_size=0.2, eval_batch_size=2)
    options = {"num_rounds": 3, "seed": 5, "devices": devices, "default_root_dir": str(folder), **options, **more}
    return fitted(build(), data, **options)


def told(federation):
    """A hash of all states."""
    digest = hashlib.sha256()
    states = {"server": federation.global_state, **federation.personal_states}
    for owner, state in states.items():
        for name, tensor in sorted(state.items()):
            digest.update(f"{owner} {name}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def recorded(folder: Path) -> list[bytes]:
    return [(folder / "lightning_logs/version_0" / file).read_bytes() for file in FILES]


def on_several(name, number, folder, **more):
    """What every process comes to."""
    folder.mkdir(exist_ok=True)
    shutil.rmtree(folder / "meeting", ignore_errors=True)

    def work(rank):
        (folder / f"told_{rank}").write_text(told(run(name, number, folder, **more)))

    codes = exit_codes(forked(work, folder, number=number))
    assert codes == [0] * number, [(folder / f"rank_{rank}.txt").read_text() for rank in range(number)]
    return [(folder / f"told_{rank}").read_text() for rank in range(number)]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_any_number_of_processes_comes_to_one_hash_and_to_the_same_records(name, tmp_path):
    one = told(run(name, 1, tmp_path / "1"))
    events = (tmp_path / "1/lightning_logs/version_0/events.jsonl").read_text()
    assert ("RuntimeError" in events) == ("failing" in name)
    for number in (2, 3, 5):
        folder = tmp_path / str(number)
        assert set(on_several(name, number, folder)) == {one}
        assert recorded(folder) == recorded(tmp_path / "1")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multi", "fusion failing", "DLAD", "DLAD failing"])
def test_a_run_that_goes_on_with_three_one_and_two_processes_comes_to_the_same_hash(name, tmp_path):
    whole = told(run(name, 1, tmp_path / "whole"))
    folder = tmp_path / "run"
    on_several(name, 3, folder, callbacks=StopAfter(1))
    stopped = run(name, 1, folder, ckpt_path="last", callbacks=StopAfter(2))
    assert stopped.state.round == 2
    assert set(on_several(name, 2, folder, ckpt_path="last")) == {whole}
    assert recorded(folder) == recorded(tmp_path / "whole")


def test_what_differs_has_another_hash(tmp_path):
    assert told(run("multi", 1, tmp_path / "a", seed=6)) != told(run("multi", 1, tmp_path / "b"))
