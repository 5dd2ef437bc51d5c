"""Promise: where one of several processes is killed in a round, the others end in one line, and the run goes on.

The full form kills 20: `pytest -m slow -s tests/promises/test_process_kills.py`.
"""

import os
import random
import signal

import pytest
from forked import exit_codes, forked
from toys import SGD, SmallCNN, fitted, linear, same, seeded, states, toy_data

from fedlit.methods import FML

NUMBER = 3


def run(folder, moment=lambda: None, **options):
    method = seeded(FML, SmallCNN, linear, SGD)
    method.__class__ = type("FML", (FML,), {"on_train_batch_start": lambda self, *_: moment()})
    return fitted(method, toy_data(120, num_clients=6), default_root_dir=str(folder), **options)


def killed(folder, rank, batch):
    """Exit codes and words of three processes, one of which is killed before its n-th batch."""

    def work(own_rank):
        left = batch

        def moment():
            nonlocal left
            left -= 1
            if left == 0 and own_rank == rank:
                os.kill(os.getpid(), signal.SIGKILL)

        run(folder, moment, devices=NUMBER, ckpt_path="auto")

    codes = exit_codes(forked(work, folder, number=NUMBER))
    return codes, [(folder / f"rank_{other}.txt").read_text() for other in range(NUMBER) if other != rank]


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_process_ends_the_others_and_the_run_goes_on_to_the_same_bits(kills, tmp_path):
    whole = states(run(tmp_path / "whole"))
    draw = random.Random(kills)
    for number in range(kills):
        folder = tmp_path / f"killed_{number}"
        folder.mkdir()
        rank = draw.randrange(NUMBER)
        codes, said = killed(folder, rank, batch=draw.randint(1, 12))  # two clients of two or three batches in a round
        assert codes[rank] == -signal.SIGKILL
        assert [code for other, code in enumerate(codes) if other != rank] == [3, 3], said
        assert sum(f"rank {rank} of 3 has died" in words for words in said) >= 1, said
        assert same(states(run(folder, ckpt_path="auto")), whole)
