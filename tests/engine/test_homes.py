"""Several processes: what stays with a client has a home, uploads are added up where they are, the bits are one's."""

import hashlib
from functools import partial

import pytest
import torch
from forked import exit_codes, forked
from toys import SGD, SmallCNN, equal, fitted, linear, toy_data

from fedlit.aggregation import Median
from fedlit.engine import checkpointing as saved_clients
from fedlit.methods import DLAD, FML, SCAFFOLD, FedAvg, FedBN
from fedlit.notices import Notice
from fedlit.records import checkpoint, client_files

ADAM = partial(torch.optim.Adam, lr=0.01)


class Failing(FML):
    """Some fail in round 2, after they have trained."""

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


METHODS = {
    "failing": (lambda: Failing(SmallCNN, SmallCNN, SGD), {"fraction_fit": 0.6}),
    "weights": (lambda: FedBN(SmallCNN, SGD), {"fraction_fit": 0.6}),
    "fast": (lambda: FML(SmallCNN, linear, SGD), {"fast": True}),
    "mixed": (Mixed, {}),
    "adam": (lambda: FML(SmallCNN, linear, ADAM), {"optimizer_state": "keep", "max_norm_ratio": 50.0}),
    "median": (lambda: FML(SmallCNN, linear, SGD), {"aggregator": Median()}),
    "SCAFFOLD": (lambda: SCAFFOLD(linear, partial(torch.optim.SGD, lr=0.1)), {}),
    "DLAD": (lambda: DLAD(linear, ADAM, client_epochs=1, density_epochs=1, distil_epochs=2), {}),
}


def run(name, devices, folder, **more):
    build, options = METHODS[name]
    torch.manual_seed(3)
    data = toy_data(140, num_clients=7, public=0.3 if name == "DLAD" else 0.0)
    options = {"num_rounds": 3, "seed": 5, "devices": devices, "default_root_dir": str(folder), **options, **more}
    return fitted(build(), data, **options)


def told(federation):
    """Of all states, metrics and what is sent."""
    digest = hashlib.sha256()
    states = [federation.global_state, *federation.personal_states.values()]
    for state in states:
        for name, tensor in sorted(state.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def on_several(name, number, folder, **more):
    folder.mkdir()
    return continued(name, number, folder, **more)


def continued(name, number, folder, **more):
    def work(rank):
        (folder / f"told_{rank}").write_text(told(run(name, number, folder, **more)))

    codes = exit_codes(forked(work, folder, number=number))
    assert codes == [0] * number, (folder / "rank_0.txt").read_text() + (folder / "rank_1.txt").read_text()
    return [(folder / f"told_{rank}").read_text() for rank in range(number)]


QUICK = ("failing", "DLAD")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_several_processes_end_in_the_bits_of_one(name, tmp_path):
    one = told(run(name, 1, tmp_path / "one"))
    assert set(on_several(name, 3, tmp_path / "three")) == {one}
    for file in ("ledger.csv", "metrics.csv"):
        one, three = ((tmp_path / f"{name}/lightning_logs/version_0/{file}").read_bytes() for name in ("one", "three"))
        assert one == three


def test_a_run_goes_on_with_other_numbers_of_processes(tmp_path):
    whole = told(run("failing", 1, tmp_path / "whole"))
    folder = tmp_path / "run"
    on_several("failing", 3, folder, num_rounds=1)
    run("failing", 1, folder, num_rounds=2, ckpt_path="last")
    assert set(continued("failing", 2, folder, ckpt_path="last")) == {whole}


def test_what_did_not_change_is_not_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_clients, "MUCH", 0)
    written = []
    write = client_files.write
    monkeypatch.setattr(client_files, "write", lambda *given: written.append(given) or write(*given))
    federation = run("failing", 1, tmp_path)
    events = (tmp_path / "lightning_logs/version_0/events.jsonl").read_text().splitlines()
    failed = sum("RuntimeError" in line for line in events)
    assert failed > 0
    assert len(written) == 3 * 4 - failed  # four of seven clients in each of three rounds
    checkpoints = tmp_path / "lightning_logs/version_0/checkpoints"
    content = checkpoint.load(checkpoints / "last.ckpt")
    assert content["personal_states"].keys() == content["client_files"].keys()
    for k, state in federation.personal_states.items():
        assert equal(state, content["personal_states"][k])
    run("failing", 1, tmp_path, num_rounds=4, ckpt_path="last")
    assert len(written) == 4 * 4 - failed


def test_a_damaged_file_of_a_client_is_told_and_the_checkpoint_before_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_clients, "MUCH", 0)
    whole = told(run("failing", 1, tmp_path))
    last = tmp_path / "lightning_logs/version_0/checkpoints/last.ckpt"
    names = [torch.load(path)["client_files"] for path in (last, last.with_name("previous.ckpt"))]
    changed = next(k for k in names[0] if names[0][k] != names[1].get(k))
    file = last.with_name("clients") / f"{names[0][changed]}.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(checkpoint.Damaged, match=f"of client {changed}, does not match its digest"):
        checkpoint.load(last)
    with pytest.warns(Notice, match="going back to previous.ckpt, of round 2"):
        assert told(run("failing", 1, tmp_path, ckpt_path="last")) == whole
    file.unlink()
    with pytest.raises(checkpoint.Damaged, match="is gone"):
        checkpoint.load(last)
