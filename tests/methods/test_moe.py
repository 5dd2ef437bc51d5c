"""The mixture of experts: laws of SPEC 9.5, the three mixtures by hand, and that opted-out samples never leave."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from PIL import Image
from torch import nn, tensor
from toys import Diary, SmallCNN, equal, fitted, linear, rows, toy_data

from fedlit import FedAvg, FederatedData, Federation, FineTuned
from fedlit.heads import FixedGate, Gated, with_outputs
from fedlit.losses import mixture
from fedlit.methods import MixtureOfExperts
from fedlit.methods.moe import Mixture
from fedlit.networks import MoEExpert

ADAM = partial(torch.optim.Adam, lr=0.01)
Z_LOCAL, Z_GLOBAL = tensor([[2.0, 0.0], [0.0, 0.0]]), tensor([[0.0, 1.0], [0.0, 3.0]])
MIXES = ("log_prob", "prob", "logits")


def seeded(network=linear, optimizer=ADAM, **options):
    torch.manual_seed(7)
    return MixtureOfExperts(network, optimizer, **{"epochs": 3, **options})


# --- numbers and laws of the mixture


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


def test_a_federation_runs_under_a_gate_that_is_fixed_and_tells_its_weight():
    federation = fitted(seeded(gate=partial(FixedGate, 0.5), baselines=False))
    told = [float(row["value"]) for row in rows(federation, "metrics.csv") if row["metric"] in ("gate", "gate_sd")]
    assert set(told) == {0.5, 0.0}


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


def test_the_loss_of_log_probabilities_is_the_gates_mean_of_both_losses():
    assert gap("log_prob") == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("mix", ["prob", "logits"])
def test_the_loss_of_the_other_mixtures_is_not(mix):
    assert abs(gap(mix)) > 1e-3


def test_a_mixture_of_probabilities_is_stable_where_a_gate_is_sure():
    gate = tensor([[90.0]], requires_grad=True)
    loss = F.nll_loss(mixture(tensor([[-200.0, 0.0]]), tensor([[0.0, -200.0]]), gate, "prob"), tensor([0]))
    loss.backward()
    assert loss.isfinite()
    assert gate.grad.isfinite().all()


def test_the_gate_of_the_paper_has_61241_parameters():
    assert sum(p.numel() for p in with_outputs(MoEExpert(), 1).parameters()) == 61241


# --- the programme


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
    told = {row["metric"] for row in rows(federation) if row["model"] == "personal"}
    assert told >= {"gate", "gate_sd", "local_expert_acc", "global_expert_acc"}


def test_without_baselines_there_are_only_the_three_stages():
    assert [stage.name for stage in seeded(baselines=False).configure_stages()] == ["federate", "local", "mixture"]


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


@pytest.mark.parametrize("uphill", [True, False])
def test_the_best_weights_are_copies_and_not_the_last(uphill):
    """The authors' code keeps references, which go on training; uphill, the state that came is the best."""

    class Watched(MixtureOfExperts):
        first = Diary()

        def on_client_start(self, client):
            super().on_client_start(client)
            if self.stage.name == "mixture":
                self.first = {n: t.clone() for n, t in self.mixture.state_dict().items()}

    torch.manual_seed(7)
    away = partial(torch.optim.SGD, lr=0.1, maximize=uphill)
    method = Watched(linear, ADAM, epochs=6, mixture_optimizer=away, first_check=0)
    federation = fitted(method, toy_data(num_clients=1), num_rounds=1)
    kept = federation.personal_states[0]
    mixture_state = {n.removeprefix("mixture."): t for n, t in kept.items() if n.startswith("mixture.")}
    assert equal(mixture_state, method.first) == uphill


@pytest.mark.parametrize("options", [{"epochs": 0}, {"first_check": -1}])
def test_impossible_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=rf"`model.{next(iter(options))}` must be at least"):
        seeded(**options)


def test_an_expert_without_a_linear_layer_needs_a_gate_of_its_own():
    with pytest.raises(ValueError, match="must hold a linear layer as its last"):
        MixtureOfExperts(lambda: nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), ADAM)


# --- opted-out samples never leave, byte for byte


def uploads_of(method, data, seed):
    """Every upload with its weight, the global state and the ledger."""
    sent = []

    class Watched(type(method)):
        def aggregate(self, uploads, current):
            def noted():
                for upload in uploads:
                    sent.append((upload.client, upload.weight, {n: t.clone() for n, t in upload.state.items()}))
                    yield upload

            return super().aggregate(noted(), current)

    method.__class__ = Watched
    federation = fitted(method, data, num_rounds=2, seed=seed)
    return sent, federation.global_state, rows(federation, "ledger.csv"), federation


def spoiled(how):
    """Data whose opted-out samples are something else."""
    data = toy_data(opt_out=[1], opt_out_samples=0.4, size=90)
    data.setup()
    for k, (train, shared) in enumerate(zip(data.assignment.train, data.assignment.opted_in, strict=True)):
        hidden = train[~shared]
        if how == "values":
            data.images.train_x[hidden] = 1000.0
        if how == "labels":
            data.images.train_y[hidden] = (data.images.train_y[hidden] + 1) % 3
        if how == "number":  # each client loses all but one of its opted-out samples
            keep = shared.copy()
            keep[(~shared).argmax()] = True
            data.assignment.train[k], data.assignment.opted_in[k] = train[keep], shared[keep]
    return data


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_no_upload_depends_on_what_is_opted_out(seed):
    plain, state, ledger, ours = uploads_of(seeded(SmallCNN, epochs=2, baselines=False), spoiled(None), seed)
    for how in ("values", "labels", "number"):
        other, other_state, other_ledger, theirs = uploads_of(
            seeded(SmallCNN, epochs=2, baselines=False), spoiled(how), seed
        )
        assert [(k, w) for k, w, _ in other] == [(k, w) for k, w, _ in plain]
        assert all(equal(a, b) for (_, _, a), (_, _, b) in zip(plain, other, strict=True))
        assert equal(other_state, state)
        assert other_ledger == ledger
        assert not equal(theirs.personal_states[1], ours.personal_states[1])  # it does reach the client's own models


