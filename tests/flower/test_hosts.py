"""Clients on hosts of their own, by a post within this process: the simulation's bits, and nothing that is theirs."""

from pathlib import Path

import pytest
from conftest import equal
from in_process import METHODS, by_post, simulated

from fedlit import methods


def lines(federation, name="metrics.csv"):
    return Path(federation.log_dir, name).read_text()


def own_state(post, federation, k):
    """What a client keeps in its files, after its last visit that counts."""
    host = post.host(k)
    asked = {"experiment": federation.hosts.experiment}
    kept = host._before(host._files(asked), federation.hosts.rounds.get(k, 0))
    return {} if not kept else {**kept["collected"], **kept["uploaded"], **kept["memory"]["state"]}


def test_all_methods_are_here():
    exported = {kind.__name__ for kind in methods.FederatedModule.__subclasses__()} & set(methods.__all__)
    assert exported == set(METHODS)


@pytest.fixture
def one_by_one(monkeypatch):
    """A simulation may evaluate the global model on several clients' samples in one batch, which rounds otherwise."""
    monkeypatch.setattr("fedlit.engine.evaluations.evaluation.sees_samples_apart", lambda *given: False)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("name", METHODS)
def test_clients_on_their_own_hosts_come_to_the_bits_of_a_simulation(name, tmp_path):
    here = simulated(name, tmp_path / "here")
    there, post = by_post(name, tmp_path)
    assert equal(there.global_state, here.global_state)
    assert lines(there) == lines(here)
    assert lines(there, "ledger.csv") == lines(here, "ledger.csv")
    for k in range(3):
        assert equal(own_state(post, there, k), here.personal_states.get(k, {}))
