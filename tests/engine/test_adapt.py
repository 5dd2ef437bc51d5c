"""A new client joins and nobody else notices."""

import sys
from functools import cache

import pytest
import torch
from toys import SGD, equal, fitted, linear, toy_data

from fedlit import FedAvg, Federation, LocalOnly
from fedlit.engine.inference import epochs_to_converge, table_of_epochs
from fedlit.engine.metrics import MetricSet
from fedlit.engine.scheduling import TooFewClients
from fedlit.methods import FML, FedFusion, FedMMD, MixtureOfExperts
from fedlit.records.rows import Row

QUIET = {"enable_progress_bar": False, "logger": False, "accelerator": "cpu"}


def data():
    return toy_data(num_clients=4, unseen_clients=1)


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


@cache
def of_fml():
    return adapted(FML(linear, linear, SGD))


@pytest.mark.parametrize("joined", [of_fedavg, of_fml])
def test_a_new_client_learns_and_server_and_clients_stay_as_they_are(joined):
    rows = joined()
    assert {row.client for row in rows} == {3}
    for model in ("personal", "finetuned", "scratch"):
        losses = curve(rows, model)
        assert len(losses) == 4
        assert losses[-1] < losses[0]


def test_fine_tuning_starts_from_the_global_model_and_from_scratch_does_not():
    rows = of_fedavg()
    assert curve(rows, "personal") == curve(rows, "finetuned")  # that is what FedAvg's own new client does
    assert curve(rows, "finetuned")[0] < curve(rows, "scratch")[0]


def test_a_new_client_of_fml_starts_with_a_network_of_its_own():
    rows = of_fml()
    assert curve(rows, "personal")[0] != curve(rows, "finetuned")[0]


def test_a_new_client_of_fml_may_start_from_the_servers_model():
    rows = adapted(FML(linear, linear, SGD, alpha=1.0, personal_from="server"))
    assert curve(rows, "personal") == curve(rows, "finetuned")  # with labels alone that is fine-tuning
    rows = adapted(FML(linear, linear, SGD, alpha=0.5, personal_from="server"))
    assert curve(rows, "personal")[0] == curve(rows, "finetuned")[0]
    assert curve(rows, "personal")[1:] != curve(rows, "finetuned")[1:]


def test_a_new_client_of_fedfusion_starts_from_extractor_fusion_and_head():
    from test_fedfusion import Small

    rows = adapted(FedFusion(Small, SGD, "multi"))
    assert curve(rows, "personal")[-1] < curve(rows, "personal")[0]


def test_a_method_without_a_global_model_has_nothing_to_fine_tune():
    assert {row.model for row in adapted(LocalOnly(linear, SGD))} == {"personal", "scratch"}


def test_the_epochs_that_a_new_client_needs_are_told_of_every_model():
    rows = of_fedavg()
    told = {row.model: row for row in rows if row.metric == "epochs_to_converge"}
    assert told.keys() == {"personal", "finetuned", "scratch"}
    for model, row in told.items():
        accuracies = curve(rows, model, "acc")
        assert row.round == 3
        assert accuracies[row.value] >= max(accuracies) - 0.005
        assert all(accuracy < max(accuracies) - 0.005 for accuracy in accuracies[: row.value])


@pytest.mark.parametrize(("accuracies", "epoch"), [([0.9, 0.2], 0), ([0.1, 0.5, 0.506, 0.51], 2), ([0.1, 0.2], 1)])
def test_epochs_to_converge_by_hand(accuracies, epoch):
    assert epochs_to_converge(accuracies) == epoch


def test_without_an_unseen_client_nobody_can_join():
    method = FedAvg(linear, SGD)
    federation = fitted(method, num_rounds=1)
    with pytest.raises(ValueError, match=r"`data.unseen_clients` must be at least 1: no client was kept out"):
        federation.adapt(method, toy_data())


def test_an_adaptation_from_a_checkpoint_leaves_a_table_and_a_picture(tmp_path):
    torch.manual_seed(0)
    method = FML(linear, linear, SGD)
    fitted(method, data(), num_rounds=2, default_root_dir=str(tmp_path))
    Federation(default_root_dir=str(tmp_path), **QUIET).adapt(method, data(), ckpt_path="last", epochs=2)
    names = {path.name for path in (tmp_path / "lightning_logs/version_0").iterdir()}
    assert {"adapt.csv", "adapt.png"} <= names


