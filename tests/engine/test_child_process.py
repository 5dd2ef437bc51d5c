"""`trainer.client_timeout`: clients in processes of their own: the same bits, and an end for whoever finds none."""

import os
import signal
import time

import pytest
import torch
from test_constant import LoRA
from test_sending import FedAMP
from toys import SGD, SmallCNN, events, fitted, linear, rows, same, seeded, states

from fedlit import FedAvg
from fedlit.encoders import Int8
from fedlit.methods import FML

RUNS = {
    "FML": ((FML, SmallCNN, SmallCNN, SGD), {}),
    "encoded": ((FedAvg, SmallCNN, SGD), {"upload_encoder": Int8(stochastic=True, error_feedback=True)}),
    "other downloads": ((FedAMP, SmallCNN, SGD), {}),
    "frozen": ((FedAvg, LoRA, SGD), {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_clients_in_processes_of_their_own_end_in_the_same_bits(name):
    method, options = RUNS[name]
    here, apart = (fitted(seeded(*method), client_timeout=timeout, num_rounds=2, **options) for timeout in (None, 60.0))
    assert same(states(here), states(apart))
    assert rows(here, "ledger.csv") == rows(apart, "ledger.csv")


def hang(module):
    if os.fork() == 0:
        time.sleep(100)
    time.sleep(100)


def send_far(module):
    torch.nn.init.constant_(module.network[1].weight, 1e30)


class Failing(FedAvg):
    action = staticmethod(lambda module: None)
    weight = 1.0

    def on_client_end(self, client):
        if client.id == 1:
            self.action(self)

    def client_weight(self, client):
        return self.weight if client.id == 1 else 1.0


@pytest.mark.parametrize(
    ("members", "timeout", "reason"),
    [
        ({"action": lambda module: os._exit(7)}, 60.0, "ended by itself, with exit code 7"),
        ({"action": lambda module: os.kill(os.getpid(), signal.SIGKILL)}, 60.0, "(perhaps there was no memory left)"),
        ({"action": hang}, 1.0, "it took longer than `trainer.client_timeout`, 1 s, and was ended"),
        ({"action": send_far}, 60.0, "holds 1e+30, whose square overflows"),
        ({"weight": 1e30}, 60.0, "weight must be positive and at most 1e+09, got 1e+30"),
    ],
)
def test_a_client_that_dies_hangs_or_sends_what_cannot_be_is_left_out_with_the_reason(members, timeout, reason, capfd):
    members = {name: staticmethod(value) if callable(value) else value for name, value in members.items()}
    method = type("Mine", (Failing,), members)(linear, SGD)
    federation = fitted(method, client_timeout=timeout, num_rounds=1)
    [left_out] = events(federation.log_dir, "left_out")
    assert left_out["client"] == 1
    assert reason in left_out["reason"]


def test_a_fit_with_threads_is_refused():
    with pytest.raises(ValueError, match=r"`trainer\.client_timeout` forks processes"):
        fitted(FedAvg(linear, SGD), client_timeout=5, num_threads=2)
