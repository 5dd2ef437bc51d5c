"""Rounds with too few usable clients are repeated with others, and at last given up with everything saved."""

import pytest
import torch
from toys import SGD, equal, events, fitted, linear, seeded, toy_data

from fedlit import FedAvg
from fedlit.aggregation import Krum, weighted_mean
from fedlit.callbacks import FederationCallback


def failing(bad, rounds=(2,), method=FedAvg):
    class Fails(method):
        def on_client_end(self, client):
            if client.round in rounds and client.id in bad:
                raise RuntimeError("a bad day")

    return seeded(Fails, linear, SGD)


class Drawn(FederationCallback):
    def __init__(self):
        self.clients = []

    def on_round_start(self, federation, module, round, clients):
        self.clients.append((round, clients))


def first_of_round_2():
    ear = Drawn()
    fitted(failing(()), toy_data(num_clients=6), fraction_fit=0.1, num_rounds=2, callbacks=ear)
    return dict(ear.clients)[2][0]


def test_a_client_that_fails_alone_in_its_round_is_replaced_by_another():
    first = first_of_round_2()
    ear = Drawn()
    options = {"fraction_fit": 0.1, "num_rounds": 3, "callbacks": ear}
    federation = fitted(failing({first}), toy_data(num_clients=6), **options)
    assert federation.state.round == 3
    second = [clients for round, clients in ear.clients if round == 2]
    assert len(second) == 2
    assert second[0] == [first]
    assert first not in second[1]
    [left_out] = events(federation.log_dir, "left_out")
    assert (left_out["client"], left_out["round"], left_out["attempt"]) == (first, 2, 1)
    assert [event["attempt"] for event in events(federation.log_dir, "round")] == [1, 2, 1]


def test_as_many_clients_as_must_take_part_must_be_usable():
    data = toy_data(num_clients=4)
    assert fitted(failing({0, 1}), data, num_rounds=2, min_clients=2).state.round == 2
    message = r"^Only 2 of the 4 clients of round 2 were usable, 3 are needed; client 0"
    with pytest.raises(RuntimeError, match=message):
        fitted(failing({0, 1}), data, num_rounds=2, min_clients=3)


def test_a_round_is_repeated_as_often_as_is_said():
    ear = Drawn()
    options = {"fraction_fit": 0.1, "num_rounds": 2, "max_round_retries": 2, "callbacks": ear}
    with pytest.raises(RuntimeError, match="Every client of round 2 failed, at attempt 3"):
        fitted(failing(range(9)), toy_data(num_clients=9, size=90), **options)
    drawn = [clients[0] for round, clients in ear.clients if round == 2]
    assert len(set(drawn)) == 3  # who has failed comes last


def test_what_was_whole_is_saved_and_every_client_is_named_when_a_run_is_given_up(tmp_path):
    options = {"num_rounds": 5, "save_every_n_rounds": 5, "default_root_dir": str(tmp_path)}
    with pytest.raises(RuntimeError):
        fitted(failing(range(3), rounds=(4,)), **options)
    folder = tmp_path / "lightning_logs/version_0"
    assert {event["client"] for event in events(folder, "left_out")} == {0, 1, 2}
    assert [event["round"] for event in events(folder, "gave_up")] == [4]
    saved = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    assert saved["round"] == 3
    whole = fitted(failing(()), num_rounds=5)
    assert equal(fitted(failing(()), ckpt_path="last", **options).global_state, whole.global_state)


def test_a_repeated_round_is_the_same_after_a_resume(tmp_path):
    first = first_of_round_2()

    def run(bad, **options):
        return fitted(failing(bad), toy_data(num_clients=6), fraction_fit=0.1, **options).global_state

    straight = run({first})
    run({first}, num_rounds=1, default_root_dir=str(tmp_path))
    assert equal(run({first}, ckpt_path="last", default_root_dir=str(tmp_path)), straight)
    assert not equal(run(()), straight)


def odd(uploads, current):
    held = list(uploads)
    if len(held) < 3:
        raise KeyError("a third")
    return weighted_mean(held)


def empty(uploads, current):
    agreed = weighted_mean(held := list(uploads))
    return agreed if len(held) == 3 else {name: tensor * float("nan") for name, tensor in agreed.items()}


@pytest.mark.parametrize(
    ("rule", "why"),
    [(odd, "KeyError: 'a third'"), (empty, "it gave an impossible state, 'network.1.weight' is not finite")],
)
def test_a_rule_that_fails_in_a_round_ends_the_run_by_name_with_everything_saved(rule, why, tmp_path):
    options = {"aggregator": rule, "default_root_dir": str(tmp_path), "num_rounds": 4, "save_every_n_rounds": 9}
    with pytest.raises(RuntimeError) as failed:
        fitted(failing({1}, rounds=(3,)), **options)
    message = f"`trainer.aggregator` {rule.__name__} could not combine the 2 uploads of round 3: {why}"
    assert str(failed.value) == message
    folder = tmp_path / "lightning_logs/version_0"
    [event] = events(folder, "gave_up")
    assert (event["round"], event["reason"]) == (3, message)
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["round"] == 2
    assert fitted(failing(()), ckpt_path="last", **options).state.round == 4


def test_a_rule_that_says_how_many_it_needs_has_a_quorum():
    data = toy_data(num_clients=6, size=90)
    first = {"fraction_fit": 0.8, "num_rounds": 2, "aggregator": Krum(1)}  # five of six, and all of them are needed
    federation = fitted(failing({2}), data, **first)
    attempts = [event["attempt"] for event in events(federation.log_dir, "round")]
    assert attempts[0] == 1
    assert federation.state.round == 2
    with pytest.raises(RuntimeError, match=r"Only [34] of the 5 clients of round 2 were usable, 5 are needed"):
        fitted(failing({1, 2}), toy_data(num_clients=6, size=90), **first)


class Heavy(FedAvg):
    def client_weight(self, client):
        return 1000.0 if client.id == 1 else 20.0


class Far(FedAvg):
    def on_client_end(self, client):
        if client.id == 1:
            self.network[1].weight.data += 50


@pytest.mark.parametrize(("method", "option"), [(Heavy, "max_weight_ratio"), (Far, "max_norm_ratio")])
def test_who_is_out_of_all_proportion_is_left_out(method, option):
    class Even(FedAvg):
        def client_weight(self, client):
            return 20.0 if method is Heavy else super().client_weight(client)

    def run(kind, data, **options):
        return fitted(seeded(kind, linear, SGD), data, personal_memory=0, **options)

    federation = run(method, toy_data(), **{option: 10})
    assert equal(federation.global_state, run(Even, toy_data(opt_out=[1])).global_state)
    reasons = {event["reason"] for event in events(federation.log_dir, "left_out")}
    assert all(f"`trainer.{option}` is 10" in reason for reason in reasons)
    assert not equal(federation.global_state, run(method, toy_data()).global_state)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_weight_ratio", 0.5, "`trainer.max_weight_ratio` must be at least 1, got 0.5"),
        ("max_norm_ratio", float("nan"), "`trainer.max_norm_ratio` must be a finite number, got nan"),
        ("max_round_retries", -1, "`trainer.max_round_retries` must be at least 0, got -1"),
        ("client_timeout", 0, "`trainer.client_timeout` must be above 0, got 0"),
    ],
)
def test_impossible_limits_are_refused(option, value, message):
    with pytest.raises(ValueError, match=message):
        fitted(FedAvg(linear, SGD), **{option: value})
