"""The mixture of experts: invariants, the three mixtures by hand, and that opted-out samples never leave."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn, tensor
from toys import Diary, SmallCNN, equal, fitted, linear, rows, toy_data

from fedlit import FedAvg, FederatedData
from fedlit.heads import FixedGate, Gated
from fedlit.losses import mixture
from fedlit.methods import MixtureOfExperts
from fedlit.methods.moe import Mixture

ADAM = partial(torch.optim.Adam, lr=0.01)
Z_LOCAL, Z_GLOBAL = tensor([[2.0, 0.0], [0.0, 0.0]]), tensor([[0.0, 1.0], [0.0, 3.0]])
MIXES = ("log_prob", "prob", "logits")


def seeded(network=linear, optimizer=ADAM, **options):
    torch.manual_seed(7)
    return MixtureOfExperts(network, optimizer, **{"epochs": 3, **options})


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("gate", "expert"), [(torch.inf, Z_LOCAL), (-torch.inf, Z_GLOBAL)])
def test_a_gate_of_1_is_the_local_expert_and_of_0_the_global_one(mix, gate, expert):
    mixed = mixture(Z_LOCAL, Z_GLOBAL, torch.full((2, 1), gate), mix)
    torch.testing.assert_close(mixed, expert if mix == "logits" else expert.log_softmax(dim=1))


@pytest.mark.parametrize("mix", MIXES)
def test_a_gate_in_between_is_neither(mix):
    mixed = mixture(Z_LOCAL, Z_GLOBAL, torch.zeros(2, 1), mix).log_softmax(dim=1)
    for expert in (Z_LOCAL, Z_GLOBAL):
        assert not torch.allclose(mixed, expert.log_softmax(dim=1))


@pytest.mark.parametrize(("h", "weights"), [(1.0, (1.0, 0.0)), (0.5, (0.5, 0.5)), (0.0, (0.0, 1.0))])
def test_a_gate_that_is_fixed_weighs_both_losses_so_and_does_not_learn(h, weights):
    gate = FixedGate(h)
    y = tensor([0, 1])
    loss = F.nll_loss(mixture(Z_LOCAL, Z_GLOBAL, gate(Z_LOCAL)), y)
    expected = weights[0] * F.cross_entropy(Z_LOCAL, y) + weights[1] * F.cross_entropy(Z_GLOBAL, y)
    torch.testing.assert_close(loss, expected)
    assert list(gate.parameters()) == []


def test_a_gate_is_fixed_in_0_to_1():
    with pytest.raises(ValueError, match=r"`h` must lie in \[0, 1\], got 1.5"):
        FixedGate(1.5)


def test_the_three_mixtures_by_hand():
    p_local, p_global, h = tensor([[0.8, 0.2]]), tensor([[0.5, 0.5]]), tensor([[0.25]])
    args = p_local.log(), p_global.log(), h.logit()
    torch.testing.assert_close(mixture(*args, "prob").exp(), tensor([[0.575, 0.425]]))
    torch.testing.assert_close(
        mixture(*args, "log_prob").exp(), tensor([[0.8**0.25 * 0.5**0.75, 0.2**0.25 * 0.5**0.75]])
    )
    torch.testing.assert_close(
        mixture(tensor([[4.0, 0.0]]), tensor([[0.0, 8.0]]), h.logit(), "logits"), tensor([[1.0, 6.0]])
    )


def gap(mix):
    """The gap between the loss of the mixture and the gate's mean of both experts' losses."""
    gate, y = tensor([[0.3], [-1.2]]), tensor([0, 1])
    h = gate.sigmoid().squeeze(1)
    losses = [F.cross_entropy(z, y, reduction="none") for z in (Z_LOCAL, Z_GLOBAL)]
    trained = Mixture(Gated(nn.Identity(), nn.Identity(), nn.Identity(), mix, freeze_global=False), ADAM, None)
    loss = trained.validation_loss(mixture(Z_LOCAL, Z_GLOBAL, gate, mix), y)
    return float(loss - (h * losses[0] + (1 - h) * losses[1]).mean())


@pytest.mark.parametrize(("mix", "holds"), [("log_prob", True), ("prob", False), ("logits", False)])
def test_the_loss_of_log_probabilities_and_of_no_other_mixture_is_the_gates_mean_of_both_losses(mix, holds):
    assert (abs(gap(mix)) < 1e-3) is holds
    assert (abs(gap(mix)) < 1e-7) is holds


def test_a_mixture_of_probabilities_is_stable_where_a_gate_is_sure():
    gate = tensor([[90.0]], requires_grad=True)
    loss = F.nll_loss(mixture(tensor([[-200.0, 0.0]]), tensor([[0.0, -200.0]]), gate, "prob"), tensor([0]))
    loss.backward()
    assert loss.isfinite()
    assert gate.grad.isfinite().all()


def test_one_run_has_all_models_of_a_row_of_the_table():
    federation = fitted(seeded(), toy_data(), num_rounds=2, report=True)
    models = {
        (row["stage"], row["model"]) for row in rows(federation) if (row["metric"], row["data"]) == ("acc", "own")
    }
    expected = {("local", "local"), ("longer", "longer"), ("finetune", "finetuned"), ("mixture", "personal")}
    assert models == expected | {("federate", "global"), ("federate", "trained")}
    with Image.open(
        f"{federation.log_dir}/curves.png"
    ) as picture:  # three curves in a row, and all models side by side below
        assert picture.height < picture.width < 2 * picture.height
    found = {row["metric"] for row in rows(federation) if row["model"] == "personal"}
    assert found >= {"gate", "gate_sd", "local_expert_acc", "global_expert_acc"}


def test_its_global_model_is_fedavgs():
    torch.manual_seed(7)
    plain = fitted(FedAvg(SmallCNN, ADAM), num_rounds=2).global_state
    ours = fitted(seeded(SmallCNN), num_rounds=2).global_state
    assert equal({name.removeprefix("federated."): tensor for name, tensor in ours.items()}, plain)


def test_what_a_client_starts_its_mixture_from():
    class Watched(MixtureOfExperts):
        seen = Diary()

        def on_client_start(self, client):
            super().on_client_start(client)
            if self.stage.name == "mixture":
                experts = self.mixture.network
                self.seen = [dict(part.state_dict()) for part in (experts.local_expert, experts.global_expert)]
                self.seen = [{n: t.clone() for n, t in state.items()} for state in self.seen]

    torch.manual_seed(7)
    federation = fitted(Watched(linear, ADAM, epochs=3), toy_data(num_clients=1), num_rounds=2)
    local, shared = federation.state.module.seen
    kept = federation.personal_states[0]
    assert equal(local, {n.removeprefix("local.network."): t for n, t in kept.items() if n.startswith("local.")})
    assert equal(shared, {n.removeprefix("federated.network."): t for n, t in federation.global_state.items()})


def test_the_fine_tuned_baseline_starts_from_the_global_model():
    # Without a step that lowers the loss the best state is the first one.
    still = partial(torch.optim.SGD, lr=0.0)
    federation = fitted(seeded(optimizer=still), num_rounds=1)
    for state in federation.personal_states.values():
        tuned = {n.removeprefix("finetuned."): t for n, t in state.items() if n.startswith("finetuned.")}
        assert equal(tuned, {n.removeprefix("federated."): t for n, t in federation.global_state.items()})


@pytest.mark.parametrize("freeze", [True, False])
def test_the_global_expert_stays_as_it_came_only_if_it_is_frozen(freeze):
    federation = fitted(seeded(SmallCNN, freeze_global=freeze), num_rounds=2)
    prefix = "mixture.network.global_expert."
    for state in federation.personal_states.values():
        expert = {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
        as_it_came = {n.removeprefix("federated.network."): t for n, t in federation.global_state.items()}
        assert equal(expert, as_it_came) == freeze


def test_any_network_may_be_the_gate():
    federation = fitted(seeded(gate=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1))), num_rounds=1)
    assert federation.personal_states[0]["mixture.network.gate.1.weight"].shape == (1, 64)


def test_only_the_federated_expert_travels_and_who_opts_out_just_receives_it():
    federation = fitted(seeded(), toy_data(opt_out=[1]), num_rounds=2)
    lines = rows(federation, "ledger.csv")
    assert {line["client"] for line in lines if line["direction"] == "up"} == {"0", "2"}
    assert [line["round"] for line in lines if line["client"] == "1"] == ["3"]  # once, when all rounds are over
    size = sum(t.numel() * t.element_size() for t in federation.global_state.values())
    assert {int(line["bytes"]) for line in lines} == {size}
    assert all(name.startswith("federated.") for name in federation.global_state)


def test_a_client_whose_local_expert_failed_has_no_mixture():
    class Breaks(MixtureOfExperts):
        def on_client_start(self, client):
            super().on_client_start(client)
            if self.stage.name == "local" and client.id == 1:
                raise RuntimeError("out of order")

    torch.manual_seed(7)
    federation = fitted(Breaks(linear, ADAM, epochs=2), num_rounds=1)
    mixtures = {k for k, s in federation.personal_states.items() if any(n.startswith("mixture.") for n in s)}
    assert mixtures == {0, 2}
    assert 1 in federation.personal_states  # its fine-tuned model needs no local expert
    assert {row["client"] for row in rows(federation) if row["model"] == "personal"} == {"0", "2"}  # nor is it counted


def test_an_expert_without_a_linear_layer_needs_a_gate_of_its_own():
    with pytest.raises(ValueError, match="must hold a linear layer as its last"):
        MixtureOfExperts(lambda: nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), ADAM)


def test_nor_do_opted_out_samples_shape_the_normalisation_of_a_users_images(tmp_path):
    def state(spoil):
        draw = np.random.default_rng(0)
        arrays = {
            f"{s}_images": draw.integers(0, 256, (n, 8, 8), dtype=np.uint8) for s, n in (("train", 90), ("test", 30))
        }
        labels = {f"{s}_labels": np.arange(n) % 3 for s, n in (("train", 90), ("test", 30))}
        data = FederatedData("mine.npz", str(tmp_path), num_clients=3, batch_size=8, opt_out=[1])
        np.savez(tmp_path / "mine.npz", **arrays, **labels)
        data.setup()
        arrays["train_images"][data.assignment.train[1]] = 255 if spoil else 0
        np.savez(tmp_path / "mine.npz", **arrays, **labels)
        again = FederatedData("mine.npz", str(tmp_path), num_clients=3, batch_size=8, opt_out=[1])
        return fitted(seeded(epochs=1, baselines=False), again, num_rounds=1).global_state

    assert equal(state(False), state(True))


@pytest.mark.parametrize(("first_check", "epochs"), [(1, [1, 6, 11, 12]), (0, [0, 5, 10, 12]), (3, [3, 8, 12])])
def test_the_validation_loss_is_looked_at_as_often_as_the_authors_do_and_after_the_last_epoch(first_check, epochs):
    looked = []
    method = MixtureOfExperts(linear, ADAM, epochs=12, baselines=False, first_check=first_check)
    plain = method.mixture.validation_loss

    def watched(z, y):
        if not z.requires_grad:
            looked.append(method.mixture.trainer.current_epoch + bool(method.mixture.trainer.global_step))
        return plain(z, y)

    method.mixture.validation_loss = watched
    fitted(method, toy_data(num_clients=1), num_rounds=1)
    assert looked == epochs


def test_the_local_expert_may_have_another_architecture():
    federation = fitted(seeded(linear, local_network=SmallCNN), num_rounds=1)
    kept = federation.personal_states[0]
    convolutions = {name.removesuffix("0.weight") for name in kept if kept[name].shape == (4, 1, 3, 3)}
    assert convolutions == {"local.network.", "longer.network.", "mixture.network.local_expert."}
    assert all(tensor.dim() < 4 for tensor in federation.global_state.values())


def test_a_gate_with_many_outputs_is_refused():
    with pytest.raises(ValueError, match="a gate must give one output, got"):
        fitted(seeded(gate=linear))
