"""Real hosts, all of them this one: a SuperLink and two SuperNodes on loopback, with TLS and keys, killed or not."""

import hashlib
from importlib.util import find_spec

import pytest
import torch
from loopback import Loopback

from fedlit.cli.export_flower import main as export_flower
from fedlit.flower.recipe import experiment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs fedlit[flower]"),
]
# No batch of evaluation holds samples of two clients, as on their own hosts.
RECIPE = """\
seed_everything: 1
data:
  class_path: fedlit.data.FederatedData
  init_args: {num_clients: 2, batch_size: 50, eval_batch_size: 50}
model:
  class_path: fedlit.methods.METHOD
  init_args:
    network: {class_path: fedlit.networks.MLP}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.02, momentum: 0.9}}
trainer: {num_rounds: 3, accelerator: cpu, report: false, logger: false}
"""


def hashed(folder, own):
    """Of the last checkpoint's global state, of what clients keep, and of metrics.csv."""
    digest = hashlib.sha256()
    [run] = (folder / "lightning_logs").iterdir()
    content = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    states = {"server": content["global_state"], **(own or content["personal_states"])}
    for owner, state in states.items():
        for name, tensor in sorted(state.items()):
            digest.update(f"{owner} {name}".encode() + tensor.contiguous().numpy().tobytes())
    digest.update((run / "metrics.csv").read_bytes())
    return digest.hexdigest()


def kept(loopback):
    """What stays with each client, in files of its host."""
    found = {}
    for k in range(2):
        last = sorted((loopback.folder / f"state_{k}").rglob("round_*.pt"))[-1]
        found[k] = torch.load(last, weights_only=True)["memory"]["state"]
    return found


@pytest.fixture
def make(tmp_path):
    made = []

    def one(method):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(RECIPE.replace("METHOD", method))
        export_flower([str(recipe), str(tmp_path / "the-app")])
        simulated = experiment(recipe, [f"--trainer.default_root_dir={tmp_path}/here"])
        simulated.federation.fit(simulated.model, simulated.data)
        made.append(Loopback(tmp_path / "there", 2))
        return made[0], hashed(tmp_path / "here", None)

    yield one
    for loopback in made:
        loopback.close()


def is_at(loopback, round):
    return f'"event": "round", "round": {round}' in loopback.events()


def finished(loopback):
    """The hash of what server and clients come to."""
    loopback.wait_until(lambda: '"event": "end"' in loopback.events())
    assert "left_out" not in loopback.events()
    return hashed(loopback.folder / "server", kept(loopback))


def started(loopback):
    loopback.start_link()
    for k in range(2):
        loopback.start_node(k)
    loopback.run(loopback.folder.parent / "the-app")


@pytest.mark.parametrize("method", ["FML", "MixtureOfExperts"])
def test_real_hosts_come_to_the_bits_of_a_simulation(method, make):
    loopback, expected = make(method)
    started(loopback)
    assert finished(loopback) == expected


def test_a_node_that_is_killed_in_round_2_comes_back_to_the_same_bits(make):
    loopback, expected = make("FML")
    started(loopback)
    loopback.wait_until(lambda: is_at(loopback, 1))
    loopback.kill("node_0")
    loopback.start_node(0)
    assert finished(loopback) == expected


def test_a_link_that_is_killed_in_round_2_goes_on_to_the_same_bits(make):
    loopback, expected = make("FML")
    started(loopback)
    loopback.wait_until(lambda: is_at(loopback, 1))
    loopback.close()
    started(loopback)
    assert finished(loopback) == expected
