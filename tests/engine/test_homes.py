"""Several processes: what stays with a client has a home, uploads are added up where they are, the bits are one's."""

import hashlib
import json
from functools import partial

import pytest
import torch
from forked import exit_codes, forked
from toys import SGD, SmallCNN, equal, fitted, linear, toy_data

from fedlit.aggregation import Median
from fedlit.callbacks import FederationCallback
from fedlit.engine import checkpointing as saved_clients
from fedlit.engine.cluster.processes import in_blocks
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


class StopAfter(FederationCallback):
    """Ends a fit as a scheduler's signal would, between rounds."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_round_end(self, federation, module, round, rows) -> None:
        federation.should_stop = round == self.last


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


def test_rounds_are_balanced_and_consecutive_clients_together():
    assert in_blocks(0, 3) == []
    for number in range(1, 9):
        for count in range(20):
            ranks = in_blocks(count, number)
            loads = [ranks.count(rank) for rank in range(number)]
            assert ranks == sorted(ranks)
            assert max(loads) - min(loads) <= 1


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


class AllThenTen(FML):
    """Everybody has a network after the first round; then ten take part."""

    def select_clients(self, round, candidates):
        return candidates if round == 1 else candidates[10 * round : 10 * round + 10]


@pytest.mark.slow
def test_of_a_thousand_personal_networks_a_round_writes_those_of_its_ten_clients(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_clients, "MUCH", 0)
    written = []
    write = client_files.write
    monkeypatch.setattr(client_files, "write", lambda *given: written.append(given) or write(*given))
    data = toy_data(4000, num_clients=1000)
    federation = fitted(AllThenTen(linear, linear, SGD), data, default_root_dir=str(tmp_path))
    assert len(federation.personal_states) == 1000
    assert len(written) == 1000 + 2 * 10
    content = checkpoint.load(tmp_path / "lightning_logs/version_0/checkpoints/last.ckpt")
    assert len(content["personal_states"]) == 1000


def test_collected_uploads_stay_at_home_and_come_to_where_the_server_trains(tmp_path):
    def work(rank):
        federation = run("DLAD", 3, tmp_path, callbacks=StopAfter(2) if rounds == 2 else None, **going_on)
        (tmp_path / f"here_{rank}").write_text(json.dumps(federation.state.collected.here()))

    def here():
        assert exit_codes(forked(work, tmp_path, number=3)) == [0] * 3
        return [json.loads((tmp_path / f"here_{rank}").read_text()) for rank in range(3)]

    rounds, going_on = 2, {}  # both are collected, the server has not trained
    apart = here()
    assert sorted(k for share in apart for k in share) == list(range(7))
    assert max(map(len, apart)) == 3
    rounds, going_on = 4, {"ckpt_path": "last"}
    first, *others = here()
    assert first == list(range(7))
    assert max(map(len, others)) <= 3


def test_collected_uploads_are_not_written_again_while_the_server_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_clients, "MUCH", 0)
    written = []
    write = client_files.write
    monkeypatch.setattr(client_files, "write", lambda *given: written.append(given) or write(*given))
    whole = run("DLAD", 1, tmp_path)
    assert len(written) == 2 * 7  # classifiers, then what is collected
    content = checkpoint.load(tmp_path / "lightning_logs/version_0/checkpoints/last.ckpt")
    assert content["collected"].keys() == set(range(7))
    for k, upload in content["collected"].items():
        assert equal(upload, whole.state.collected[k])


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


def test_files_that_no_checkpoint_names_are_swept(tmp_path):
    names = [client_files.write({"personal_states": {"w": torch.ones(1) * i}}, tmp_path, 0) for i in range(3)]
    client_files.sweep(tmp_path, names[:2])
    assert client_files.num_files(tmp_path) == 2
    assert client_files.damage({5: names[0]}, tmp_path) is None
    assert client_files.damage({5: names[2]}, tmp_path) == f"clients/{names[2]}.pt, of client 5, is gone"
