"""Federated mutual learning: invariants, numbers, and what ports get wrong."""

import math

import pytest
import torch
from test_fedproto import Alone
from torch import nn, tensor
from toys import SGD, SmallCNN, TrunkAndHead, equal, fitted, linear, rows, toy_data, uneven

from fedlit import FedAvg, LocalOnly
from fedlit.aggregation import num_bytes
from fedlit.losses import mutual_loss
from fedlit.methods import FML, Ramp


def other() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Dropout(0.4), nn.Linear(5, 3))


def renamed(state, prefix):
    return {prefix + name.split(".", 1)[1]: value for name, value in state.items()}


def fml_and(method, personal=other, meme=SmallCNN, **weights):
    """FML and a simpler method whose shared network starts from the meme's initial weights."""
    fml = FML(personal, meme, SGD, **weights)
    simple = method()
    if hasattr(simple, "weighting") and not isinstance(simple, LocalOnly):
        simple.network.load_state_dict(fml.meme.state_dict())
    return fitted(fml, uneven()), fitted(simple, uneven())


@pytest.mark.parametrize(("beta", "holds"), [(1.0, True), (0.9, False)])
def test_with_beta_1_and_only_then_the_global_model_is_fedavgs_with_uniform_weights(beta, holds):
    fml, fedavg = fml_and(lambda: FedAvg(SmallCNN, SGD, weighting="uniform"), alpha=0.3, beta=beta)
    assert equal(renamed(fml.global_state, ""), renamed(fedavg.global_state, "")) is holds


def test_one_network_is_both_the_personal_one_and_the_meme():
    states = []
    for networks in ({"personal": SmallCNN, "meme": SmallCNN}, {"network": SmallCNN}):
        torch.manual_seed(0)
        states.append(fitted(FML(**networks, optimizer=SGD)).global_state)
    assert equal(*states)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"personal": linear}, "`model.personal` and `model.meme` must be given, or `model.network`"),
        ({"personal": linear, "meme": linear, "network": linear}, "`model.network` plays no part"),
        ({"network": linear, "optimizer": None}, "`model.optimizer` must be given"),
    ],
)
def test_networks_too_few_or_too_many_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        FML(**{"optimizer": SGD, **options})


@pytest.mark.parametrize(("alpha", "holds"), [(1.0, True), (0.9, False)])
def test_with_alpha_1_and_only_then_a_personal_network_is_trained_as_if_alone(alpha, holds):
    fml, alone = fml_and(lambda: Alone(linear, SGD), personal=linear, alpha=alpha)
    personal = {n: t for n, t in fml.personal_states[1].items() if n.startswith("personal.")}
    assert equal(renamed(personal, ""), renamed(alone.personal_states[1], "")) is holds


def test_no_gradient_of_one_loss_reaches_the_other_network():
    a, b = linear(), linear()
    x, y = torch.randn(4, 1, 8, 8), tensor([0, 1, 2, 0])
    mutual_loss(a(x), b(x), y, 0.5).backward()
    assert a[1].weight.grad.abs().sum() > 0
    assert b[1].weight.grad is None


def test_the_sum_of_both_losses_gives_each_network_the_gradient_of_its_own():
    a, b = linear(), linear()
    x, y = torch.randn(4, 1, 8, 8), tensor([0, 1, 2, 0])
    alone = torch.autograd.grad(mutual_loss(a(x), b(x), y, 0.3), a[1].weight)[0]
    (mutual_loss(a(x), b(x), y, 0.3) + mutual_loss(b(x), a(x), y, 0.7)).backward()
    assert torch.equal(a[1].weight.grad, alone)


def test_both_losses_by_hand():
    p, q = (0.75, 0.25), (0.5, 0.5)
    logits, peer = (tensor([[math.log(v) for v in pair]]) for pair in (p, q))
    kl = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    expected = 0.3 * -math.log(0.75) + 0.7 * kl
    assert mutual_loss(logits, peer, tensor([0]), 0.3).item() == pytest.approx(expected)
    reverse = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert mutual_loss(peer, logits, tensor([0]), 0.0).item() == pytest.approx(reverse)
    assert reverse != pytest.approx(kl)


