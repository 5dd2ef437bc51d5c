"""Methods that are programmes: killed in any stage or on several processes, the same bits."""

import os
import signal
from functools import partial

import pytest
import torch
from test_laws import KillAt, in_a_child
from test_processes import finished, same
from toys import SmallCNN, equal, fitted, linear, toy_data

from fedlit.augment import Flip
from fedlit.methods import DLAD, MixtureOfExperts

ADAM = partial(torch.optim.Adam, lr=0.01)


def mixture(**options):
    torch.manual_seed(7)
    method = MixtureOfExperts(SmallCNN, ADAM, epochs=3)
    return fitted(method, toy_data(opt_out=[1]), num_rounds=2, **options)


def dlad(augmentation=(), optimizer=ADAM, **options):
    torch.manual_seed(7)
    method = DLAD(SmallCNN, optimizer, client_epochs=2, density_epochs=2, distil_epochs=3, client_networks={1: linear})
    return fitted(method, toy_data(120, public=0.5, augmentation=list(augmentation)), **options)


def all_states(federation):
    run = federation.state
    return [run.global_state, *federation.personal_states.values(), *(run.collected[k] for k in sorted(run.collected))]


@pytest.mark.parametrize(
    ("experiment", "rounds"),
    [
        (mixture, (2, 4, 6)),
        (dlad, (2, 4)),
        pytest.param(mixture, range(1, 7), marks=pytest.mark.slow),
        pytest.param(dlad, range(1, 6), marks=pytest.mark.slow),
        pytest.param(partial(dlad, (Flip(),)), range(1, 6), marks=pytest.mark.slow),
    ],
)
def test_killed_in_any_stage_a_programme_resumes_to_the_same_bits(experiment, rounds, tmp_path):
    undisturbed = all_states(experiment(default_root_dir=str(tmp_path / "whole")))
    for round in rounds:
        folder = {"default_root_dir": str(tmp_path / f"killed_{round}")}
        killed = in_a_child(lambda: experiment(callbacks=KillAt(round, "start"), **folder))  # noqa: B023
        assert killed == -signal.SIGKILL
        resumed = all_states(experiment(ckpt_path="last", **folder))
        assert all(equal(a, b) for a, b in zip(resumed, undisturbed, strict=True))


def test_killed_in_the_middle_of_the_servers_training_it_resumes_to_the_same_bits(tmp_path):
    class Dies(torch.optim.Adam):
        count = 0

        def step(self, *args, **kwargs):
            is_counted = self.param_groups[0]["params"][0].shape == (4, 1, 3, 3)  # the student's, and two clients'
            Dies.count += is_counted
            if Dies.count == 60:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(*args, **kwargs)

    def dies():
        dlad(optimizer=partial(Dies, lr=0.01), default_root_dir=str(tmp_path / "killed"))

    assert in_a_child(dies) == -signal.SIGKILL
    resumed = all_states(dlad(default_root_dir=str(tmp_path / "killed"), ckpt_path="last"))
    whole = all_states(dlad(default_root_dir=str(tmp_path / "whole")))
    assert all(equal(a, b) for a, b in zip(resumed, whole, strict=True))


RECIPES = {
    "moe": """\
model:
  class_path: fedlit.methods.MixtureOfExperts
  init_args: {network: {class_path: nets.Net}, optimizer: {class_path: torch.optim.Adam}, epochs: 2}
""",
    "dlad": """\
model:
  class_path: fedlit.methods.DLAD
  init_args:
    network: {class_path: nets.Net}
    client_networks: {1: {class_path: fedlit.networks.MLP}}
    optimizer: {class_path: torch.optim.Adam}
    client_epochs: 1
    density_epochs: 1
    distil_epochs: 2
""",
}
DATA = """\
seed_everything: 3
data:
  class_path: fedlit.data.FederatedData
  init_args: {num_clients: 5, public: 0.5, opt_out: [2]}
trainer: {num_rounds: 2, accelerator: cpu}
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dlad", "moe"])
def test_a_programme_on_two_processes_ends_in_the_same_bits_as_on_one(method, tmp_path):
    ends = []
    for devices in ("1", "2"):
        (tmp_path / devices).mkdir()
        (tmp_path / devices / "programme.yaml").write_text(DATA + RECIPES[method])
        ends.append(finished(tmp_path / devices, "--config", "programme.yaml", "--trainer.devices", devices))
    assert same(*ends)
    assert ends[0]["collected"].keys() == ends[1]["collected"].keys()
    assert all(equal(state, ends[1]["collected"][k]) for k, state in ends[0]["collected"].items())
    texts = [(tmp_path / devices / "lightning_logs/version_0/metrics.csv").read_text() for devices in ("1", "2")]
    assert texts[0] == texts[1]
