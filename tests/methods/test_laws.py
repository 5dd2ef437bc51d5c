"""Where a method is at an extreme, it is a simpler one: bit for bit. Each law has a sibling that shows it can fail."""

import os
import signal
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from toys import SGD, SmallCNN, equal, fitted, toy_data

import fedlit.engine.local_training
from fedlit import FedAvg, FedProx, FineTuned, LocalOnly
from fedlit.callbacks import FederationCallback
from fedlit.engine.client_runner import with_own_tensors
from fedlit.engine.round import SerialExecutor
from fedlit.partition import Dirichlet
from fedlit.rng import derive, generator


def seeded(method, *args, **options):
    """The same initial weights every time."""
    torch.manual_seed(7)
    return method(*args, **options)


def uneven(**options):
    return toy_data(partition=Dirichlet(alpha=1.0, min_samples=6), **options)


# --- methods


def test_fedprox_with_mu_0_is_fedavg():
    fedavg = fitted(seeded(FedAvg, SmallCNN, SGD), uneven())
    assert equal(fedavg.global_state, fitted(seeded(FedProx, SmallCNN, SGD, mu=0.0), uneven()).global_state)


def test_fedprox_with_mu_above_0_is_not_fedavg():
    fedavg = fitted(seeded(FedAvg, SmallCNN, SGD), uneven())
    assert not equal(fedavg.global_state, fitted(seeded(FedProx, SmallCNN, SGD, mu=0.1), uneven()).global_state)


def test_fedprox_pulls_towards_the_global_model_of_the_round_by_hand():
    """Its gradient is mu * (v - w), with w the model that this round began with, the same for all clients."""
    from fedlit.losses import proximal_penalty

    v, w = torch.tensor([3.0, -1.0], requires_grad=True), torch.tensor([1.0, 1.0])
    proximal_penalty([v], [w], mu=0.5).backward()
    assert torch.equal(v.grad, torch.tensor([1.0, -1.0]))  # mu * (v - w)

    method = FedProx(SmallCNN, SGD, mu=0.1)
    anchored = []
    method.on_client_end = lambda client: anchored.append(method.anchors[0].clone())
    federation = fitted(method, num_rounds=2)
    assert torch.equal(anchored[0], anchored[1])
    assert not torch.equal(anchored[0], anchored[3])
    assert federation.state.round == 2


def test_a_client_counts_by_the_samples_it_shares_and_not_by_those_it_has():
    half = {"opt_out_samples": 0.5}
    states = [
        fitted(seeded(FedAvg, SmallCNN, SGD, weighting=w), uneven(**half)).global_state for w in ("examples", "uniform")
    ]
    assert not equal(*states)
    data = uneven(**half)
    data.setup()
    method = FedAvg(SmallCNN, SGD)
    assert [method.client_weight(data.client(k)) for k in range(3)] == [m.sum() for m in data.assignment.opted_in]


def plain_loop(data, rounds: int, keep_optimizer: bool):
    """What one client does, written out: no federation, no module, no stages."""
    torch.manual_seed(7)
    network = SmallCNN()
    data.setup()
    x, y = data.images.train_x[data.assignment.train[0]], data.images.train_y[data.assignment.train[0]]
    optimizer = SGD(network.parameters())
    for number in range(1, rounds + 1):
        optimizer = optimizer if keep_optimizer else SGD(network.parameters())
        torch.manual_seed(derive(0, "visit", "federate", number, 0))
        shuffle = generator(0, "batches", "federate", number, 0)
        for _ in range(2):
            order = torch.randperm(len(y), generator=shuffle)
            for batch in order.split(8):
                optimizer.zero_grad()
                F.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
    return network.state_dict()


@pytest.mark.parametrize("optimizer_state", ["reset", "keep"])
def test_one_client_with_all_data_is_a_plain_loop(optimizer_state):
    federation = fitted(
        seeded(FedAvg, SmallCNN, SGD), toy_data(num_clients=1), local_epochs=2, optimizer_state=optimizer_state
    )
    expected = plain_loop(toy_data(num_clients=1), rounds=3, keep_optimizer=optimizer_state == "keep")
    assert equal(federation.global_state, {f"network.{name}": value for name, value in expected.items()})


def test_one_client_that_forgets_its_momentum_is_not_a_plain_loop_that_keeps_it():
    federation = fitted(seeded(FedAvg, SmallCNN, SGD), toy_data(num_clients=1), local_epochs=2, optimizer_state="reset")
    expected = plain_loop(toy_data(num_clients=1), rounds=3, keep_optimizer=True)
    assert not equal(federation.global_state, {f"network.{name}": value for name, value in expected.items()})


def both_weightings(data):
    return [fitted(seeded(FedAvg, SmallCNN, SGD, weighting=w), data()).global_state for w in ("examples", "uniform")]


def test_fedavg_with_clients_of_equal_size_is_the_same_under_both_weightings():
    assert equal(*both_weightings(toy_data))


def test_fedavg_with_clients_of_unequal_size_is_not():
    assert not equal(*both_weightings(uneven))


def test_fine_tuning_for_no_epochs_leaves_every_client_with_the_global_model():
    federation = fitted(seeded(FineTuned, SmallCNN, SGD, finetune_epochs=0))
    assert len(federation.personal_states) == 3
    assert all(equal(state, federation.global_state) for state in federation.personal_states.values())


def test_fine_tuning_keeps_fedavgs_global_model_and_changes_every_personal_one():
    federation = fitted(seeded(FineTuned, SmallCNN, SGD, finetune_epochs=1))
    assert equal(federation.global_state, fitted(seeded(FedAvg, SmallCNN, SGD)).global_state)
    assert not any(equal(state, federation.global_state) for state in federation.personal_states.values())