def test_an_upload_would_depend_on_them_if_a_client_counted_by_all_of_its_samples():
    class Leaks(MixtureOfExperts):
        def client_weight(self, client):
            return client.num_samples

    def run(how):
        torch.manual_seed(7)
        return uploads_of(Leaks(SmallCNN, ADAM, epochs=1, baselines=False), spoiled(how), 0)[0]

    assert [w for _, w, _ in run(None)] != [w for _, w, _ in run("number")]


def test_fine_tuning_does_not_leak_either():
    def run(how):
        torch.manual_seed(7)
        return uploads_of(FineTuned(SmallCNN, ADAM, 1), spoiled(how), 0)

    assert equal(run(None)[1], run("values")[1])


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


# --- each option reaches what it is for


def test_the_longer_baseline_starts_from_the_local_expert():
    still = partial(torch.optim.SGD, lr=0.0)
    federation = fitted(seeded(optimizer=still), num_rounds=1)
    for state in federation.personal_states.values():
        longer = {n.removeprefix("longer."): t for n, t in state.items() if n.startswith("longer.")}
        assert equal(longer, {n.removeprefix("local."): t for n, t in state.items() if n.startswith("local.")})


@pytest.mark.parametrize("uphill", [True, False])
def test_the_state_after_the_last_epoch_may_be_the_best(uphill):
    """Three epochs are looked at after the first and after the last only."""
    seen = []
    down = partial(torch.optim.SGD, lr=0.01, maximize=uphill)
    method = MixtureOfExperts(linear, ADAM, epochs=3, baselines=False, mixture_optimizer=down)
    method.mixture.on_train_epoch_end = lambda: seen.append(
        {n: t.clone() for n, t in method.mixture.state_dict().items()}
    )
    kept = fitted(method, toy_data(num_clients=1), num_rounds=1).personal_states[0]
    kept = {n.removeprefix("mixture."): t for n, t in kept.items() if n.startswith("mixture.")}
    assert equal(kept, seen[-1]) is not uphill
    assert equal(kept, seen[0]) is uphill


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


def test_a_fine_tuned_model_has_been_trained_unless_it_may_stay_as_it_came():
    away = partial(torch.optim.SGD, lr=0.1, maximize=True)

    def is_untouched(first_check):
        federation = fitted(seeded(optimizer=away, first_check=first_check), toy_data(num_clients=1), num_rounds=1)
        kept = federation.personal_states[0]
        tuned = {n.removeprefix("finetuned."): t for n, t in kept.items() if n.startswith("finetuned.")}
        return equal(tuned, {n.removeprefix("federated."): t for n, t in federation.global_state.items()})

    assert is_untouched(0)
    assert not is_untouched(1)


def test_the_local_expert_may_have_another_architecture():
    federation = fitted(seeded(linear, local_network=SmallCNN), num_rounds=1)
    kept = federation.personal_states[0]
    convolutions = {name.removesuffix("0.weight") for name in kept if kept[name].shape == (4, 1, 3, 3)}
    assert convolutions == {"local.network.", "longer.network.", "mixture.network.local_expert."}
    assert all(tensor.dim() < 4 for tensor in federation.global_state.values())


def test_a_local_network_of_the_same_architecture_changes_nothing():
    plain, named = (fitted(seeded(**options), num_rounds=1) for options in ({}, {"local_network": linear}))
    assert equal(plain.personal_states[1], named.personal_states[1])


def test_the_gate_is_judged_by_its_mean_and_each_expert_by_its_own_accuracy():
    right, wrong = nn.Identity(), Opposite()
    gated = Gated(right, wrong, Half(), "log_prob", freeze_global=False)
    judged = gated.judged([(tensor([[2.0, 0.0], [0.0, 2.0]]), tensor([0, 1]))])
    assert judged == {"gate": 0.5, "gate_sd": 0.0, "local_expert_acc": 1.0, "global_expert_acc": 0.0}


class Opposite(nn.Module):
    def forward(self, x):
        return -x


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x.new_zeros(len(x), 1)


def test_a_gate_with_many_outputs_is_refused():
    with pytest.raises(ValueError, match="a gate must give one output, got"):
        fitted(seeded(gate=linear))


def test_an_unknown_mixture_is_refused():
    with pytest.raises(ValueError, match="`mix` must be one of"):
        seeded(mix="logprob")


def test_it_runs_in_double_precision_and_tells_of_its_gate():
    federation = fitted(seeded(), num_rounds=1, precision="64-true")
    assert "gate/personal_on_own" in federation.state.scores.last


def test_other_options_do_not_change_what_is_tested(tmp_path):
    method = seeded(epochs=1)
    fitted(method, num_rounds=1, default_root_dir=str(tmp_path))
    longer = Federation(num_rounds=9, default_root_dir=str(tmp_path), logger=False, accelerator="cpu")
    found = longer.validate(seeded(epochs=1), toy_data(), ckpt_path="last")
    assert {row.stage for row in found} == {"mixture"}


def test_a_plain_trainer_trains_the_mixture(tmp_path):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path, **options)
    trainer.fit(seeded(), toy_data())
    assert trainer.callback_metrics["val_acc"] >= 0
