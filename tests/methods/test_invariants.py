"""Where a method is at an extreme, it is a simpler one: bit for bit. Each test has a sibling that shows it can fail."""

import pytest
import torch
import torch.nn.functional as F
from toys import SGD, SmallCNN, equal, fitted, part, seeded, toy_data, uneven

from fedlit import FedAvg, FedProx, FineTuned, LocalOnly
from fedlit.rng import derive, generator

# --- methods


@pytest.mark.parametrize(("mu", "holds"), [(0.0, True), (0.1, False)])
def test_fedprox_with_mu_0_and_only_then_is_fedavg(mu, holds):
    fedavg = fitted(seeded(FedAvg, SmallCNN, SGD), uneven()).global_state
    assert equal(fedavg, fitted(seeded(FedProx, SmallCNN, SGD, mu=mu), uneven()).global_state) is holds


def test_fedprox_pulls_towards_the_global_model_of_the_round_by_hand():
    """Its gradient is mu * (v - w), with w the model that this round began with, the same for all clients."""
    from fedlit.losses import proximal_penalty

    v, w = torch.tensor([3.0, -1.0], requires_grad=True), torch.tensor([1.0, 1.0])
    proximal_penalty([v], [w], mu=0.5).backward()
    assert torch.equal(v.grad, torch.tensor([1.0, -1.0]))  # mu * (v - w)

    method = FedProx(SmallCNN, SGD, mu=0.1)
    anchored = []
    method.on_client_end = lambda client: anchored.append(method.w_t[0].clone())
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


@pytest.mark.parametrize(
    ("state", "keeps", "holds"), [("reset", False, True), ("keep", True, True), ("reset", True, False)]
)
def test_one_client_with_all_data_is_a_plain_loop_that_keeps_its_momentum_or_forgets_it(state, keeps, holds):
    data = toy_data(num_clients=1)
    federation = fitted(seeded(FedAvg, SmallCNN, SGD), data, local_epochs=2, optimizer_state=state)
    expected = plain_loop(data, rounds=3, keep_optimizer=keeps)
    assert equal(part(federation.global_state, "network."), expected) is holds


@pytest.mark.parametrize(("data", "holds"), [(toy_data, True), (uneven, False)])
def test_fedavg_with_clients_of_equal_size_and_only_then_is_the_same_under_both_weightings(data, holds):
    methods = [seeded(FedAvg, SmallCNN, SGD, weighting=weighting) for weighting in ("examples", "uniform")]
    assert equal(*(fitted(method, data()).global_state for method in methods)) is holds


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
