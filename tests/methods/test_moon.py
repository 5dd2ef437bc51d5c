"""MOON: features near the global model's, and away from one's own last ones."""

import math

import pytest
import torch
from torch import nn, tensor
from toys import SGD, SmallCNN, equal, fitted, linear, part, rows, seeded, toy_data, uneven

from fedlit import FedAvg
from fedlit.heads import with_features, with_projection
from fedlit.losses import model_contrastive
from fedlit.methods import MOON


def projected():
    return with_projection(SmallCNN(), 5)


@pytest.mark.parametrize(("mu", "holds"), [(0.0, True), (0.5, False)])
@pytest.mark.parametrize(("network", "projection"), [(projected, 5), (SmallCNN, None)])
def test_with_mu_0_and_only_then_it_is_fedavg_of_the_same_network(network, projection, mu, holds):
    moon = fitted(seeded(MOON, SmallCNN, SGD, mu=mu, projection=projection), uneven())
    assert equal(moon.global_state, fitted(seeded(FedAvg, network, SGD), uneven()).global_state) is holds


def contrasts(**options):
    federation = fitted(MOON(SmallCNN, SGD, projection=5), **options)
    found = [row for row in rows(federation) if row["metric"] == "contrast"]
    return [float(row["value"]) for row in sorted(found, key=lambda row: (int(row["round"]), int(row["client"])))]


def test_in_a_first_round_the_term_is_log_2_and_later_it_is_not():
    first, second = torch.tensor(contrasts(num_rounds=2, local_steps=2)).chunk(2)
    assert torch.equal(first, torch.full((3,), math.log(2)))  # both others are one network in round 1
    assert not torch.isclose(second, torch.full((3,), math.log(2))).any()


@pytest.mark.parametrize(
    ("z", "z_glob", "z_prev", "temperature", "expected"),
    [
        ((3.0, 4.0), (3.0, 4.0), (-3.0, -4.0), 0.5, math.log(1 + math.exp(-4))),  # cosines 1 and -1
        ((3.0, 4.0), (1.0, 0.0), (0.0, 2.0), 1.0, math.log(1 + math.exp(0.2))),  # 3/5 and 4/5
        ((3.0, 4.0), (0.0, 2.0), (1.0, 0.0), 0.1, math.log(1 + math.exp(-2))),
        ((1.0, 0.0), (0.0, 1.0), (0.0, 1.0), 0.5, math.log(2)),
    ],
)
def test_the_contrast_by_hand(z, z_glob, z_prev, temperature, expected):
    given = [tensor([value]) for value in (z, z_glob, z_prev)]
    assert model_contrastive(*given, temperature).item() == pytest.approx(expected)


def test_the_contrast_is_a_mean_over_samples_and_gives_the_others_no_gradient():
    z, z_glob, z_prev = (torch.randn(6, 4, requires_grad=True) for _ in range(3))
    each = [model_contrastive(*(t[i : i + 1] for t in (z, z_glob, z_prev))) for i in range(6)]
    whole = model_contrastive(z, z_glob, z_prev)
    torch.testing.assert_close(whole, torch.stack(each).mean())
    whole.backward()
    assert z.grad.abs().sum() > 0
    assert z_glob.grad is None
    assert z_prev.grad is None


def test_the_loss_of_a_step_is_the_sum_of_both():
    federation = fitted(MOON(SmallCNN, SGD, projection=5, mu=3.0), num_rounds=1, local_steps=1)
    method = federation.state.module
    x, y = torch.randn(4, 1, 8, 8), tensor([0, 1, 2, 0])
    method.eval()
    method.on_client_start(None)
    for parameter in method.previous.parameters():
        nn.init.normal_(parameter)
    z, logits = with_features(method.network, x)
    contrast = model_contrastive(z, z, with_features(method.previous, x)[0])
    expected = nn.functional.cross_entropy(logits, y) + 3.0 * contrast
    torch.testing.assert_close(method.training_step((x, y), 0), expected)


def test_the_previous_network_is_the_one_that_the_last_round_ended_with():
    method, begun, ended = seeded(MOON, SmallCNN, SGD, projection=5), [], []
    start, end = method.on_client_start, method.on_client_end

    def noted_start(client):
        start(client)
        begun.append({name: value.clone() for name, value in method.previous.state_dict().items()})

    def noted_end(client):
        ended.append({name: value.clone() for name, value in method.network.state_dict().items()})
        end(client)

    method.on_client_start, method.on_client_end = noted_start, noted_end
    federation = fitted(method, num_rounds=2)
    assert all(equal(a, b) for a, b in zip(begun[3:], ended[:3], strict=True))
    assert equal(part(federation.personal_states[2], "previous."), ended[5])
    assert not any(name.startswith("previous") for name in federation.global_state)


def test_a_client_has_no_model_but_the_global_one():
    method, data = MOON(SmallCNN, SGD, projection=5), toy_data()
    federation = fitted(method, data, num_rounds=1)
    assert {row["model"] for row in rows(federation)} == {"trained", "global"}
    assert {row.model for row in federation.test(method, data)} == {"global"}


class Unused(nn.Module):
    """Its last linear layer plays no part."""

    def __init__(self):
        super().__init__()
        self.used = linear()
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (lambda: nn.Conv2d(1, 3, 8), {}, r"`model\.network`: Conv2d must hold linear layers for a head, 1, and has 0"),
        (lambda: nn.Linear(64, 3), {}, r"`model\.network`: Linear must hold linear layers for a head, 1, and has 0"),
    ],
)
def test_bad_options_are_refused_by_name(network, options, message):
    with pytest.raises(ValueError, match=message):
        MOON(network, SGD, **options)


def test_a_network_whose_last_linear_layer_plays_no_part_is_refused():
    with pytest.raises(ValueError, match="the last linear layer of Unused takes no part in its `forward`"):
        with_features(Unused(), torch.zeros(1, 64))
