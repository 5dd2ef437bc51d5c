"""Clients on hosts of their own, by a post within this process: the simulation's bits, and nothing that is theirs."""

import struct
from pathlib import Path

import pytest
import torch
from in_process import METHODS, by_post, simulated
from toys import SGD, SmallCNN, Spy, equal, linear

from fedlit import Federation, methods
from fedlit.encoders import Float16


def lines(federation, name="metrics.csv"):
    return Path(federation.log_dir, name).read_text()


def own_state(post, federation, k):
    """What a client keeps in its files, after its last round that counts."""
    host = post.host(k)
    asked = {"experiment": federation.hosts.experiment}
    kept = host._before(host._files(asked), federation.hosts.rounds.get(k, 0))
    return {} if not kept else {**kept["collected"], **kept["uploaded"], **kept["memory"]["state"]}


SWIFT = ("FedAvg", "FML", "SCAFFOLD", "FedBN", "FedProto", "FedMD", "DLAD", "MixtureOfExperts")  # what travels differs


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SWIFT else pytest.mark.slow) for name in METHODS]
)
def test_clients_on_their_own_hosts_come_to_the_bits_of_a_simulation(name, tmp_path):
    apart = {"eval_batch_size": 1}  # a simulation may evaluate several clients' samples in one batch
    here = simulated(name, tmp_path / "here", **apart)
    there, post = by_post(name, tmp_path, **apart)
    assert equal(there.global_state, here.global_state)
    assert lines(there) == lines(here)
    assert lines(there, "ledger.csv") == lines(here, "ledger.csv")
    for k in range(3):
        assert equal(own_state(post, there, k), here.personal_states.get(k, {}))


def test_a_host_that_is_new_for_every_letter_comes_to_the_same(tmp_path):
    there, _ = by_post("FML", tmp_path / "one")
    anew, _ = by_post("FML", tmp_path / "two", fresh=True)
    assert equal(anew.global_state, there.global_state)
    assert lines(anew) == lines(there)


CANARY = 1234.5678


class WithCanaries(methods.FML):
    """Every personal parameter holds a number that nothing else does, from the end of local training on."""

    def on_client_end(self, client):
        with torch.no_grad():
            for parameter in self.personal.parameters():
                parameter.fill_(CANARY)


def carried_with(method, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "Canaries", lambda: method(linear, SmallCNN, SGD))
    there, post = by_post("Canaries", tmp_path, {"optimizer_state": "keep"})
    needle = struct.pack("<f", CANARY)
    kept = own_state(post, there, 0)
    assert all(bool((kept[name] == CANARY).all()) for name in kept if name.startswith("personal."))
    return [(what, k) for what, k, data in post.carried if needle in data]


def test_a_canary_in_every_personal_parameter_is_in_no_message(tmp_path, monkeypatch):
    assert carried_with(WithCanaries, tmp_path, monkeypatch) == []


class Leaky(WithCanaries):
    """Shares what it says is personal."""

    def on_client_end(self, client):
        super().on_client_end(client)
        with torch.no_grad():
            next(self.meme.parameters()).fill_(CANARY)


def test_one_that_was_uploaded_would_be_found(tmp_path, monkeypatch):
    assert ("train", 0) in carried_with(Leaky, tmp_path, monkeypatch)


def test_a_round_that_is_asked_for_again_is_answered_without_training(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "Spy", Spy)
    _, post = by_post("Spy", tmp_path, {"num_rounds": 1})
    host = post.host(0)
    letter = post.letters["train", 0]
    answers = [host.answer("train", letter) for _ in range(2)]
    assert answers[0] == answers[1]
    assert host.state.module.trained == [(1, 0)]


def test_an_encoder_of_uploads_is_refused_before_anybody_is_waited_for():
    apps = pytest.importorskip("fedlit.flower.apps", exc_type=ImportError)
    with pytest.raises(ValueError, match=r"`trainer\.upload_encoder` is for simulations"):
        apps.check_uploads(Federation(upload_encoder=Float16()))
    apps.check_uploads(Federation())
