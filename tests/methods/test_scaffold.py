"""SCAFFOLD: control variates against a plain loop, invariants, and steps that it refuses."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from plain_loops import PLAIN, RATE, batches, cross_entropy, gradients, samples, taking_part
from torch.testing import assert_close
from toys import SGD, SmallCNN, equal, fitted, linear, part, rows, seeded, toy_data, uneven

from fedlit import FedAvg
from fedlit.aggregation import Upload, weighted_mean
from fedlit.methods import SCAFFOLD

COHORTS = [[0, 1], [1, 2], [0, 1, 2]]


def full_gradient(network, x, y):
    """In evaluation mode, summed over batches in the samples' order."""
    network.eval()
    total = [torch.zeros_like(parameter) for parameter in network.parameters()]
    for x_batch, y_batch in zip(x.split(8), y.split(8), strict=True):
        loss = F.cross_entropy(network(x_batch), y_batch) * (len(y_batch) / len(y))
        total = [summed + gradient for summed, gradient in zip(total, gradients(network, loss), strict=True)]
    network.train()
    return total


def plain_scaffold(data, option, lr_g):
    """Algorithm 1, written out."""
    torch.manual_seed(7)
    network = SmallCNN()
    parameters = list(network.parameters())
    server = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    c = [torch.zeros_like(p) for p in parameters]
    c_i = {k: [torch.zeros_like(p) for p in parameters] for k in range(3)}
    for number, cohort in enumerate(COHORTS, start=1):
        uploads, new_c = [], [tensor.double() for tensor in c]
        for k in cohort:
            network.load_state_dict(server)
            x = [p.detach().clone() for p in parameters]
            at_x = full_gradient(network, *samples(data, k))
            steps = 0
            for batch in batches(data, number, k):
                directions = gradients(network, cross_entropy(network, *batch))
                with torch.no_grad():
                    for p, g, ours, own in zip(parameters, directions, c, c_i[k], strict=True):
                        p.add_(g + (ours - own), alpha=-RATE)
                steps += 1
            moved = [(old - p.detach()) / (steps * RATE) for old, p in zip(x, parameters, strict=True)]
            renewed = at_x if option == "I" else [m - (a - b) for m, a, b in zip(moved, c, c_i[k], strict=True)]
            new_c = [total + (new - old).double() / 3 for total, new, old in zip(new_c, renewed, c_i[k], strict=True)]
            c_i[k] = renewed
            uploads.append(Upload(k, {name: tensor.clone() for name, tensor in network.state_dict().items()}))
        mean = weighted_mean(uploads)
        if lr_g != 1:
            for name, _ in network.named_parameters():
                mean[name] = server[name] + lr_g * (mean[name] - server[name])
        server, c = mean, [tensor.float() for tensor in new_c]
    return server, c, c_i


@pytest.mark.parametrize(("option", "lr_g"), [("II", 1.0), ("I", 1.0), ("II", 0.5)])
def test_three_rounds_are_algorithm_1_by_a_plain_loop_bit_for_bit(option, lr_g):
    method = seeded(taking_part(SCAFFOLD, COHORTS), SmallCNN, PLAIN, option=option, lr_g=lr_g)
    federation = fitted(method, uneven())
    server, c, c_i = plain_scaffold(uneven(), option, lr_g)
    assert equal(part(federation.global_state, "network."), server)
    assert equal(part(federation.global_state, "c."), {str(i): tensor for i, tensor in enumerate(c)})
    for k, state in federation.personal_states.items():
        assert equal(part(state, "c_i."), {str(i): tensor for i, tensor in enumerate(c_i[k])})


# --- invariants


class Held(SCAFFOLD):
    """Its control variates stay at 0."""

    def on_client_end(self, client):
        pass


@pytest.mark.parametrize(("method", "holds"), [(Held, True), (SCAFFOLD, False)])
def test_with_control_variates_held_at_0_and_only_then_it_is_fedavg_with_uniform_weights(method, holds):
    fedavg = fitted(seeded(FedAvg, SmallCNN, PLAIN, weighting="uniform"), uneven()).global_state
    held = fitted(seeded(method, SmallCNN, PLAIN), uneven()).global_state
    assert equal({name: held[name] for name in fedavg}, fedavg) is holds


