"""FedDF: its invariant, its loss, and what its server learns from."""

import math
from functools import partial

import pytest
import torch
from torch import nn, tensor
from toys import SGD, SmallCNN, equal, fitted, linear, rows, seeded, toy_data

from fedlit import FedAvg
from fedlit.losses import distillation_loss
from fedlit.methods import FedDF


def deeper():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 3))


def with_pool(**options):
    return toy_data(120, **{"public": 0.5, **options})


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("run"))
    found = fitted(seeded(FedAvg, SmallCNN, SGD), with_pool(), default_root_dir=folder).global_state
    return {name.replace("network.", "networks.0."): tensor for name, tensor in found.items()}


@pytest.mark.parametrize(("epochs", "holds"), [(0, True), (1, False)])
def test_with_0_epochs_of_distillation_and_only_then_it_is_fedavg(epochs, holds, averaged):
    assert (
        equal(fitted(seeded(FedDF, SmallCNN, SGD, distil_epochs=epochs), with_pool()).global_state, averaged) is holds
    )


def test_the_loss_by_hand():
    # q = (1/4, 3/4), p = (1/2, 1/2): 1/4 ln(1/2) + 3/4 ln(3/2) = 0.130812; and 0 for a student that says the same
    teacher = tensor([[0.0, math.log(3)], [1.0, 1.0]])
    assert float(distillation_loss(torch.zeros(2, 2), teacher)) == pytest.approx(0.130812 / 2, abs=1e-6)
    assert float(distillation_loss(teacher, teacher)) == pytest.approx(0, abs=1e-7)


class Watched(FedDF):
    """Notes what the server begins with, and what it is taught."""

    def on_server_start(self, server, uploads):
        super().on_server_start(server, uploads)
        self.started = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        self.uploads = {k: dict(state) for k, state in uploads.items()}
        self.x = torch.cat([x for x, _ in server.train_batches(None)])


def test_the_server_starts_from_the_mean_and_is_taught_the_mean_of_this_rounds_logits(averaged):
    method = seeded(Watched, linear, SGD)
    federation = fitted(method, with_pool(), num_rounds=2, fraction_fit=0.7)
    assert len(method.uploads) == 2  # of three clients
    mean = {
        name: torch.stack([state[name] for state in method.uploads.values()]).mean(dim=0) for name in method.started
    }
    torch.testing.assert_close(method.started, mean)
    weights = [(state["networks.0.1.weight"], state["networks.0.1.bias"]) for state in method.uploads.values()]
    logits = torch.stack([method.x.flatten(1) @ weight.T + bias for weight, bias in weights])
    torch.testing.assert_close(method.recorded, logits.mean(dim=0))
    assert not equal(federation.global_state, method.started)


def test_distillation_brings_the_student_nearer_to_its_teachers():
    method = seeded(Watched, deeper, SGD, distil_epochs=10)
    federation = fitted(method, with_pool(), num_rounds=1, local_epochs=5)
    distances = []
    for state in (method.started, federation.global_state):
        method.load_state_dict(state)
        distances.append(float(distillation_loss(method.networks[0](method.x).detach(), method.recorded)))
    assert distances[1] < 0.8 * distances[0]
    found = [line for line in rows(federation) if line["metric"] == "distillation_loss"]
    assert [(line["stage"], line["client"], line["data"]) for line in found] == [("distil", "all", "public")]


def test_with_patience_the_best_state_by_clients_validation_samples_is_kept():
    harmful = partial(torch.optim.SGD, lr=100.0)
    method = seeded(Watched, linear, SGD, distil_epochs=3, patience=1, distil_optimizer=harmful)
    federation = fitted(method, with_pool(val_size=0.2), num_rounds=1, local_epochs=5)
    assert equal(federation.global_state, method.started)  # no epoch of these was any better
    without = seeded(Watched, linear, SGD, distil_epochs=3, distil_optimizer=harmful)
    assert not equal(fitted(without, with_pool(val_size=0.2), num_rounds=1).global_state, without.started)


# --- several architectures


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    method = seeded(Watched, linear, SGD, client_networks={1: deeper, 2: deeper})
    return fitted(method, with_pool(val_size=0.2), num_rounds=2, default_root_dir=str(tmp_path_factory.mktemp("mixed")))


def test_clients_of_an_architecture_have_a_mean_of_their_own(mixed):
    method = mixed.state.module
    uploads = method.uploads
    assert {k: {name[:10] for name in state} for k, state in uploads.items()} == {
        0: {"networks.0"},
        1: {"networks.1"},
        2: {"networks.1"},
    }
    torch.testing.assert_close(method.started["networks.0.1.bias"], uploads[0]["networks.0.1.bias"])
    both = torch.stack([uploads[k]["networks.1.1.bias"] for k in (1, 2)])
    torch.testing.assert_close(method.started["networks.1.1.bias"], both.mean(dim=0))


def test_all_of_them_teach_and_are_taught(mixed):
    method = mixed.state.module
    weights = {k: list(state.values()) for k, state in method.uploads.items()}
    x = method.x.flatten(1)
    logits = [x @ weights[0][0].T + weights[0][1]]
    for w1, b1, w2, b2 in (weights[1], weights[2]):
        logits.append((x @ w1.T + b1).relu() @ w2.T + b2)
    torch.testing.assert_close(method.recorded, torch.stack(logits).mean(dim=0))
    assert not equal(mixed.global_state, method.started)
    moved = {name[:10] for name, t in mixed.global_state.items() if not torch.equal(t, method.started[name])}
    assert moved == {"networks.0", "networks.1"}


def test_a_client_is_sent_its_own_architecture_alone_and_evaluated_with_it(mixed):
    sizes = {0: 4 * (64 * 3 + 3), 1: 4 * (64 * 4 + 4 + 4 * 3 + 3)}
    for line in rows(mixed, "ledger.csv"):
        assert int(line["bytes"]) == sizes[min(int(line["client"]), 1)], line
    own = [line for line in rows(mixed) if (line["model"], line["data"], line["metric"]) == ("personal", "own", "acc")]
    assert {line["client"] for line in own} == {"0", "1", "2"}
    assert len(list(mixed.network(client=1).parameters())) == 4
    assert len(list(mixed.network(client=0).parameters())) == len(list(mixed.network().parameters())) == 2
    tested = mixed.test(mixed.state.module, mixed.state.data)
    assert {row.client for row in tested if row.model == "personal"} == {0, 1, 2}
