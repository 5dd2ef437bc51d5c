"""`download` and kept uploads, by two tiny methods: FedAMP sends a mixture, FedFomo other clients' networks."""

import pytest
import torch
from toys import SGD, Diary, equal, fitted, linear, rows, seeded

from fedlit import FedAvg
from fedlit.losses import proximal_penalty
from fedlit.methods import Stage, frozen
from fedlit.privacy import ClientLevelDP


def distance(a, b):
    return float(sum((a[name].double() - b[name].double()).square().sum() for name in a))


class FedAMP(FedAvg):
    """A client is held near a mixture of networks, of which those like its own count more. Huang et al., 2021."""

    def configure_stages(self):
        return [Stage("federate", keep_uploads=True)]

    def download(self, client, current, uploads):
        if client.id not in uploads:
            return current
        own = uploads[client.id]
        weights = torch.tensor([-distance(own, uploads[k]) for k in uploads]).softmax(dim=0).tolist()
        return {
            name: sum(weight * uploads[k][name] for weight, k in zip(weights, uploads, strict=True)).to(current[name])
            for name in current
        }

    def on_client_start(self, client):
        self.anchors = frozen(self.network.parameters())

    def training_step(self, batch, batch_idx):
        near = proximal_penalty(self.network.parameters(), self.anchors, mu=0.5)
        return super().training_step(batch, batch_idx) + near


class FedFomo(FedAvg):
    """A client goes on with its own network, and is sent those of others. Zhang et al., 2021."""

    seen = Diary(dict)

    def configure_stages(self):
        return [Stage("federate", keep_uploads=True)]

    def download(self, client, current, uploads):
        if client.id not in uploads:
            return current
        others = [k for k in uploads if k != client.id]
        return {f"{k}/{name}": tensor for k in others for name, tensor in uploads[k].items()}

    def on_client_start(self, client):
        own = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        self.seen[client.round, client.id] = (own, dict(self.received))
        with torch.no_grad():
            for tensor in self.received.values():
                tensor.zero_()  # its copy is the client's own


@pytest.fixture(scope="module")
def fomo(tmp_path_factory):
    return fitted(seeded(FedFomo, linear, SGD), num_rounds=2, default_root_dir=str(tmp_path_factory.mktemp("fomo")))


def test_a_client_goes_on_with_its_own_and_receives_what_others_uploaded_last(fomo):
    seen = fomo.state.module.seen
    initial = seeded(FedFomo, linear, SGD).state_dict()
    assert all(equal(seen[1, k][0], initial) and seen[1, k][1] == {} for k in range(3))
    after_round_1 = fitted(seeded(FedFomo, linear, SGD), num_rounds=1).state.uploads
    for k in range(3):
        own, received = seen[2, k]
        assert equal(own, after_round_1[k])
        assert {name.split("/")[0] for name in received} == {str(j) for j in range(3) if j != k}
    assert fomo.state.module.received == {}


def test_a_clients_model_is_the_one_that_it_uploaded_last(fomo):
    data = fomo.state.data
    for k in range(3):
        weight, bias = fomo.state.uploads[k].values()
        batches = data.client(k).val_batches()
        right = (batches.x.flatten(1) @ weight.T + bias).argmax(dim=1) == batches.y
        found = [row for row in rows(fomo) if (row["model"], row["data"], row["client"]) == ("personal", "own", str(k))]
        accuracy = next(float(row["value"]) for row in reversed(found) if row["metric"] == "acc")
        assert accuracy == pytest.approx(float(right.float().mean()))
        assert torch.equal(next(fomo.network(client=k).parameters()), weight)
    assert {row.client for row in fomo.test(fomo.state.module, data) if row.model == "personal"} == {0, 1, 2}
    assert equal(fomo.personal_states[1], fomo.state.uploads[1])


def test_the_ledger_has_what_each_client_was_sent(fomo):
    size = 4 * (64 * 3 + 3)
    lines = rows(fomo, "ledger.csv")
    down = {(row["round"], row["client"]): int(row["bytes"]) for row in lines if row["direction"] == "down"}
    assert down == {("1", str(k)): size for k in range(3)} | {("2", str(k)): 2 * size for k in range(3)}
    assert all(int(row["bytes"]) == size for row in lines if row["direction"] == "up")


class Noting(FedAMP):
    started = Diary(dict)

    def on_client_start(self, client):
        super().on_client_start(client)
        self.started[client.round, client.id] = self.network[1].bias.detach().clone()


def test_a_mixture_is_loaded_as_the_clients_network():
    method = seeded(Noting, linear, SGD)
    fitted(method, num_rounds=2)
    uploads = fitted(seeded(FedAMP, linear, SGD), num_rounds=1).state.uploads
    for k in range(3):
        weights = torch.tensor([-distance(uploads[k], uploads[j]) for j in range(3)]).softmax(dim=0)
        mixture = sum(weights[j] * uploads[j]["network.1.bias"] for j in range(3))
        torch.testing.assert_close(method.started[2, k], mixture)


class Bad(FedAvg):
    given: object = None

    def download(self, client, current, uploads):
        return self.given(current)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda current: [1], "must give a mapping from names to tensors, got list"),
        (lambda current: {"network.1.bias": torch.zeros(4)}, "gave what cannot be used"),
        (lambda current: {"other": torch.tensor([float("nan")])}, "gave what cannot be used: 'other' is not finite"),
    ],
)
def test_what_cannot_be_sent_ends_the_run_by_name(given, message):
    method = seeded(Bad, linear, SGD)
    method.given = given
    with pytest.raises(ValueError, match=rf"`download` of Bad, for client 0, .*{message}"):
        fitted(method)


def test_logs_and_privacy_have_no_place_there():
    class Logging(FedAvg):
        def download(self, client, current, uploads):
            self.log("sent", 1.0)

    with pytest.raises(ValueError, match=r"`self.log\('sent', ...\)` in `download`"):
        fitted(seeded(Logging, linear, SGD))
    with pytest.raises(ValueError, match="FedAMP uses clients' states as they are after stage 'federate'"):
        fitted(seeded(FedAMP, linear, SGD), privacy=ClientLevelDP(delta=0.01))
