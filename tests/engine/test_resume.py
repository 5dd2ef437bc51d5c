"""Going on, and what is no longer the same experiment."""

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassCalibrationError
from toys import SGD, equal, fitted, linear, seeded, toy_data

from fedlit import FedAvg, FineTuned, LocalOnly
from fedlit.callbacks import FederationCallback, StopAt


def test_a_resumed_personal_optimiser_goes_on_with_its_momentum(tmp_path):
    def run(rounds, folder, ckpt_path=None):
        method = seeded(LocalOnly, linear, torch.optim.Adam)
        return fitted(method, num_rounds=rounds, default_root_dir=str(tmp_path / folder), ckpt_path=ckpt_path)

    straight = run(4, "straight")
    run(2, "cut")
    resumed = run(4, "cut", "last")
    assert all(equal(resumed.personal_states[k], straight.personal_states[k]) for k in range(3))


def test_a_stage_that_is_over_cannot_be_made_longer(tmp_path):
    options = {"default_root_dir": str(tmp_path)}
    fitted(seeded(FineTuned, linear, SGD), num_rounds=2, **options)
    with pytest.raises(ValueError, match="has done 2 rounds of 'federate', 1 rounds of 'finetune'; with these options"):
        fitted(seeded(FineTuned, linear, SGD), num_rounds=4, ckpt_path="last", **options)


def test_another_network_of_one_client_is_another_experiment(tmp_path):
    options = {"default_root_dir": str(tmp_path)}
    wide = {1: lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 3))}
    fitted(seeded(LocalOnly, linear, SGD, wide), num_rounds=1, **options)
    with pytest.raises(ValueError, match="the network of client 1 differs"):
        fitted(seeded(LocalOnly, linear, SGD), num_rounds=2, ckpt_path="last", **options)


def test_other_images_are_another_experiment(tmp_path):
    options = {"default_root_dir": str(tmp_path)}
    fitted(seeded(FedAvg, linear, SGD), num_rounds=1, **options)
    data = toy_data()
    data.setup()
    data.images.train_x.add_(1)
    with pytest.raises(ValueError, match="its partition differs"):
        fitted(seeded(FedAvg, linear, SGD), data, num_rounds=2, ckpt_path="last", **options)


def test_a_target_that_was_reached_is_not_trained_past_after_a_resume(tmp_path):
    options = {"default_root_dir": str(tmp_path), "callbacks": StopAt(0.0, "acc/global_on_own"), "num_rounds": 5}
    assert fitted(seeded(FedAvg, linear, SGD), **options).state.round == 1
    assert fitted(seeded(FedAvg, linear, SGD), ckpt_path="last", **options).state.round == 1


def test_best_means_lowest_where_lower_is_better():
    metric = {"ece": MulticlassCalibrationError(3)}
    federation = fitted(FedAvg(linear, SGD), num_rounds=6, metrics=metric, monitor="ece/global_on_pooled")
    lines = [line.split(",") for line in open(f"{federation.log_dir}/metrics.csv").read().splitlines()]  # noqa: SIM115
    values = {int(line[0]): float(line[-1]) for line in lines if line[3:6] == ["global", "pooled", "ece"]}
    best = torch.load(f"{federation.log_dir}/checkpoints/best.ckpt", weights_only=True)
    assert values[best["round"]] == min(values.values())


def test_auto_leaves_a_finished_run_as_it_is_and_says_so(tmp_path, capsys):
    options = {"num_rounds": 2, "default_root_dir": str(tmp_path), "enable_progress_bar": True}
    fitted(seeded(LocalOnly, linear, SGD), ckpt_path="auto", **options)
    kept = ("metrics.csv", "ledger.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt")
    folder = tmp_path / "lightning_logs" / "version_0"
    before = [(folder / name).read_bytes() for name in kept]
    fitted(seeded(LocalOnly, linear, SGD), ckpt_path="auto", **options)
    assert "All 2 rounds are done" in capsys.readouterr().err
    assert [(folder / name).read_bytes() for name in kept] == before
    assert [path.name for path in folder.parent.iterdir()] == ["version_0"]


def test_a_folder_in_use_is_left_alone(tmp_path):
    def run(**options):
        return fitted(seeded(FedAvg, linear, SGD), num_rounds=2, default_root_dir=str(tmp_path), **options)

    class Meddles(FederationCallback):
        def on_fit_end(self, trainer, pl_module):
            with pytest.raises(ValueError, match="is in use: another process"):
                run(ckpt_path="last")

    run(callbacks=[Meddles()])
    run(ckpt_path="last")


def test_other_data_after_a_fit_are_the_data_that_are_tested():
    method = seeded(FedAvg, linear, SGD)
    federation = fitted(method)
    other = toy_data()
    other.setup()
    other.images.test_y.copy_((other.images.test_y + 1) % 3)
    before, after = (federation.test(method, data)[0].value for data in (toy_data(), other))
    assert before > 0.5 > after


def test_what_opted_out_samples_have_shaped_is_never_exchanged():
    from fedlit import Stage

    class Backwards(FineTuned):
        def configure_stages(self):
            return [Stage("home", rounds=1, samples="all", upload="none"), Stage("federate")]

    fitted(Backwards(linear, SGD), num_rounds=1)
    with pytest.raises(ValueError, match="Stage 'federate' would upload what opted-out samples have shaped"):
        fitted(Backwards(linear, SGD), toy_data(opt_out_samples=0.5), num_rounds=1)
