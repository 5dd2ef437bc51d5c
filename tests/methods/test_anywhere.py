"""Every method: with a network that is not ours, with opted-out samples, on two processes, in fast mode."""

import sys
from pathlib import Path

import pytest
import torch
from every_method import METHODS, data_for
from torch import nn
from toys import equal, fitted, rows, same, seeded, states

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from forked import exit_codes, forked

SWIFT = ("FML", "SCAFFOLD", "FedProto", "FedPer", "APFL", "MOON", "MixtureOfExperts", "DLAD")  # what travels differs
everyone = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SWIFT else pytest.mark.slow) for name in METHODS]
)


def experiment(name, data=None, **options):
    """Two rounds that nobody is left out of."""
    given = {"num_rounds": 2, "min_clients": 3, **options}
    return fitted(seeded(METHODS[name]), data_for(name) if data is None else data, **given)


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


@everyone
def test_a_users_own_transformer_is_trained(name):
    if name == "FedFusion":
        pytest.skip("it needs feature maps")
    build = METHODS[name]
    method = build.func(Rows, *build.args[1:], **build.keywords)
    federation = fitted(method, data_for(name), num_rounds=2, min_clients=3)
    assert max(float(row["value"]) for row in rows(federation) if row["metric"] == "acc") > 1 / 3


def spoiled(name, how):
    """Data whose opted-out samples, or all of them, are something else."""
    data = data_for(name, opt_out_samples=0.4)
    data.setup()
    for k, (train, shared) in enumerate(zip(data.assignment.train, data.assignment.opted_in, strict=True)):
        hidden = train if how == "shared as well" else train[~shared]
        if how in ("values", "shared as well"):
            data.images.train_x[hidden] = 1000.0
        if how == "labels":
            data.images.train_y[hidden] = (data.images.train_y[hidden] + 1) % 3
        if how == "number":  # each client loses all but one of its opted-out samples
            keep = shared.copy()
            keep[(~shared).argmax()] = True
            data.assignment.train[k], data.assignment.opted_in[k] = train[keep], shared[keep]
    return data


def sent(name, how):
    """What the server has come to hold, and what was sent."""
    federation = experiment(name, spoiled(name, how))
    return federation.global_state, rows(federation, "ledger.csv")


@everyone
def test_no_upload_depends_on_what_is_opted_out(name):
    plain, ledger = sent(name, None)
    for how in ("values", "labels", "number"):
        state, lines = sent(name, how)
        assert equal(state, plain)
        assert lines == ledger


def test_an_upload_depends_on_samples_that_are_shared():
    assert not equal(sent("FedPer", "shared as well")[0], sent("FedPer", None)[0])


@pytest.mark.slow
def test_two_processes_end_in_the_same_bits_as_one(tmp_path):
    """All methods in one pair of processes: it takes a moment to make one."""

    def work(rank):
        for name in METHODS:
            found = states(experiment(name, devices=2, default_root_dir=str(tmp_path / name)))
            torch.save(found, f"{name}_{rank}.pt")

    assert exit_codes(forked(work, tmp_path)) == [0, 0], (tmp_path / "rank_0.txt").read_text()
    for name in METHODS:
        one = states(experiment(name))
        assert all(same(torch.load(f"{name}_{rank}.pt"), one) for rank in range(2)), name


@everyone
def test_fast_mode_ends_near_the_exact_one(name):
    exact, fast = (states(experiment(name, fast=fast)) for fast in (False, True))
    torch.testing.assert_close(fast, exact, rtol=1e-3, atol=1e-3)