def test_local_only_with_another_client_gone_is_the_same():
    alone, together = (fitted(seeded(LocalOnly, SmallCNN, SGD), uneven(unseen_clients=n)) for n in (2, 0))
    assert equal(alone.personal_states[0], together.personal_states[0])
    assert together.global_state == {}


def test_fedavg_with_another_client_gone_is_not():
    alone, together = (fitted(seeded(FedAvg, SmallCNN, SGD), uneven(unseen_clients=n)) for n in (2, 0))
    assert not equal(alone.global_state, together.global_state)


def test_local_only_in_three_rounds_of_one_epoch_is_one_round_of_three_but_for_its_random_numbers():
    """Momentum is kept, so a round is only where a personal network is looked at (here one batch, no dropout)."""
    options = {"batch_size": 100}
    network = torch.nn.Sequential
    factory = lambda: network(torch.nn.Flatten(), torch.nn.Linear(64, 3))  # noqa: E731
    three = fitted(LocalOnly(factory, SGD), toy_data(**options), num_rounds=3, local_epochs=1)
    one = fitted(LocalOnly(factory, SGD), toy_data(**options), num_rounds=1, local_epochs=3)
    torch.testing.assert_close(three.personal_states[1], one.personal_states[1])
    forgetful = fitted(LocalOnly(factory, SGD), toy_data(**options), optimizer_state="reset")
    assert not torch.allclose(
        forgetful.personal_states[1]["network.1.weight"], one.personal_states[1]["network.1.weight"], rtol=1e-3
    )


# --- the same numbers, always


def states(federation):
    return federation.global_state, federation.personal_states


def same(a, b) -> bool:
    (server, personal), (other_server, other_personal) = a, b
    return (
        equal(server, other_server)
        and personal.keys() == other_personal.keys()
        and all(equal(personal[k], other_personal[k]) for k in personal)
    )


def experiment(**options):
    """Shared rounds, then personal ones: both kinds of state, BatchNorm, dropout, two of three clients a round."""
    method = seeded(FineTuned, SmallCNN, SGD, finetune_epochs=2)
    return fitted(method, uneven(), **{"num_rounds": 3, "fraction_fit": 0.7, **options})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return states(experiment(default_root_dir=str(tmp_path_factory.mktemp("undisturbed"))))


def backwards(executor):
    done = {k: with_own_tensors(executor.round.runner.train(k)) for k in reversed(executor.round.clients)}
    yield from ((k, done[k]) for k in executor.round.clients)


def test_the_order_of_visits_does_not_matter(undisturbed, monkeypatch):
    monkeypatch.setattr(SerialExecutor, "train", backwards)
    assert same(states(experiment()), undisturbed)


def test_the_order_of_visits_would_matter_if_clients_shared_their_random_numbers(undisturbed, monkeypatch):
    monkeypatch.setattr(fedlit.engine.local_training, "seed_everything", lambda seed: None)
    monkeypatch.setattr(fedlit.engine.round, "preserved", nullcontext)
    torch.manual_seed(3)
    forwards = states(experiment())
    monkeypatch.setattr(SerialExecutor, "train", backwards)
    torch.manual_seed(3)
    assert not same(states(experiment()), forwards)


def test_another_seed_gives_other_numbers(undisturbed):
    assert not same(states(experiment(seed=1)), undisturbed)


class KillAt(FederationCallback):
    """kill -9 at the start or the end of a round."""

    def __init__(self, round: int, moment: str) -> None:
        self.round, self.moment = round, moment

    def on_round_start(self, federation, module, round, clients):
        if (round, "start") == (self.round, self.moment):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_round_end(self, federation, module, round, rows):
        if (round, "end") == (self.round, self.moment):
            os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(work) -> int:
    """Run in a process of its own; the signal that killed it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("round", "moment"),
    [(1, "start"), slow(1, "end"), (2, "end"), slow(3, "end"), (4, "start"), slow(4, "end")],
)
def test_a_run_killed_after_any_round_resumes_to_the_same_bits(round, moment, undisturbed, tmp_path):
    options = {"default_root_dir": str(tmp_path)}
    assert in_a_child(lambda: experiment(callbacks=KillAt(round, moment), **options)) == -signal.SIGKILL
    assert same(states(experiment(ckpt_path="last", **options)), undisturbed)
    assert [path.name for path in (tmp_path / "lightning_logs").iterdir()] == ["version_0"]


@pytest.mark.parametrize("replacement", [1, slow(2), 3, slow(4), 5, slow(6)])
def test_a_run_killed_while_it_writes_a_checkpoint_resumes_to_the_same_bits(replacement, undisturbed, tmp_path):
    options = {"default_root_dir": str(tmp_path)}

    def killed_at_a_replacement():
        count, replace = 0, os.replace

        def counted(*args, **kwargs):
            nonlocal count
            count += 1
            if count == 4 + replacement:  # after the first checkpoint
                os.kill(os.getpid(), signal.SIGKILL)
            replace(*args, **kwargs)

        os.replace = counted
        experiment(**options)

    assert in_a_child(killed_at_a_replacement) == -signal.SIGKILL
    assert same(states(experiment(ckpt_path="last", **options)), undisturbed)


def test_a_resumed_run_leaves_the_same_metrics_as_an_undisturbed_one(tmp_path):
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    experiment(default_root_dir=whole)
    in_a_child(lambda: experiment(callbacks=KillAt(2, "end"), default_root_dir=cut))
    experiment(ckpt_path="last", default_root_dir=cut)
    for name in ("metrics.csv", "ledger.csv"):
        texts = [(tmp_path / run / "lightning_logs/version_0" / name).read_text() for run in ("whole", "cut")]
        assert texts[0] == texts[1]
