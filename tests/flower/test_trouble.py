"""What may go wrong between hosts: kills, lost messages, answers that cannot be used, hosts that do not fit."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import InProcess, by_post, data_for, federation, hosts_of, seeded, simulated
from toys import SGD, equal, linear, rows

from fedlit import FedAvg, FederatedData
from fedlit.data.remote import restrict_to_client, server_data
from fedlit.flower import wire
from fedlit.flower.host import Host
from fedlit.flower.hosts import RemoteHosts
from fedlit.flower.own_files import OwnFiles

needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="needs fedlit[flower]")


class Killed(BaseException):
    """The server is gone, and nothing of it runs any more."""


class UntilRound2(InProcess):
    """Brings two answers of round 2, and no third."""

    def ask(self, what, letters):
        for i, (k, answer) in enumerate(super().ask(what, letters)):
            if wire.unpack(letters[k].own)["round"] == 2 and i == 2:
                raise Killed
            yield k, answer


def test_a_server_that_is_killed_in_a_round_goes_on_to_the_same_bits_and_nobody_trains_twice(tmp_path):
    here = simulated("FML", tmp_path / "here")
    post = UntilRound2(lambda: (seeded("FML"), data_for("FML")), tmp_path)
    first = federation(tmp_path / "server")
    first.hosts = RemoteHosts(post, {k: post.joined(k) for k in range(3)})
    with pytest.raises(Killed):
        first.fit(seeded("FML"), data_for("FML"))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("round_00002.pt")}
    again = federation(tmp_path / "server")
    again.hosts = hosts_of(InProcess(post.make, tmp_path))
    again.fit(seeded("FML"), data_for("FML"), "last")
    assert len(written) == 3
    assert all(path.stat().st_mtime_ns == moment for path, moment in written.items())
    assert again.hosts.experiment == first.hosts.experiment
    assert equal(again.global_state, here.global_state)
    elsewhere = federation(tmp_path / "server")
    with pytest.raises(ValueError, match="whose clients have hosts of their own; resume it there"):
        elsewhere.fit(seeded("FML"), data_for("FML"), "last")
    elsewhere.load(seeded("FML"), data_for("FML"), "last")
    assert elsewhere.network() is not None
    with pytest.raises(ValueError, match="What client 1 keeps is on its own host, and nowhere else"):
        elsewhere.network(client=1)


class Garbled(InProcess):
    """One client sends something else than it should."""

    def __init__(self, *given, garble, **options):
        super().__init__(*given, **options)
        self.garble = garble

    def ask(self, what, letters):
        for k, answer in super().ask(what, letters):
            yield k, self.garble(what, answer) if k == 1 else answer


def as_other(what, answer):
    """Reports on another client."""
    found = wire.unpack(answer)
    if what == "evaluate":
        found["found"] = [{**one, "values": [(0, *value[1:]) for value in one["values"]]} for one in found["found"]]
    return wire.pack(found)


def with_more(what, answer):
    found = wire.unpack(answer)
    if what == "train":
        found["upload"]["state"]["hidden"] = torch.ones(1)
    return wire.pack(found)


def huge(what, answer):
    return answer + bytes(2**25) if what == "train" else answer


@pytest.mark.parametrize(
    ("garble", "reason"),
    [
        (lambda what, answer: b"nonsense", "its answer cannot be used"),
        (lambda what, answer: wire.pack({"failed": False}), "its answer cannot be used: KeyError"),
        (with_more, "undeclared 'hidden'"),
        (huge, "at most"),
        (as_other, "could not be evaluated: its answer cannot be used: ValueError: it reports on client 0"),
    ],
)
def test_an_answer_that_cannot_be_used_leaves_its_client_out_and_no_other(garble, reason, tmp_path):
    post = Garbled(lambda: (FedAvg(linear, SGD), data_for("FedAvg")), tmp_path, garble=garble)
    found = federation(tmp_path / "server", num_rounds=1)
    found.hosts = RemoteHosts(post, {k: post.joined(k) for k in range(3)})
    found.fit(FedAvg(linear, SGD), data_for("FedAvg"))
    events = map(json.loads, Path(found.log_dir, "events.jsonl").read_text().splitlines())
    left_out = [event for event in events if event["event"] == "left_out"]
    assert [event["client"] for event in left_out] == [1]
    assert reason in left_out[0]["reason"]
    assert {row["client"] for row in rows(found) if row["data"] == "own"} >= {"0", "2"}


def test_a_host_without_the_round_that_it_is_to_go_on_from_says_so(tmp_path):
    there, post = by_post("FML", tmp_path, {"num_rounds": 1})
    for path in (tmp_path / "host_1").rglob("round_*.pt"):
        path.unlink()
    again = federation(tmp_path / "server", num_rounds=2)
    again.hosts = hosts_of(InProcess(post.make, tmp_path))
    again.fit(seeded("FML"), data_for("FML"), there.log_dir + "/checkpoints/last.ckpt")
    events = [json.loads(line) for line in Path(again.log_dir, "events.jsonl").read_text().splitlines()]
    reasons = [event["reason"] for event in events if event["event"] == "left_out"]
    assert any("of round 1 nothing is kept in client_1" in reason for reason in reasons)


def test_files_are_named_by_an_experiment_and_by_nothing_else(tmp_path):
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        OwnFiles(tmp_path, "../../elsewhere", 0, 3)


def test_as_many_rounds_are_kept_as_a_server_may_go_back(tmp_path):
    files = OwnFiles(tmp_path, "0" * 32, 0, keep=3)
    for number in range(1, 6):
        files.write(number, {"round": number})
    assert files.rounds() == [3, 4, 5]
    assert files.read(4) == {"round": 4}
    assert files.read(1) is None


@needs_flower
def test_a_node_that_loses_a_message_and_comes_back_is_asked_again(tmp_path, monkeypatch):
    from fake_grid import FakeGrid

    from fedlit.flower import grid

    monkeypatch.setattr(grid, "PAUSE", 0.0)
    post = InProcess(lambda: (FedAvg(linear, SGD), data_for("FedAvg")), tmp_path)
    fake = FakeGrid(post.answering, 3)
    by_grid = grid.GridPost(fake, 3, reply_timeout=60, join_timeout=60)
    found = federation(tmp_path / "server", num_rounds=1)
    found.hosts = RemoteHosts(by_grid, by_grid.wait_for_all())
    fake.lost = {node for node, k in fake.nodes.items() if k == 1}
    found.fit(FedAvg(linear, SGD), data_for("FedAvg"))
    assert fake.lost == set()
    assert {row["client"] for row in rows(found) if row["model"] == "trained"} == {"0", "1", "2"}


@needs_flower
def test_clients_that_do_not_join_are_missed_by_their_numbers(tmp_path, monkeypatch):
    from fake_grid import FakeGrid

    from fedlit.flower.grid import GridPost

    monkeypatch.setattr("fedlit.flower.grid.PAUSE", 0.1)
    post = InProcess(lambda: (FedAvg(linear, SGD), data_for("FedAvg")), tmp_path)
    with pytest.raises(
        ValueError, match=r"Clients \[0, 1, 2, 3\] have not joined .* refused: .*client 0 of 3, of 4 here"
    ):
        GridPost(FakeGrid(post.answering, 3), 4, reply_timeout=1, join_timeout=2).wait_for_all()


# --- data of their own


def write_images(path: Path, size: int, seed: int, num_classes: int = 3) -> str:
    draw = np.random.default_rng(seed)
    parts = {"train": size, "test": 6}
    arrays = {}
    for name, number in parts.items():
        arrays[f"{name}_images"] = draw.integers(0, 256, (number, 8, 8), dtype=np.uint8)
        arrays[f"{name}_labels"] = np.arange(number) % num_classes
    np.savez(path, **arrays)
    return str(path)


def own(path, k, num_clients, **options):
    defaults = {"batch_size": 8, "mean": 0.5, "std": 0.5}
    data = FederatedData(dataset=path, num_clients=num_clients, **{**defaults, **options})
    restrict_to_client(data, k)
    return data


class WithOwnData(InProcess):
    """Every host has a data set of its own."""

    def __init__(self, paths, folder, **options):
        super().__init__(None, folder, **options)
        self.paths = paths

    def host(self, k):
        torch.manual_seed(3)
        made = federation(self.folder / f"host_{k}", **self.options)
        data = own(self.paths[k], k, len(self.paths))
        return Host(made, FedAvg(linear, SGD), data, k, self.folder / f"host_{k}", owns_data=True)


def fitted_on(paths, folder):
    post = WithOwnData(paths, folder)
    joined = {k: post.joined(k) for k in range(len(paths))}
    found = federation(folder / "server")
    found.hosts = RemoteHosts(post, joined)
    torch.manual_seed(3)
    found.fit(FedAvg(linear, SGD), server_data(joined))
    return found


def test_one_client_with_data_of_its_own_is_a_simulation_of_one(tmp_path):
    path = write_images(tmp_path / "own.npz", 40, seed=0)
    there = fitted_on([path], tmp_path)
    here = federation(tmp_path / "here")
    torch.manual_seed(3)
    here.fit(FedAvg(linear, SGD), FederatedData(dataset=path, num_clients=1, batch_size=8, mean=0.5, std=0.5))
    assert equal(there.global_state, here.global_state)
    assert rows(there) == [row for row in rows(here) if row["data"] != "pooled"]
    assert not Path(there.log_dir, "partition.csv").exists()


def test_clients_with_data_of_their_own_count_by_their_samples(tmp_path):
    paths = [write_images(tmp_path / f"{k}.npz", size, seed=k) for k, size in enumerate((20, 40))]
    found = fitted_on(paths, tmp_path)
    data = found.state.data
    assert [data.client(k).num_samples for k in (0, 1)] == [18, 36]
    assert [data.client(k).num_opted_in for k in (0, 1)] == [18, 36]
    assert {row["client"] for row in rows(found) if row["data"] == "own"} == {"0", "1"}


@pytest.mark.parametrize("num_classes", [(2, 3), (2, 2)])  # the network has three outputs
def test_a_client_with_data_of_its_own_need_not_have_the_highest_class(num_classes, tmp_path):
    paths = [write_images(tmp_path / f"{k}.npz", 20, k, number) for k, number in enumerate(num_classes)]
    found = fitted_on(paths, tmp_path)
    assert {row["client"] for row in rows(found) if row["data"] == "own"} == {"0", "1"}
    assert found.state.data.splits.num_classes == 3


def test_a_client_with_a_class_that_the_network_has_not_is_refused_by_its_own_name(tmp_path):
    paths = [write_images(tmp_path / f"{k}.npz", 20, k, number) for k, number in enumerate((3, 4))]
    with pytest.raises(ValueError, match=r"the network of client 1 must give 4 outputs, one per class of the data"):
        WithOwnData(paths, tmp_path).host(1)
    with pytest.raises(ValueError, match=r"^Data of client 1: `data.num_classes` must be at least 4, since "):
        own(paths[1], 1, 2, num_classes=3)


def test_hosts_that_would_each_normalise_by_their_own_are_refused(tmp_path):
    path = write_images(tmp_path / "own.npz", 20, seed=0)
    with pytest.raises(ValueError, match=r"`data.mean` and `data.std` must be given"):
        own(path, 0, 2, mean=None, std=None)


def test_samples_of_another_kind_are_refused(tmp_path):
    paths = [write_images(tmp_path / f"{k}.npz", 20, seed=k) for k in range(2)]
    post = WithOwnData(paths, tmp_path)
    joined = {k: post.joined(k) for k in range(2)}
    joined[1]["preprocessing"]["mean"] = joined[1]["preprocessing"]["mean"] + 1
    with pytest.raises(ValueError, match=r"Samples of client 1 and of client 0 are not of one kind"):
        server_data(joined)


@needs_flower
def test_a_method_that_needs_a_public_pool_is_refused_by_name_where_clients_have_their_own_data():
    from fedlit.flower.apps import check_elsewhere

    for name, stage in (("FedMD", "public"), ("FedDF", "distil"), ("DLAD", "density")):
        message = f"{name} cannot run where clients have data of their own: stage '{stage}' needs the public pool"
        with pytest.raises(ValueError, match=message):
            check_elsewhere(seeded(name))
    check_elsewhere(seeded("FML"))