def test_a_batch_is_averaged_over_samples_and_summed_over_classes():
    z, peer, y = torch.randn(6, 4), torch.randn(6, 4), tensor([0, 1, 2, 3, 0, 1])
    each = [mutual_loss(z[i : i + 1], peer[i : i + 1], y[i : i + 1], 0.2) for i in range(6)]
    torch.testing.assert_close(mutual_loss(z, peer, y, 0.2), torch.stack(each).mean())


@pytest.mark.parametrize("weight", [-0.1, 1.1])
def test_a_weight_outside_0_and_1_is_refused(weight):
    with pytest.raises(ValueError, match=r"`weight` .* \[0, 1\], got"):
        mutual_loss(torch.zeros(1, 2), torch.zeros(1, 2), tensor([0]), weight)


def test_only_the_meme_travels_whatever_the_personal_networks():
    method = FML(other, SmallCNN, SGD, client_networks={1: linear})
    federation = fitted(method)
    size = num_bytes(federation.global_state)
    assert all(name.startswith("meme.") for name in federation.global_state)
    assert {int(row["bytes"]) for row in rows(federation, "ledger.csv")} == {size}
    assert all(name.startswith("personal.") for state in federation.personal_states.values() for name in state)
    assert federation.personal_states[1].keys() != federation.personal_states[0].keys()


def test_every_client_draws_a_personal_network_of_its_own_and_keeps_it():
    federation = fitted(FML(linear, linear, SGD), num_rounds=1, local_steps=1)
    first = {k: state["personal.1.weight"].clone() for k, state in federation.personal_states.items()}
    assert not torch.equal(first[0], first[1])


def test_the_personal_optimiser_goes_on_and_the_memes_starts_anew():
    federation = fitted(FML(linear, linear, SGD), num_rounds=2)
    kept = federation.state.client_states[0].optimizer["federate"]
    assert set(kept) == {"personal.1.weight", "personal.1.bias"}
    assert kept["personal.1.weight"]["momentum_buffer"].abs().sum() > 0


def test_partial_sharing_sends_the_trunk_and_keeps_the_adaptor_across_rounds():
    federation = fitted(FML(linear, TrunkAndHead, SGD, share="extractor"), num_rounds=2)
    assert set(federation.global_state) == {"meme.extractor.0.weight", "meme.extractor.0.bias"}
    state = federation.personal_states[0]
    assert {"meme.head.1.weight", "personal.1.weight"} <= state.keys()
    before = state["meme.head.1.weight"].clone()
    frozen = fitted(FML(linear, TrunkAndHead, SGD, share="extractor"), num_rounds=2, ckpt_path=None, local_steps=1)
    assert not torch.equal(frozen.personal_states[0]["meme.head.1.weight"], before)
    found = {(row["model"], row["data"]) for row in rows(federation)}
    assert "global" not in {model for model, _ in found}  # the server holds the trunk alone


def test_an_untrained_client_keeps_the_network_it_drew_while_its_meme_learns():
    federation = fitted(FML(SmallCNN, linear, SGD, untrained_clients=[2]), num_rounds=3)
    once = fitted(FML(SmallCNN, linear, SGD, untrained_clients=[2]), num_rounds=1)
    assert equal(federation.personal_states[2], once.personal_states[2])
    assert not equal(federation.personal_states[0], once.personal_states[0])


def test_an_opted_out_client_has_no_personal_network_that_counts():
    federation = fitted(FML(linear, linear, SGD), toy_data(opt_out=[1]), num_rounds=2)
    assert {row["client"] for row in rows(federation) if row["model"] == "personal"} == {"0", "2"}
    assert {row["client"] for row in rows(federation) if row["model"] == "global"} == {"0", "1", "2", "all"}
    with pytest.raises(ValueError, match="`--client` 1 has trained no model of its own in stage 'federate'"):
        federation.network(client=1)


def test_alpha_falls_and_beta_rises_as_in_the_authors_earlier_code():
    alpha, beta = Ramp(until=0.5, rounds=20, steps=2), Ramp(until=0.9, rounds=20, steps=2)
    at = [1, 10, 11, 20, 21, 40]
    assert [round(alpha(0.9, r), 6) for r in at] == [0.9, 0.9, 0.7, 0.7, 0.5, 0.5]
    assert [round(beta(0.1, r), 6) for r in at] == [0.1, 0.1, 0.5, 0.5, 0.9, 0.9]


