"""A method's Python attributes: what a client leaves there reaches nobody; what the server's side changes is saved."""

from collections import Counter, deque

import numpy as np
import pytest
import torch
from torch import nn
from toys import SGD, Diary, equal, fitted, linear, toy_data

from fedlit import FedAvg, Stage
from fedlit.aggregation import weighted_mean
from fedlit.callbacks import FederationCallback
from fedlit.data.client import Server
from fedlit.engine.live_module import ModuleSnapshot
from fedlit.engine.plan import UsageError
from fedlit.engine.server_attributes import ServerAttributes
from fedlit.records.checkpoint import load


class Tracker:
    """An object of a user's own."""

    def __init__(self):
        self.seen = {"clients": []}


class Network(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3))
        self.scale = 1.0


class Untidy(FedAvg):
    """Every client leaves something in attributes of the method and of its network."""

    found = Diary()
    left = Diary()

    def __init__(self):
        super().__init__(Network, SGD)
        self.number = 0
        self.names = ["a"]
        self.table = {"a": 1}
        self.ids = {1}
        self.register_buffer("passing", torch.zeros(2), persistent=False)

    def on_client_start(self, client):
        self.found.append(self.summary())

    def on_client_end(self, client):
        self.number += 1
        self.names.append("b")
        self.table["b"] = client.id
        self.ids.add(client.id + 7)
        self.passing += 1
        self.network.scale *= 2
        self.network.register_forward_hook(lambda *given: given[-1] * 2)
        self.new = [client.id]
        self.left.append(self.summary())

    def summary(self):
        hooks = len(self.network._forward_hooks)
        plain = [self.number, self.names, self.table, sorted(self.ids), self.passing.tolist(), hooks]
        return [repr(value) for value in (*plain, self.network.scale, hasattr(self, "new"))]


def test_no_client_finds_what_another_has_left_in_any_attribute():
    method = Untidy()
    fitted(method, num_rounds=2)
    assert len(method.found) == 6
    assert all(found == method.found[0] for found in method.found)
    together = zip(method.found[0], method.left[0], strict=True)
    assert [before == after for before, after in together] == [False] * len(method.found[0])  # each had changed
    assert method.summary() == method.found[0]


def test_a_network_that_notes_what_it_has_seen_last_forgets_it_after_an_evaluation():
    class Noting(nn.Sequential):
        def forward(self, x):
            self.seen = [*getattr(self, "seen", []), len(x)]
            return super().forward(x)

    method = FedAvg(lambda: Noting(nn.Flatten(), nn.Linear(64, 3)), SGD)
    fitted(method, num_rounds=1)
    assert not hasattr(method.network, "seen")


def tied(method):
    method.network[3].weight = method.network[1].weight


def of_one_storage(method):
    method.network[3].weight.data = method.network[1].weight.data


def expanded(method):
    method.network[1].bias.data = torch.zeros(1).expand(64)


def transposed(method):
    method.network[1].weight.data = torch.zeros(64, 64).t()


class Binds(FedAvg):
    """Client 1 does something to its parameters when its upload is taken."""

    bind = staticmethod(lambda method: None)

    def client_weight(self, client):
        if client.id == 1:
            self.bind(self)
        return super().client_weight(client)


def square():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 3))


@pytest.mark.parametrize("bind", [tied, of_one_storage, expanded, transposed])
def test_parameters_that_a_client_ties_or_replaces_by_views_are_its_own_affair(bind):
    states = []
    for kind in (Binds, type("Bad", (Binds,), {"bind": staticmethod(bind)})):
        torch.manual_seed(0)
        states.append(fitted(kind(square, SGD), num_rounds=2).global_state)
    assert equal(*states)


def test_the_same_parameters_would_reach_the_next_client_if_nobody_put_them_back(monkeypatch):
    monkeypatch.setattr(ModuleSnapshot, "restore", lambda self: None)
    torch.manual_seed(0)
    plain = fitted(Binds(square, SGD), num_rounds=2).global_state
    torch.manual_seed(0)
    bad = fitted(type("Bad", (Binds,), {"bind": staticmethod(of_one_storage)})(square, SGD), num_rounds=2).global_state
    assert not equal(plain, bad)


# --- the server's side


class Remembers(FedAvg):
    """A server with momentum, which it keeps in attributes of every plain kind."""

    def __init__(self):
        super().__init__(linear, SGD)
        self.save_hyperparameters()
        self.momentum = None
        self.rounds = 0
        self.chosen = Counter()
        self.history = deque(maxlen=2)
        self.norms = np.ones(2)
        self.asked = {1: ("a", {2})}

    def select_clients(self, round, candidates):
        self.asked[round] = (str(round), {round})
        return None

    def aggregate(self, uploads, current):
        mean = weighted_mean(uploads)
        if self.momentum is None:
            self.momentum = {name: torch.zeros_like(value) for name, value in current.items()}
        self.rounds += 1
        self.chosen.update([self.rounds % 2])
        self.norms = self.norms * 0.5
        for name in mean:
            self.momentum[name] = self.momentum[name] * 0.9 + (mean[name] - current[name])
        self.history.append(float(self.momentum["network.1.bias"].sum()))
        factor = 0.1 * self.rounds + self.norms[0] + self.chosen[0] + len(self.asked)
        return {name: current[name] + factor * self.momentum[name] / 10 for name in mean}

    def plain(self):
        return [self.rounds, self.chosen, self.history, self.history.maxlen, self.norms.tolist(), self.asked]