def test_the_table_tells_what_a_new_client_has_before_and_after_and_at_its_best(capsys):
    rows = adapted(FML(linear, linear, SGD), epochs=3)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["metric", "model", "on", "before", "after", "best", "at", "epoch"]
    for line, model in zip(lines, ("personal", "finetuned", "scratch"), strict=False):
        accuracies = curve(rows, model, "acc")
        best = max(accuracies)
        told = ["acc", model, "unseen", *(f"{value:.4f}" for value in (accuracies[0], accuracies[-1], best))]
        assert line.split() == [*told, str(accuracies.index(best))]
    assert lines[3].startswith("epochs to converge, until a client is within 0.005 of its own best: personal ")


def test_a_mean_of_new_clients_is_taken_epoch_by_epoch():
    rows = []
    for client, accuracies in ((3, [0.0, 0.75, 0.5]), (4, [0.5, 0.75, 0.5])):
        rows += [Row(epoch, "adapt", client, "personal", "unseen", "acc", acc) for epoch, acc in enumerate(accuracies)]
    told = table_of_epochs(rows, MetricSet(FedAvg(linear, SGD), {})).splitlines()[1]
    assert told.split() == ["acc", "personal", "unseen", "0.2500", "0.5000", "0.7500", "1"]


@pytest.mark.parametrize("options", [{"opt_out_samples": 0.4}, {"opt_out": [3]}])
def test_a_new_client_trains_on_samples_that_it_does_not_share(options):
    from test_fedfusion import Small

    for method in (FedMMD(linear, SGD), FedFusion(Small, SGD)):
        federation = fitted(method, toy_data(num_clients=4, unseen_clients=1, **options), num_rounds=1)
        rows = federation.adapt(method, toy_data(num_clients=4, unseen_clients=1, **options), epochs=1)
        assert len(curve(rows, "personal")) == 2


def test_what_a_new_client_freezes_is_what_it_received():
    from test_fedfusion import Small

    class Watched(FedFusion):
        def on_client_end(self, client):
            super().on_client_end(client)
            Watched.reference = {n: t.clone() for n, t in self.network.reference.state_dict().items()}

    method = Watched(Small, SGD, "conv")
    federation = fitted(method, data(), num_rounds=2)
    federation.adapt(method, data(), epochs=3)
    received = federation.global_state
    prefix = "network.extractor."
    assert equal(Watched.reference, {n.removeprefix(prefix): t for n, t in received.items() if n.startswith(prefix)})


def test_from_scratch_is_from_the_initialisation_that_was_asked_for():
    def zeroed():
        network = linear()
        torch.nn.init.zeros_(network[1].weight)
        torch.nn.init.zeros_(network[1].bias)
        return network

    loss = curve(adapted(FedAvg(zeroed, SGD)), "scratch")[0]
    assert loss == pytest.approx(torch.tensor(3.0).log().item())


def test_a_new_client_of_a_mixture_starts_with_the_global_expert():
    rows = adapted(MixtureOfExperts(linear, SGD, epochs=2))
    assert curve(rows, "personal")[-1] < curve(rows, "personal")[0]


class ShyNewcomer(FedAvg):
    """Client 3 ends the process when it joins."""

    shy = (3,)

    def on_client_start(self, client):
        if client is not None and client.id in self.shy:
            sys.exit(0)


def test_a_new_client_that_fails_keeps_no_other_from_joining(capsys):
    method = ShyNewcomer(linear, SGD)
    two_unseen = {"num_clients": 5, "unseen_clients": 2}
    federation = fitted(method, toy_data(**two_unseen), num_rounds=1)
    rows = federation.adapt(method, toy_data(**two_unseen), epochs=1)
    assert {row.client for row in rows} == {4}
    assert "without client 3: SystemExit" in capsys.readouterr().out
    method.shy = (3, 4)
    with pytest.raises(TooFewClients, match="No unseen client could join; client 3: SystemExit"):
        federation.adapt(method, toy_data(**two_unseen), epochs=1)