@pytest.mark.parametrize("start", [i / 97 for i in range(97)])
def test_a_ramp_ends_where_it_should_and_never_leaves_0_and_1(start):
    way = [Ramp(until=1.0, rounds=7)(start, r) for r in range(1, 10)]
    assert way[-1] == 1.0
    assert all(0 <= weight <= 1 for weight in way)


def test_a_ramp_is_followed_in_training():
    method = FML(
        linear, linear, SGD, alpha=0.9, alpha_ramp=Ramp(0.5, rounds=2), beta=0.1, beta_ramp=Ramp(0.9, rounds=2)
    )
    seen = []
    method.on_client_end = lambda client: seen.append((client.round, *method.weights()))
    fitted(method, toy_data(num_clients=1), num_rounds=3)
    assert [tuple(round(v, 6) for v in entry) for entry in seen] == [(1, 0.9, 0.1), (2, 0.7, 0.5), (3, 0.5, 0.9)]


@pytest.mark.parametrize("weight", ["beta", "alpha"])
def test_clipping_one_networks_gradient_does_not_depend_on_the_other(weight):
    """Another architecture of the other network, whose gradient has another norm, makes no difference."""
    clipped = {"gradient_clip_val": 0.05, "num_rounds": 2}
    networks = [(linear, linear), (other, linear)] if weight == "beta" else [(linear, linear), (linear, TrunkAndHead)]
    prefix = "meme." if weight == "beta" else "personal."
    states = []
    for personal, meme in networks:
        method = FML(personal, meme, SGD, **{weight: 1.0})
        torch.manual_seed(3)
        for name, parameter in method.named_parameters():
            if name.startswith(prefix):
                torch.nn.init.normal_(parameter)
        federation = fitted(method, **clipped)
        states.append(federation.global_state if weight == "beta" else federation.personal_states[0])
    assert equal(*({n: t for n, t in state.items() if n.startswith(prefix)} for state in states))


def test_sharing_an_extractor_needs_one():
    with pytest.raises(ValueError, match=r"`model.share: extractor` needs a `model.meme` with an `extractor`"):
        FML(linear, linear, SGD, share="extractor")


def personal_and_meme(**options):
    """Of one client after its first round, trained by labels alone unless the options say otherwise."""
    method = FML(linear, linear, SGD, **{"alpha": 1.0, "beta": 1.0, "personal_from": "server", **options})
    federation = fitted(method, toy_data(num_clients=1), num_rounds=1)
    personal = federation.personal_states[0]
    return renamed({n: t for n, t in personal.items() if n.startswith("personal.")}, ""), renamed(
        federation.global_state, ""
    )


@pytest.mark.parametrize(("start", "holds"), [("server", True), ("own", False)])
def test_with_labels_alone_a_start_from_the_server_ends_a_first_round_with_two_equal_networks(start, holds):
    assert equal(*personal_and_meme(personal_from=start)) is holds


def test_a_personal_network_starts_from_the_server_only_once():
    starts = []

    class Watched(FML):
        def on_client_start(self, client):
            before = [p.clone() for p in self.personal.parameters()]
            super().on_client_start(client)
            same = [torch.equal(p, q) for p, q in zip(before, self.personal.parameters(), strict=True)]
            starts.append((client.round, client.id, not all(same)))

    fitted(Watched(linear, linear, SGD, personal_from="server"), fraction_fit=0.5, min_clients=2, num_rounds=4)
    first = {}
    for number, k, _ in starts:
        first.setdefault(k, number)
    assert set(first) == {0, 1, 2}
    assert max(first.values()) > 1  # somebody came later, and still started from the server
    assert [(n, k) for n, k, started in starts if started] == [(n, k) for n, k, _ in starts if first[k] == n]


def test_a_start_from_the_server_needs_one_architecture():
    with pytest.raises(ValueError, match=r"`model.personal_from: server` needs `model.personal` of the same arch"):
        FML(other, linear, SGD, personal_from="server")
    method = FML(linear, linear, SGD, personal_from="server", client_networks={1: other})
    with pytest.raises(ValueError, match=r"needs `model.client_networks` of client 1 of the same architecture"):
        fitted(method)
