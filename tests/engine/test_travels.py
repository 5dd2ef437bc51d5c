"""What goes down only, up only or both ways: where it is around local training, and what the ledger says."""

import pytest
import torch
from toys import SGD, Diary, equal, fitted, linear, rows, toy_data

from fedlit import FedAvg, FederatedModule
from fedlit.methods.factories import build
from fedlit.privacy import ClientLevelDP


class Counted(FederatedModule):
    """Shares its network; the server sends how often it has averaged, clients how many steps they took."""

    shared = ("network.",)
    download_only = ("agreed",)
    upload_only = ("steps",)
    server_only = ("sum_of_steps",)
    seen = Diary()

    def __init__(self, network=linear, optimizer=SGD):
        super().__init__(optimizer)
        self.network = build(network, "model.network")
        self.register_buffer("agreed", torch.zeros(1))
        self.register_buffer("steps", torch.full((2,), 5, dtype=torch.int64))
        self.register_buffer("own_steps", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("sum_of_steps", torch.zeros(1, dtype=torch.int64))

    def training_step(self, batch, batch_idx):
        self.steps[0] += 1
        self.own_steps += 1
        return super().training_step(batch, batch_idx)

    def on_client_start(self, client):
        self.seen.append((client.round, client.id, float(self.agreed), self.steps.tolist()))
        self.agreed += 100  # of no consequence: it does not go back

    def aggregate(self, uploads, current):
        uploads = list(uploads)
        total = current["sum_of_steps"] + sum(int(upload.state["steps"][0]) - 5 for upload in uploads)
        return {**self.combine(uploads, current), "agreed": current["agreed"] + 1, "sum_of_steps": total}


def test_every_entry_is_where_its_method_says_it_is():
    counted = Counted()
    federation = fitted(counted, num_rounds=2)
    # 18 samples a client in batches of 8: three steps a round. What goes up begins as it was made, every time.
    assert counted.seen[0] == (1, 0, 0.0, [5, 5])
    assert counted.seen[-1] == (2, 2, 1.0, [5, 5])
    held = federation.global_state
    assert held.keys() == {"network.1.weight", "network.1.bias", "agreed", "sum_of_steps"}
    assert held["agreed"].tolist() == [2.0]
    assert held["sum_of_steps"].tolist() == [18]
    assert sorted(federation.personal_states) == [0, 1, 2]
    for state in federation.personal_states.values():
        assert equal(state, {"own_steps": torch.tensor([6])})


def test_the_ledger_counts_what_goes_each_way():
    federation = fitted(Counted(), num_rounds=1)
    network = 4 * (64 * 3 + 3)
    ledger = rows(federation, "ledger.csv")
    found = {(row["client"], row["direction"], row["kind"]): int(row["bytes"]) for row in ledger}
    for k in "012":
        assert found.pop((k, "down", "model")) == found.pop((k, "up", "model")) == network
        assert found.pop((k, "down", "one-way")) == 4
        assert found.pop((k, "up", "one-way")) == 16
    assert found == {}


class Strange(Counted):
    upload_only = ("steps", "extra")

    def __init__(self):
        super().__init__()
        self.register_buffer("extra", torch.zeros(2))

    def on_client_end(self, client):
        if client.id == 1:
            self.extra.fill_(float("nan"))


def test_what_goes_up_is_checked_as_what_is_shared():
    federation = fitted(Strange(), num_rounds=1)
    assert federation.global_state["sum_of_steps"].tolist() == [6]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"upload_only": ("step_s",)}, r"`upload_only` of Own names 'step_s', but nothing in its state does"),
        ({"shared": ("network.")}, r"`shared` of Own must be a tuple of name prefixes, .* got 'network.'"),
        ({"server_only": ("agreed",)}, r"'agreed' of Own is both `download_only` and `server_only`"),
    ],
)
def test_names_that_cannot_be_are_refused(members, message):
    with pytest.raises(ValueError, match=message):
        fitted(type("Own", (Counted,), members)())


class Choosy(FedAvg):
    def __init__(self, chosen):
        super().__init__(linear, SGD)
        self.chosen = chosen
        self.asked = []

    def select_clients(self, round, candidates):
        self.asked.append((round, list(candidates), self.num_clients))
        return self.chosen(round) if callable(self.chosen) else self.chosen


def test_a_method_chooses_who_takes_part():
    method = Choosy(lambda round: [2, 0] if round == 1 else [1])
    federation = fitted(method, num_rounds=2)
    up = [row for row in rows(federation, "ledger.csv") if row["direction"] == "up"]
    assert [(row["round"], row["client"]) for row in up] == [("1", "0"), ("1", "2"), ("2", "1")]
    assert method.asked == [(1, [0, 1, 2], 3), (2, [0, 1, 2], 3)]


@pytest.mark.parametrize("chosen", [[], [0, 0], [3]])
def test_a_choice_that_is_none_is_refused(chosen):
    with pytest.raises(ValueError, match=r"`select_clients` of Choosy in round 1 must choose clients that may take"):
        fitted(Choosy(chosen))


def test_a_method_knows_how_many_may_take_part():
    method = FedAvg(linear, SGD)
    assert method.num_clients == 1
    fitted(method, toy_data(num_clients=5, unseen_clients=1, opt_out=[1]), num_rounds=1)
    assert method.num_clients == 3


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Counted, r"`trainer.privacy`: noise is for what is shared, and Counted also uploads 'steps'"),
        (lambda: Choosy(None), r"`trainer.privacy`: every client is drawn by itself, and `select_clients` of Choosy"),
    ],
)
def test_what_noise_would_not_cover_is_refused(method, message):
    with pytest.raises(ValueError, match=message):
        fitted(method(), privacy=ClientLevelDP(noise_multiplier=0.0, delta=0.1))
