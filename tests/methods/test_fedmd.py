"""FedMD: its invariants, what is exchanged, and a hand-worked digestion."""

import pytest
import torch
from plain_loops import PLAIN
from torch import nn, tensor
from toys import Diary, equal, fitted, linear, rows, toy_data

from fedlit.methods import FedMD, Stage


def seeded(method=FedMD, network=linear, **options):
    torch.manual_seed(7)
    return method(network, PLAIN, **{"public_epochs": 1, "private_epochs": 1, "subset": 20, **options})


def with_pool(**options):
    return toy_data(120, **{"public": 0.5, **options})


class Watched(FedMD):
    """Notes what each client says after local training, and the public samples of a round."""

    said = Diary(dict)
    x = Diary(dict)

    def on_client_end(self, client):
        super().on_client_end(client)
        if self.stage.name == "exchange":
            self.said[client.round, client.id] = self.scores.clone()
            self.x[client.round + 1, client.id] = torch.cat(list(self._public(client, client.round + 1)))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("watched"))
    return fitted(seeded(Watched), with_pool(), num_rounds=2, default_root_dir=folder)


def test_with_one_client_the_consensus_is_its_own_scores():
    method = seeded(Watched)
    federation = fitted(method, with_pool(num_clients=1), num_rounds=2)
    assert torch.equal(federation.global_state["scores"], method.said[4, 0])


def test_with_several_it_is_the_mean_of_all_and_nobodys_own(watched):
    method = watched.state.module
    said = [method.said[4, k] for k in range(3)]
    consensus = watched.global_state["scores"]
    torch.testing.assert_close(consensus, torch.stack(said).mean(dim=0))
    assert not any(torch.equal(consensus, own) for own in said)


def test_a_clients_scores_are_its_logits_of_the_next_rounds_samples_which_are_everybodys(watched):
    method = watched.state.module
    assert torch.equal(method.x[5, 0], method.x[5, 2])
    assert not torch.equal(method.x[4, 0], method.x[5, 0])
    weight, bias = (watched.personal_states[1][f"network.1.{name}"] for name in ("weight", "bias"))
    torch.testing.assert_close(method.said[4, 1], method.x[5, 1].flatten(1) @ weight.T + bias)


@pytest.mark.parametrize(("epochs", "is_alone"), [(0, True), (1, False)])
def test_without_digestion_and_only_then_a_client_is_alone(epochs, is_alone):
    federations = [fitted(seeded(digest_epochs=epochs), with_pool(unseen_clients=n)) for n in (2, 0)]
    assert equal(*(federation.network(client=0).state_dict() for federation in federations)) is is_alone


class Scalar(nn.Module):
    """Logits w x and -w x of one number."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(tensor(0.5))

    def forward(self, x):
        return self.w * torch.cat([x, -x], dim=1)


def test_digestion_by_hand():
    # Of x = 2 others say (3, -3): |2 w - 3| + |-2 w + 3| over 2 has the slope -2, so w = 0.5 + 0.1 * 2 = 0.7
    method = FedMD(Scalar, PLAIN)
    method.scores = tensor([[3.0, -3.0]])
    method.stage = Stage("exchange")
    method._public = lambda client, round: iter([tensor([[2.0]])])
    method.on_client_start(type("Client", (), {"id": 0, "round": 2, "data": with_pool()})())
    assert float(method.network.w.detach()) == pytest.approx(0.7)


def test_the_pool_goes_down_once_and_scores_both_ways_and_networks_never(watched):
    scores = 4 * 20 * 3
    lines = [(row["round"], row["direction"], row["kind"], int(row["bytes"])) for row in rows(watched, "ledger.csv")]
    pool = watched.state.data.public_pool.num_bytes
    assert {line for line in lines if line[2] == "public pool"} == {("1", "down", "public pool", pool)}
    exchanged = {line for line in lines if line[0] in ("3", "4")}
    assert exchanged == {(r, way, "model", scores) for r in ("3", "4") for way in ("up", "down")}
    assert all(line[1] == "down" for line in lines if line[0] in ("1", "2"))


def test_clients_learn_the_pools_labels_first_and_only_then_their_own():
    class Noting(FedMD):
        targets: dict = {}  # noqa: RUF012

        def training_step(self, batch, batch_idx):
            Noting.targets.setdefault(self.stage.name, []).append(batch[1])
            return super().training_step(batch, batch_idx)

    federation = fitted(seeded(Noting), with_pool(), num_rounds=1)
    labels = federation.state.data.public_pool.part.y
    public = torch.cat(Noting.targets["public"])
    assert len(public) == 3 * len(labels)
    assert torch.equal(public.bincount(), 3 * labels.bincount())
    own = sum(federation.state.data.client(k).num_opted_in for k in range(3))
    assert len(torch.cat(Noting.targets["private"])) == own


def test_networks_may_differ(tmp_path):
    def deeper():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 3))

    federation = fitted(seeded(client_networks={2: deeper}), with_pool(), num_rounds=2)
    assert len(list(federation.network(client=2).parameters())) == 4
    logged = [row for row in rows(federation) if row["metric"] == "digestion_loss"]
    assert {row["round"] for row in logged} == {"4"}  # in round 3 nobody has said anything yet


def test_a_method_that_does_not_say_that_labels_are_public_is_refused_them():
    class Unsaid(FedMD):
        labelled_pool = False

    with pytest.raises(ValueError, match=r"Stage 'public': clients never see the labels .* \(`labelled_pool = True`\)"):
        fitted(seeded(Unsaid), with_pool())
