"""What stays with clients is the same whether it rests in memory or on disk."""

from functools import partial

import pytest
import torch
from toys import SmallCNN, equal, fitted, toy_data

from fedlit import LocalOnly
from fedlit.engine.plan import ClientState
from fedlit.methods import FML

MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def memory(value: float, size: int = 100) -> ClientState:
    momenta = {"federate": {"w": {"momentum_buffer": torch.full((size,), -value), "step": 3}}}
    return ClientState({"w": torch.full((size,), value)}, momenta)


@pytest.mark.parametrize("method", [partial(FML, SmallCNN, SmallCNN), partial(LocalOnly, SmallCNN)])
def test_a_run_ends_in_the_same_bits_with_its_clients_on_disk(method, tmp_path):
    def run(budget, folder, **options):
        torch.manual_seed(7)
        data = toy_data(num_clients=4)
        return fitted(
            method(MOMENTUM), data, default_root_dir=str(tmp_path / folder), personal_memory=budget, **options
        )

    held, spilled = run(1.0, "held", num_rounds=3), run(0.0, "spilled", num_rounds=3)
    assert spilled.state.memories.store._folder is not None
    assert held.state.memories.store._folder is None
    assert all(equal(held.personal_states[k], spilled.personal_states[k]) for k in range(4))
    checkpoints = [f"{f.log_dir}/checkpoints/last.ckpt" for f in (held, spilled)]
    ends = [torch.load(path, weights_only=True) for path in checkpoints]
    assert all(equal(ends[0]["personal_states"][k], ends[1]["personal_states"][k]) for k in range(4))
    longer = run(1.0, "held", num_rounds=5, ckpt_path="last"), run(0.0, "spilled", num_rounds=5, ckpt_path="last")
    assert all(equal(longer[0].personal_states[k], longer[1].personal_states[k]) for k in range(4))
    assert not equal(longer[0].personal_states[0], held.personal_states[0])
