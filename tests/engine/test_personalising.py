"""`personalise`: who is evaluated with it, that it is forgotten, and that it keeps nobody else from anything."""

import pytest
import torch
from toys import SGD, SmallCNN, equal, events, fitted, linear, rows, toy_data

from fedlit import FedAvg, LocalOnly
from fedlit.methods import Stage


class Biased(FedAvg):
    """Each client's own model says its id, whatever it sees."""

    def personalise(self, client):
        assert torch.is_grad_enabled()
        assert self.training
        self.log("train_loss", 1.0)  # as a step that is called here does
        with torch.no_grad():
            self.network[-1].bias += 1000 * torch.nn.functional.one_hot(torch.tensor(client.id), 3)


def values(lines, model, data):
    found = [line for line in lines if (line["model"], line["data"], line["metric"]) == (model, data, "acc")]
    return {int(line["client"]): float(line["value"]) for line in found}


@pytest.fixture(scope="module")
def biased(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("biased"))
    data = toy_data(90, val_size=0.2, own_test=True)
    torch.manual_seed(3)
    return fitted(Biased(SmallCNN, SGD), data, default_root_dir=folder, num_rounds=2)


def test_a_clients_model_is_evaluated_as_it_makes_it(biased):
    y = [biased.state.data.client(k).val_batches().y for k in range(3)]
    own = values(rows(biased), "personal", "own")
    assert own == {k: pytest.approx(float((y[k] == k).float().mean())) for k in range(3)}
    assert values(rows(biased), "personal", "own_test").keys() == {0, 1, 2}
    assert values(rows(biased), "global", "own").keys() == {0, 1, 2}


def test_what_it_changes_is_forgotten(biased):
    torch.manual_seed(3)
    plain = fitted(FedAvg(SmallCNN, SGD), toy_data(90, val_size=0.2, own_test=True), num_rounds=2)
    assert equal(biased.global_state, plain.global_state)
    assert biased.personal_states == {}
    assert values(rows(biased), "global", "own") == values(rows(plain), "global", "own")


def test_tests_predictions_and_networks_of_a_client_have_it_and_the_global_ones_have_not(biased):
    found = biased.test(biased.state.module, biased.state.data)
    assert {row.client for row in found if row.model == "personal"} == {0, 1, 2}
    assert all(row.value == pytest.approx(1 / 3) for row in found if (row.model, row.metric) == ("personal", "acc"))
    predicted = biased.predict(biased.state.module, biased.state.data, client=2)
    assert (predicted.argmax(dim=1) == 2).all()
    x = torch.randn(5, 1, 8, 8)
    assert (biased.network(client=1)(x).argmax(dim=1) == 1).all()
    assert biased.network()(x).abs().max() < 500


class Bad(Biased):
    def personalise(self, client):
        super().personalise(client)
        if client.id == 1:
            raise OSError("out of luck")
        if client.id == 2:
            self.network[-1] = torch.nn.Linear(64, 4)


def test_who_fails_is_left_out_by_name_and_the_others_are_as_ever():
    federation = fitted(Bad(linear, SGD), num_rounds=2)
    assert values(rows(federation), "personal", "own").keys() == {0, 2}
    assert values(rows(federation), "global", "own").keys() == {0, 1, 2}
    left_out = str([event for event in events(federation.log_dir, "left_out") if event["round"] == 2])
    assert "could not be evaluated: OSError: out of luck" in left_out


class Random(LocalOnly):
    drawn: list = []  # noqa: RUF012

    def configure_stages(self):
        return [Stage("local", samples="all", upload="none", reported_on_pooled=True)]

    def personalise(self, client):
        with torch.no_grad():
            self.network[-1].bias += torch.randn(3)
        self.drawn.append((client.id, client.round, client.samples, self.network[-1].bias.tolist()))


def test_it_is_drawn_alike_for_every_evaluation_of_a_round_and_of_its_epochs():
    Random.drawn.clear()
    federation = fitted(Random(linear, SGD), num_rounds=1, local_epochs=2, eval_every_n_epochs=1)
    by_epoch = [look for look in Random.drawn[:6] if look[0] == 0]
    assert len(by_epoch) == 2
    looks = Random.drawn[6:]
    federation.network(client=0)
    assert {samples for _, _, samples, _ in looks} == {"all"}
    assert len([look for look in looks if look[0] == 0]) == 2  # own and pooled
    assert all(look == Random.drawn[-1] for look in looks if look[0] == 0)
    without = fitted(LocalOnly(linear, SGD), num_rounds=1, local_epochs=2)
    assert all(equal(federation.personal_states[k], without.personal_states[k]) for k in range(3))
