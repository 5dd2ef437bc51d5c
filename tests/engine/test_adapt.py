"""A new client joins and nobody else notices."""

import sys
from functools import cache

import pytest
import torch
from toys import SGD, equal, fitted, linear, toy_data

from fedlit import FedAvg, Federation, LocalOnly
from fedlit.methods import FML, FedMMD


def data(**options):
    return toy_data(**{"num_clients": 4, "unseen_clients": 1, **options})


def adapted(method, epochs=3):
    federation = fitted(method, data(), num_rounds=2)
    server = {name: tensor.clone() for name, tensor in federation.global_state.items()}
    personal = {k: dict(state) for k, state in federation.personal_states.items()}
    rows = federation.adapt(method, data(), epochs=epochs)
    assert equal(federation.global_state, server)
    assert federation.personal_states.keys() == personal.keys()
    assert all(equal(federation.personal_states[k], personal[k]) for k in personal)
    return rows


def curve(rows, model, metric="loss"):
    return [row.value for row in rows if (row.model, row.metric) == (model, metric)]


@cache
def of_fedavg():
    return adapted(FedAvg(linear, SGD))


def test_a_new_client_learns_and_server_and_clients_stay_as_they_are():
    rows = adapted(FML(linear, linear, SGD))
    assert {row.client for row in rows} == {3}
    for model in ("personal", "finetuned", "scratch"):
        losses = curve(rows, model)
        assert len(losses) == 4
        assert losses[-1] < losses[0]


def test_fine_tuning_starts_from_the_global_model_and_from_scratch_does_not():
    rows = of_fedavg()
    assert curve(rows, "personal") == curve(rows, "finetuned")  # that is what FedAvg's own new client does
    assert curve(rows, "finetuned")[0] < curve(rows, "scratch")[0]


def test_a_new_client_of_fml_may_start_from_the_servers_model():
    rows = adapted(FML(linear, linear, SGD, alpha=1.0, personal_from="server"))
    assert curve(rows, "personal") == curve(rows, "finetuned")  # with labels alone that is fine-tuning
    rows = adapted(FML(linear, linear, SGD, alpha=0.5, personal_from="server"))
    assert curve(rows, "personal")[0] == curve(rows, "finetuned")[0]
    assert curve(rows, "personal")[1:] != curve(rows, "finetuned")[1:]


def test_a_method_without_a_global_model_has_nothing_to_fine_tune():
    assert {row.model for row in adapted(LocalOnly(linear, SGD))} == {"personal", "scratch"}


def test_the_epochs_that_a_new_client_needs_are_reported_of_every_model():
    rows = of_fedavg()
    needed = {row.model: row for row in rows if row.metric == "epochs_to_converge"}
    assert needed.keys() == {"personal", "finetuned", "scratch"}
    for model, row in needed.items():
        accuracies = curve(rows, model, "acc")
        assert row.round == 3
        assert accuracies[row.value] >= max(accuracies) - 0.005
        assert all(accuracy < max(accuracies) - 0.005 for accuracy in accuracies[: row.value])


def test_without_an_unseen_client_nobody_can_join():
    method = FedAvg(linear, SGD)
    federation = fitted(method, num_rounds=1)
    with pytest.raises(ValueError, match=r"`data.unseen_clients` must be at least 1: no client was kept out"):
        federation.adapt(method, toy_data())


def test_an_adaptation_from_a_checkpoint_leaves_a_table_and_a_picture(tmp_path):
    torch.manual_seed(0)
    method = FML(linear, linear, SGD)
    fitted(method, data(), num_rounds=2, default_root_dir=str(tmp_path))
    federation = Federation(default_root_dir=str(tmp_path), enable_progress_bar=False, accelerator="cpu")
    federation.adapt(method, data(), ckpt_path="last", epochs=2)
    names = {path.name for path in (tmp_path / "lightning_logs/version_0").iterdir()}
    assert {"adapt.csv", "adapt.png"} <= names


def test_the_table_shows_what_a_new_client_has_before_and_after_and_at_its_best(capsys):
    rows = adapted(FML(linear, linear, SGD), epochs=3)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["metric", "model", "on", "before", "after", "best", "at", "epoch"]
    for line, model in zip(lines, ("personal", "finetuned", "scratch"), strict=False):
        accuracies = curve(rows, model, "acc")
        best = max(accuracies)
        values = [f"{value:.4f}" for value in (accuracies[0], accuracies[-1], best)]
        assert line.split() == ["acc", model, "unseen", *values, str(accuracies.index(best))]
    assert lines[3].startswith("epochs to converge, until a client is within 0.005 of its own best: personal ")


def test_a_new_client_trains_on_samples_that_it_does_not_share():
    method = FedMMD(linear, SGD)
    federation = fitted(method, data(opt_out=[3]), num_rounds=1)
    assert len(curve(federation.adapt(method, data(opt_out=[3]), epochs=1), "personal")) == 2


class ShyNewcomer(FedAvg):
    """Client 3 ends the process when it joins."""

    shy = (3,)

    def on_client_start(self, client):
        if client is not None and client.id in self.shy:
            sys.exit(0)


def test_a_new_client_that_fails_keeps_no_other_from_joining(capsys):
    method = ShyNewcomer(linear, SGD)
    two_unseen = {"num_clients": 5, "unseen_clients": 2}
    federation = fitted(method, data(**two_unseen), num_rounds=1)
    rows = federation.adapt(method, data(**two_unseen), epochs=1)
    assert {row.client for row in rows} == {4}
    assert "without client 3: SystemExit" in capsys.readouterr().out
    method.shy = (3, 4)
    with pytest.raises(RuntimeError, match="No unseen client could join; client 3: SystemExit"):
        federation.adapt(method, data(**two_unseen), epochs=1)