class Ramps(FederationCallback):
    def on_round_end(self, federation, method, round, rows):
        method.ramp = getattr(method, "ramp", 0.0) + 0.25


def grown(rounds, folder, ckpt_path=None, method=Remembers, **options):
    torch.manual_seed(0)
    method = method()
    federation = fitted(method, num_rounds=rounds, default_root_dir=folder, ckpt_path=ckpt_path, **options)
    return method, federation


def gone_on(tmp_path, **options):
    whole, straight = grown(4, tmp_path / "whole", callbacks=[Ramps()], **options)
    grown(2, tmp_path / "halves", callbacks=[Ramps()], **options)
    resumed, later = grown(4, tmp_path / "halves", "last", callbacks=[Ramps()], **options)
    return whole, straight, resumed, later


def test_what_the_servers_side_changes_in_attributes_goes_on_from_a_checkpoint(tmp_path):
    whole, straight, resumed, later = gone_on(tmp_path)
    assert equal(straight.global_state, later.global_state)
    assert whole.plain() == resumed.plain()
    assert equal(whole.momentum, resumed.momentum)
    assert whole.ramp == resumed.ramp == 1.0


def test_without_them_a_run_would_go_on_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr(ServerAttributes, "put", lambda *given: None)
    _, straight, _, later = gone_on(tmp_path)
    assert not equal(straight.global_state, later.global_state)


class Refused(FedAvg):
    """Keeps what no checkpoint can hold."""

    def __init__(self, keep):
        super().__init__(linear, SGD)
        self.keep = keep
        self.kept = Tracker()

    def aggregate(self, uploads, current):
        self.keep(self)
        return super().aggregate(uploads, current)


def sets_an_object(method):
    method.kept = Tracker()


def changes_an_object(method):
    method.kept.seen["clients"].append(1)


def sets_code(method):
    method.kept = [print]


def sets_parameters(method):
    method.kept = list(method.parameters())


@pytest.mark.parametrize(
    ("keep", "holds"),
    [(sets_an_object, "a Tracker"), (changes_an_object, "a Tracker"), (sets_code, "a builtin_function_or_method"),
     (sets_parameters, "a parameter or buffer of the method")],
)  # fmt: skip
def test_what_no_checkpoint_can_hold_is_refused_by_name_and_its_round_is_not_saved(keep, holds, tmp_path):
    told = rf"`self\.kept` of Refused was changed between visits and holds {holds}, which no checkpoint can hold"
    with pytest.raises(UsageError, match=told):
        fitted(Refused(keep), num_rounds=2, default_root_dir=tmp_path)
    [checkpoint] = tmp_path.rglob("last.ckpt")
    assert load(checkpoint)["round"] == 0


class SetsUp(FederationCallback):
    def on_fit_start(self, federation, method):
        method.kept = Tracker()


def test_what_a_callback_sets_before_the_first_round_it_will_set_again():
    federation = fitted(Refused(lambda method: None), num_rounds=1, callbacks=[SetsUp()])
    assert federation.state.round == 1


class FailsLater(FederationCallback):
    def on_round_start(self, federation, method, round, clients):
        if round == 3:
            raise RuntimeError("no more")


def test_a_checkpoint_holds_attributes_as_of_its_round_whatever_began_after_it(tmp_path):
    with pytest.raises(RuntimeError, match="no more"):
        grown(4, tmp_path, callbacks=[FailsLater()], save_every_n_rounds=10)
    [checkpoint] = tmp_path.rglob("last.ckpt")
    content = load(checkpoint)
    assert content["round"] == 2
    assert content["attributes"][""]["rounds"] == 2
    assert len(content["attributes"][""]["asked"][2]) == 2  # the third round had been asked for


DISTIL = Stage("distil", side="server", upload="none", public="inputs", epochs=1)


class Distils(FedAvg):
    """The server trains after every round, ever more coldly; its teacher is of each training."""

    def __init__(self):
        super().__init__(linear, SGD)
        self.temperature = 4.0
        self.teacher = None

    def configure_stages(self):
        return [Stage("federate", followed_by=DISTIL)]

    def on_server_start(self, server, uploads):
        self.temperature /= 2
        self.teacher = Tracker()

    def training_step(self, batch, batch_idx):
        if isinstance(self.client, Server):
            return self(batch[0]).square().mean() / self.temperature
        return super().training_step(batch, batch_idx)


def test_what_a_training_server_changes_is_resumed_and_what_it_made_for_itself_is_not(tmp_path):
    data = toy_data(120, public=0.5)
    whole, straight = grown(3, tmp_path / "whole", method=Distils, data=data)
    grown(1, tmp_path / "halves", method=Distils, data=data)
    resumed, later = grown(3, tmp_path / "halves", "last", method=Distils, data=data)
    assert whole.temperature == resumed.temperature == 0.5
    assert equal(straight.global_state, later.global_state)
    assert later.state.attributes.noted[""].keys() == {"temperature"}


def test_extra_state_is_refused_at_the_door():
    class Extra(FedAvg):
        def get_extra_state(self):
            return torch.zeros(1)

    with pytest.raises(ValueError, match=r"Extra has '_extra_state', .* leave out `get_extra_state`"):
        fitted(Extra(linear, SGD))
