"""One hash over any number of processes: all states, metrics and the ledger are those of one."""

import hashlib
import signal
from functools import partial

import pytest
import torch
from forked import exit_codes, forked
from test_constant import LoRA
from test_sending import FedAMP
from test_travels import Counted
from toys import SGD, KillAt, SmallCNN, fitted, in_a_child, linear, toy_data

from fedlit import Stage
from fedlit.aggregation import Median
from fedlit.encoders import Int8
from fedlit.methods import DLAD, FML, FedAvg
from fedlit.notices import Notice
from fedlit.partition import Quantity
from fedlit.server_optimizers import FedAdam

ADAM = partial(torch.optim.Adam, lr=0.01)


class Failing(FML):
    def on_client_end(self, client):
        if client.id < 3 and client.round == 2:
            raise RuntimeError


class Mixed(FedAvg):
    """Half of what is shared in half precision, a counter, and something in double."""

    def __init__(self):
        super().__init__(SmallCNN, SGD)
        self.register_buffer("of_half", torch.ones(3, dtype=torch.float16))
        self.register_buffer("of_double", torch.ones(3, dtype=torch.float64))

    def on_client_end(self, client):
        self.of_half *= 1 + client.id / 7
        self.of_double /= 3 + client.id


class Cooler(FedAvg):
    """The server trains after every round, on the first process alone, and changes what all go by."""

    def __init__(self):
        super().__init__(SmallCNN, SGD)
        self.temperature = 4.0

    def configure_stages(self):
        follower = Stage("distil", side="server", upload="none", public="inputs", epochs=1)
        return [Stage("federate", followed_by=follower)]

    def on_server_start(self, server, uploads):
        self.temperature /= 2

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean() / self.temperature


FEDADAM = {"server_optimizer": partial(FedAdam, lr=0.05)}
ENCODED = {"upload_encoder": Int8(stochastic=True, error_feedback=True)}
METHODS = {
    "failing": (lambda: Failing(SmallCNN, SmallCNN, SGD), {"fraction_fit": 0.6}),
    "fast": (lambda: FML(SmallCNN, linear, SGD), {"fast": True}),
    "mixed": (Mixed, {}),
    "adam": (lambda: FML(SmallCNN, linear, ADAM), {"optimizer_state": "keep", "max_norm_ratio": 50.0}),
    "median": (lambda: FML(SmallCNN, linear, SGD), {"aggregator": Median()}),
    "DLAD": (lambda: DLAD(linear, ADAM, client_epochs=1, density_epochs=1, distil_epochs=2), {}),
    "changing server": (Cooler, {}),
    "FedAdam": (lambda: FedAvg(SmallCNN, SGD), FEDADAM),
    "encoded": (lambda: FedAvg(SmallCNN, SGD), ENCODED),
    "other downloads": (lambda: FedAMP(linear, SGD), {"fraction_fit": 0.7}),
    "one-way state": (Counted, {}),
    "frozen": (lambda: FedAvg(LoRA, SGD), {}),
}
WITH_A_POOL = ("DLAD", "changing server")


def run(name, devices, folder, **more):
    build, options = METHODS[name]
    torch.manual_seed(3)
    unequal = Quantity(power=1.0, min_samples=8)
    data = toy_data(160, num_clients=7, partition=unequal, public=0.3 if name in WITH_A_POOL else 0.0)
    options = {"num_rounds": 3, "seed": 5, "devices": devices, "default_root_dir": str(folder), **options, **more}
    return fitted(build(), data, **options)


def digest_of(federation):
    digest = hashlib.sha256()
    states = [federation.global_state, *federation.personal_states.values()]
    for state in states:
        for name, tensor in sorted(state.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def recorded(folder):
    return [(folder / "lightning_logs/version_0" / file).read_bytes() for file in ("ledger.csv", "metrics.csv")]


def on_several(name, number, folder, **more):
    folder.mkdir(exist_ok=True)

    def work(rank):
        (folder / f"digest_{rank}").write_text(digest_of(run(name, number, folder, **more)))

    codes = exit_codes(forked(work, folder, number=number))
    assert codes == [0] * number, (folder / "rank_0.txt").read_text() + (folder / "rank_1.txt").read_text()
    return [(folder / f"digest_{rank}").read_text() for rank in range(number)]


QUICK = ("failing", "DLAD", "encoded", "other downloads", "changing server")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_several_processes_end_in_the_bits_of_one(name, tmp_path):
    one = digest_of(run(name, 1, tmp_path / "one"))
    assert set(on_several(name, 3, tmp_path / "three")) == {one}
    assert recorded(tmp_path / "three") == recorded(tmp_path / "one")


def test_what_differs_has_another_hash(tmp_path):
    assert digest_of(run("failing", 1, tmp_path / "a", seed=6)) != digest_of(run("failing", 1, tmp_path / "b"))


def test_a_run_goes_on_with_other_numbers_of_processes(tmp_path):
    whole = digest_of(run("failing", 1, tmp_path / "whole"))
    folder = tmp_path / "run"
    on_several("failing", 3, folder, num_rounds=1)
    run("failing", 1, folder, num_rounds=2, ckpt_path="last")
    assert set(on_several("failing", 2, folder, ckpt_path="last")) == {whole}


@pytest.mark.parametrize("name", ["encoded", "other downloads", "frozen", "one-way state", "changing server"])
def test_a_killed_run_goes_on_to_the_same_hash_and_records(name, tmp_path):
    whole = digest_of(run(name, 1, tmp_path / "whole"))
    folder = tmp_path / "cut"
    assert in_a_child(lambda: run(name, 1, folder, callbacks=KillAt(3, "start"))) == -signal.SIGKILL
    assert digest_of(run(name, 1, folder, ckpt_path="last")) == whole
    assert recorded(folder) == recorded(tmp_path / "whole")


@pytest.mark.parametrize("name", ["failing", "adam", "encoded", "other downloads"])
def test_what_stays_with_clients_may_lie_on_disk(name, tmp_path):
    in_memory = digest_of(run(name, 1, tmp_path / "memory"))
    assert digest_of(run(name, 1, tmp_path / "disk", personal_memory=0.0)) == in_memory


def test_a_damaged_file_of_a_client_is_named_and_the_checkpoint_before_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlit.engine.checkpointing.MUCH", 0)
    whole = digest_of(run("failing", 1, tmp_path))
    last = tmp_path / "lightning_logs/version_0/checkpoints/last.ckpt"
    names = [torch.load(path)["client_files"] for path in (last, last.with_name("previous.ckpt"))]
    changed = next(k for k in names[0] if names[0][k] != names[1].get(k))
    file = last.with_name("clients") / f"{names[0][changed]}.pt"
    content = bytearray(file.read_bytes())
    content[content.index(b"\x80\x02}")] ^= 1
    file.write_bytes(content)
    with pytest.warns(
        Notice, match=rf"of client {changed}: .* does not match its checksum.*back to previous.ckpt, of round 2"
    ):
        assert digest_of(run("failing", 1, tmp_path, ckpt_path="last")) == whole
