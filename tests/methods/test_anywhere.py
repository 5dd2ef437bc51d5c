"""Methods that personalise: with networks that are not ours, on two processes, killed, in fast mode, with opt-out."""

import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from by_hand import seeded, uneven
from test_laws import KillAt, in_a_child, same, states
from torch import nn
from toys import equal, fitted, rows, toy_data

from fedlit.methods import APFL, MOON, Ditto, FedBN, FedPer, FedRep, LGFedAvg, PFedMe

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from forked import exit_codes, forked

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.5)


class Rows(nn.Module):
    """A user's own transformer: the eight rows of an image are its tokens, read out by a class token of its own."""

    def __init__(self):
        super().__init__()
        self.classify = nn.Parameter(torch.zeros(1, 1, 8))
        self.layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        tokens = torch.cat([self.classify.expand(x.shape[0], -1, -1), x.squeeze(1)], dim=1)
        return self.out(self.norm(self.layer(tokens)[:, 0]))


class Residual(nn.Module):
    """A user's own network of convolutions with BatchNorm, whose last layer is not the last that is written."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.output = nn.Linear(4, 3)
        self.block = nn.Conv2d(4, 4, 3, padding=1, bias=False)

    def forward(self, x):
        x = self.norms[0](self.stem(x)).relu()
        x = x + self.norms[1](self.block(x)).relu()
        return self.output(x.mean(dim=(2, 3)))


METHODS = {
    "FedBN": FedBN,
    "FedPer": FedPer,
    "FedRep": partial(FedRep, head_epochs=1, body_epochs=1),
    "LGFedAvg": LGFedAvg,
    "LGFedAvg, networks that differ": partial(
        LGFedAvg, client_networks={1: lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 3))}
    ),
    "Ditto": Ditto,
    "APFL": APFL,
    "PFedMe": partial(PFedMe, inner_steps=2),
    "MOON": partial(MOON, projection=5),
}
SWIFT = ("FedPer", "LGFedAvg, networks that differ", "APFL", "PFedMe", "MOON")  # one of each kind of state
everyone = pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, id=name, marks=() if name in SWIFT else pytest.mark.slow)
        for name, method in METHODS.items()
    ],
)


def experiment(method, network=Residual, data=None, **options):
    """Two rounds that nobody is left out of."""
    given = {"num_rounds": 2, "min_clients": 3, **options}
    return fitted(seeded(method, network, SGD), uneven() if data is None else data, **given)


@pytest.mark.parametrize("name", [name for name in METHODS if "differ" not in name])  # whose heads are narrower
def test_a_users_own_transformer_is_trained(name):
    federation = experiment(METHODS[name], Rows)
    assert max(float(row["value"]) for row in rows(federation) if row["metric"] == "acc") > 1 / 3


@everyone
def test_a_run_killed_after_a_round_resumes_to_the_same_bits(method, tmp_path):
    folder = {"default_root_dir": str(tmp_path)}
    whole = states(experiment(method))
    assert in_a_child(lambda: experiment(method, callbacks=KillAt(1, "end"), **folder)) == -signal.SIGKILL
    assert same(states(experiment(method, ckpt_path="last", **folder)), whole)


@pytest.mark.slow
def test_two_processes_end_in_the_same_bits_as_one(tmp_path):
    """All methods in one pair of processes: it takes a moment to make one."""

    def work(rank):
        for name, method in METHODS.items():
            torch.save(
                states(experiment(method, devices=2, default_root_dir=str(tmp_path / name))), f"{name}_{rank}.pt"
            )

    assert exit_codes(forked(work, tmp_path)) == [0, 0], (tmp_path / "rank_0.txt").read_text()
    for name, method in METHODS.items():
        one = states(experiment(method))
        for rank in range(2):
            assert same(torch.load(f"{name}_{rank}.pt"), one), name


def with_opted_out(value, shared=False):
    """Two fifths of everybody's samples are opted out; these, or the shared ones, are all of this value."""
    data = toy_data(opt_out_samples=0.4)
    data.setup()
    for held, opted_in in zip(data.assignment.train, data.assignment.opted_in, strict=True):
        data.images.train_x[held[opted_in == shared]] = value
    return data


@everyone
def test_no_upload_depends_on_a_sample_that_is_not_shared(method):
    assert equal(*(experiment(method, data=with_opted_out(value)).global_state for value in (0.0, 1e6)))


def test_an_upload_depends_on_samples_that_are_shared():
    assert not equal(
        *(experiment(FedPer, data=with_opted_out(value, shared=True)).global_state for value in (0.0, 1.0))
    )


@everyone
def test_fast_mode_ends_near_the_exact_one(method):
    exact, fast = (states(experiment(method, fast=fast)) for fast in (False, True))
    for one, other in [(exact[0], fast[0]), *((exact[1][k], fast[1][k]) for k in exact[1])]:
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", [FedPer, Ditto, MOON])
def test_an_optimisers_state_goes_on_for_what_stays_and_is_trained(method):
    federation = experiment(method)
    names = {"FedPer": {"output"}, "Ditto": {"personal"}, "MOON": set()}[method.__name__]
    kept = federation.state.memories[0].optimizer.get("federate", {})
    assert {name.removeprefix("network.").split(".")[0] for name in kept} == names
