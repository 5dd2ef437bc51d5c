"""A new client joins and nobody else notices."""

import pytest
import torch
from conftest import SGD, equal, fitted, linear, toy_data

from fedlit import FedAvg, Federation, LocalOnly
from fedlit.methods import FML, FedFusion

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


@pytest.mark.parametrize("method", [lambda: FedAvg(linear, SGD), lambda: FML(linear, linear, SGD)])
def test_a_new_client_learns_and_server_and_clients_stay_as_they_are(method):
    rows = adapted(method())
    assert {row.client for row in rows} == {3}
    for model in ("personal", "finetuned", "scratch"):
        losses = curve(rows, model)
        assert len(losses) == 4
        assert losses[-1] < losses[0]


def test_fine_tuning_starts_from_the_global_model_and_from_scratch_does_not():
    rows = adapted(FedAvg(linear, SGD))
    assert curve(rows, "personal") == curve(rows, "finetuned")  # that is what FedAvg's own new client does
    assert curve(rows, "finetuned")[0] < curve(rows, "scratch")[0]


def test_a_new_client_of_fml_starts_with_a_network_of_its_own():
    rows = adapted(FML(linear, linear, SGD))
    assert curve(rows, "personal")[0] != curve(rows, "finetuned")[0]


def test_a_new_client_of_fedfusion_starts_from_extractor_fusion_and_head():
    from test_fedfusion import Small

    rows = adapted(FedFusion(Small, SGD, "multi"))
    assert curve(rows, "personal")[-1] < curve(rows, "personal")[0]


def test_a_method_without_a_global_model_has_nothing_to_fine_tune():
    assert {row.model for row in adapted(LocalOnly(linear, SGD))} == {"personal", "scratch"}


def test_without_an_unseen_client_nobody_can_join():
    method = FedAvg(linear, SGD)
    federation = fitted(method, num_rounds=1)
    with pytest.raises(ValueError, match=r"`data.unseen_clients` must be at least 1, got 10 and 0"):
        federation.adapt(method, toy_data())


def test_an_adaptation_from_a_checkpoint_leaves_a_table_and_a_picture(tmp_path):
    torch.manual_seed(0)
    method = FML(linear, linear, SGD)
    fitted(method, data(), num_rounds=2, default_root_dir=str(tmp_path))
    Federation(default_root_dir=str(tmp_path), **QUIET).adapt(method, data(), ckpt_path="last", epochs=2)
    names = {path.name for path in (tmp_path / "lightning_logs/version_0").iterdir()}
    assert {"adapt.csv", "adapt.png"} <= names
