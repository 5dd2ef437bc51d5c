"""FedDyn: its first uploads are FedProx's, h is the mean of all h_i, and a round by hand."""

from functools import partial

import torch
from plain_loops import PLAIN, RATE, batches, cross_entropy, gradients, taking_part
from torch import tensor
from torch.testing import assert_close
from toys import SGD, SmallCNN, equal, fitted, linear, part, seeded, uneven

from fedlit import FedProx
from fedlit.aggregation import Upload, weighted_mean
from fedlit.methods import FedDyn

WEIGHT = "network.weight"


def uploads_of(method, rounds):
    """What clients sent in every round."""
    sent = []

    class Spy(method):
        def aggregate(self, uploads, current):
            held = list(uploads)
            sent.append({upload.client: upload.state for upload in held})
            return super().aggregate(held, current)

    fitted(seeded(Spy, SmallCNN, SGD, **{"mu" if method is FedProx else "alpha": 0.3}), uneven(), num_rounds=rounds)
    return sent


def test_the_uploads_of_the_first_round_and_only_those_are_fedproxs():
    dyn, prox = uploads_of(FedDyn, 2), uploads_of(FedProx, 2)
    assert all(equal(dyn[0][k], prox[0][k]) for k in range(3))
    assert not any(equal(dyn[1][k], prox[1][k]) for k in range(3))


def test_h_is_the_mean_of_all_h_i_whoever_took_part():
    federation = fitted(taking_part(FedDyn, [[0], [1], [0, 1]])(SmallCNN, SGD, alpha=0.3), uneven())
    found = part(federation.global_state, "h.")
    for name, h in found.items():
        own = [state[f"h_i.{name}"] for state in federation.personal_states.values()]  # client 2 has 0
        assert_close(h, sum(own) / 3, atol=1e-6, rtol=1e-4)
    assert max(float(h.abs().max()) for h in found.values()) > 1e-4  # some layers have no gradient but rounding


def test_where_h_is_0_and_nobody_moves_nothing_moves():
    still = partial(torch.optim.SGD, lr=0.0)
    federation = fitted(FedDyn(linear, still))
    assert equal(federation.global_state, {name: federation.state.initial[name] for name in federation.global_state})


def test_where_h_is_not_0_the_server_goes_on():
    method = FedDyn(partial(torch.nn.Linear, 1, 1, bias=False), PLAIN, alpha=0.5)
    current = {WEIGHT: tensor([[2.0]]), "h.0": tensor([[1.0]])}
    agreed = method.aggregate(iter([Upload(0, {WEIGHT: tensor([[2.0]])})]), current)
    assert_close(agreed, {WEIGHT: tensor([[0.0]]), "h.0": tensor([[1.0]])})


def test_a_round_of_the_server_by_hand():
    """x = 2, h = 1, alpha = 0.5, y = 4 and 6 of N = 4: h <- 1 - 0.125 * (2 + 4), x <- 5 - 0.25 / 0.5."""
    method = FedDyn(partial(torch.nn.Linear, 1, 1, bias=False), PLAIN, alpha=0.5)
    method.num_clients = 4
    current = {WEIGHT: tensor([[2.0]]), "h.0": tensor([[1.0]])}
    uploads = [Upload(k, {WEIGHT: tensor([[y]])}) for k, y in enumerate((4.0, 6.0))]
    assert_close(method.aggregate(iter(uploads), current), {WEIGHT: tensor([[4.5]]), "h.0": tensor([[0.25]])})


def test_three_rounds_are_a_plain_loop():
    alpha = 0.3
    torch.manual_seed(7)
    network = SmallCNN()
    parameters = list(network.parameters())
    server = {name: value.clone() for name, value in network.state_dict().items()}
    h = [torch.zeros_like(p) for p in parameters]
    h_i = {k: [torch.zeros_like(p) for p in parameters] for k in range(3)}
    for number in range(1, 4):
        sent = []
        for k in range(3):
            network.load_state_dict(server)
            x = [p.detach().clone() for p in parameters]
            for batch in batches(uneven(), number, k):
                directions = gradients(network, cross_entropy(network, *batch))
                with torch.no_grad():
                    for p, g, own, start in zip(parameters, directions, h_i[k], x, strict=True):
                        p -= RATE * (g - own + alpha * (p - start))
            moved = [p.detach() - start for p, start in zip(parameters, x, strict=True)]
            h_i[k] = [own - alpha * step for own, step in zip(h_i[k], moved, strict=True)]
            sent.append(Upload(k, {name: value.clone() for name, value in network.state_dict().items()}))
        mean = weighted_mean(sent)
        for i, (name, _) in enumerate(network.named_parameters()):
            h[i] = h[i] - alpha * (mean[name] - server[name])
            mean[name] = mean[name] - h[i] / alpha
        server = mean
    federation = fitted(seeded(FedDyn, SmallCNN, PLAIN, alpha=alpha), uneven())
    assert_close(part(federation.global_state, "network."), server, atol=1e-4, rtol=1e-3)
    assert_close(
        part(federation.global_state, "h."), {str(i): value for i, value in enumerate(h)}, atol=1e-4, rtol=1e-3
    )
