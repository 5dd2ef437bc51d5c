"""A stage that is followed by the server's: one round, whole or not at all."""

import os
import signal

import pytest
import torch
from toys import SGD, SmallCNN, equal, fitted, linear, rows, toy_data

from fedlit.data.client import Server
from fedlit.methods import FedDF
from fedlit.privacy import ClientLevelDP


def with_pool(**options):
    return toy_data(120, **{"public": 0.5, **options})


class Stopped(FedDF):
    """Gets a signal in round 2, when clients are done and the server has begun; 0 is sent to nobody."""

    number = 0

    def training_step(self, batch, batch_idx):
        if isinstance(self.client, Server) and self.client.round == 2 and batch_idx == 1:
            os.kill(os.getpid(), self.number)
        return super().training_step(batch, batch_idx)


def experiment(method=Stopped, network=SmallCNN, **options):
    torch.manual_seed(7)
    return fitted(method(network, SGD), with_pool(), **{"fraction_fit": 0.7, **options})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return experiment(default_root_dir=str(tmp_path_factory.mktemp("undisturbed")))


def test_asked_to_stop_between_them_it_forgets_the_round_that_is_not_whole(undisturbed, tmp_path, monkeypatch):
    options = {"default_root_dir": str(tmp_path / "stopped")}
    with monkeypatch.context() as patched:
        patched.setattr(Stopped, "number", signal.SIGTERM)
        stopped = experiment(**options)
    assert stopped.state.round == 1
    assert equal(stopped.global_state, experiment(num_rounds=1).global_state)
    assert equal(experiment(ckpt_path="last", **options).global_state, undisturbed.global_state)


def test_the_round_is_evaluated_after_the_server_has_trained(undisturbed):
    found = undisturbed.validate()
    values = {(row.client, row.metric): row.value for row in found if (row.model, row.data) == ("global", "pooled")}
    wanted = ("3", "global", "pooled")
    last = [line for line in rows(undisturbed) if (line["round"], line["model"], line["data"]) == wanted]
    assert {(line["client"], line["metric"]): float(line["value"]) for line in last} == pytest.approx(values)


class Kept(FedDF):
    """Notes how many steps the server's optimiser has behind it when a round begins."""

    def __init__(self, *given):
        super().__init__(*given)
        self.steps = []

    def on_train_start(self):
        optimizer = self.trainer.optimizers[0]
        if isinstance(self.client, Server):
            states = list(optimizer.state.values())
            self.steps.append(int(states[0]["step"]) if states else 0)


@pytest.mark.parametrize(("kept", "steps"), [("personal", [0, 0]), ("keep", [0, 8])])
def test_the_servers_optimiser_is_new_in_every_round_unless_all_are_kept(kept, steps):
    federation = experiment(Kept, linear, num_rounds=2, optimizer_state=kept)
    assert federation.state.module.steps == steps


def test_under_privacy_a_server_that_learns_from_uploads_is_refused():
    privacy = ClientLevelDP(delta=0.01)
    with pytest.raises(ValueError, match="Stopped uses clients' states as they are after stage 'federate'"):
        experiment(privacy=privacy, network=linear)


def test_a_server_that_fails_ends_the_run_and_leaves_the_round_before():
    class Failing(FedDF):
        def on_server_start(self, server, uploads):
            super().on_server_start(server, uploads)
            if server.round == 2:
                raise ValueError("no teachers")

    torch.manual_seed(7)
    method = Failing(linear, SGD)
    with pytest.raises(RuntimeError, match="The server could not train in round 2: ValueError: no teachers"):
        fitted(method, with_pool())