@pytest.mark.parametrize("cohorts", [[[0, 1, 2]] * 3, [[0], [1], [0, 1]]])
def test_c_is_the_mean_of_all_control_variates_whoever_took_part(cohorts):
    """Those who have never taken part have 0."""
    federation = fitted(taking_part(SCAFFOLD, cohorts)(SmallCNN, PLAIN), uneven())
    c = part(federation.global_state, "c.")
    for name, tensor in c.items():
        own = [state[f"c_i.{name}"] for state in federation.personal_states.values()]
        assert_close(tensor, sum(own) / 3, atol=1e-5, rtol=1e-4)
    assert max(float(tensor.abs().max()) for tensor in c.values()) > 1e-3  # some layers have no gradient but rounding


def test_one_client_is_a_plain_loop_of_sgd():
    one = fitted(seeded(SCAFFOLD, SmallCNN, PLAIN), toy_data(num_clients=1)).global_state
    alone = fitted(seeded(FedAvg, SmallCNN, PLAIN), toy_data(num_clients=1)).global_state
    assert_close({name: one[name] for name in alone}, alone, atol=1e-4, rtol=1e-4)


def test_a_client_sends_twice_the_network_each_way(tmp_path):
    federation = fitted(SCAFFOLD(linear, PLAIN), num_rounds=1, default_root_dir=str(tmp_path))
    size = 4 * (64 * 3 + 3)
    found = [(row["direction"], row["kind"], int(row["bytes"])) for row in rows(federation, "ledger.csv")][:4]
    assert sorted(found) == sorted((way, kind, size) for way in ("down", "up") for kind in ("model", "one-way"))
    assert all(state.keys() == {"c_i.0", "c_i.1"} for state in federation.personal_states.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": SGD}, r"`model.optimizer` must be torch.optim.SGD without momentum .*; got momentum 0.9"),
        ({"optimizer": torch.optim.Adam}, r"`model.optimizer` must be torch.optim.SGD without momentum .*; got Adam"),
        ({"client_optimizers": {1: SGD}}, r"`model.client_optimizers\[1\]` must be torch.optim.SGD .*; got momentum 0"),
    ],
)
def test_an_optimizer_whose_steps_are_not_lr_times_a_gradient_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fitted(SCAFFOLD(linear, **{"optimizer": PLAIN, **options}))


def test_a_bad_rate_is_refused_before_the_first_round():
    with pytest.raises(ValueError, match=r"`model.optimizer` of client 0: Invalid learning rate: -1"):
        fitted(SCAFFOLD(linear, partial(torch.optim.SGD, lr=-1.0)))


def test_a_step_by_hand():
    """One sample of weight 1, a network of one weight: L = y, so g = 1 everywhere; K = 2, lr = 0.1, c = 3, c_i = 1."""
    method = SCAFFOLD(lambda: torch.nn.Linear(1, 1, bias=False), PLAIN)
    method.network.weight.data.fill_(5.0)
    method.c.put([torch.tensor([[3.0]])])
    method.c_i.put([torch.tensor([[1.0]])])
    method.on_client_start(None)
    (y,) = method.network.parameters()
    for _ in range(2):  # y - 0.1 * (1 - 1 + 3)
        y.data -= 0.1 * (1.0 + float(method.drift[0]))
        method.K += 1
    assert y.item() == pytest.approx(5 - 0.6)

    class Trainer:
        optimizers = (torch.optim.SGD([y], lr=0.1),)

    method.trainer = Trainer()
    method.on_client_end(None)
    assert method.c_i.get_buffer("0").item() == pytest.approx(1 - 3 + 0.6 / 0.2, abs=1e-4)  # which is g
    assert method.change.get_buffer("0").item() == pytest.approx(0.0, abs=1e-4)
