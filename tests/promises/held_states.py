"""All that a federation holds, to compare two of them bit by bit."""

import torch
from toys import equal


def states(federation):
    """What server and clients hold, by owner: values and momenta."""
    state = federation.state
    held = {"server": federation.global_state, **federation.personal_states}
    held |= {("collected", k): collected for k, collected in state.collected.items()}
    held |= {("upload", k): state.uploads[k] for k in state.uploads}
    optimizers = {"server": state.server_memory.optimizer, "server_optimizer": state.server_momenta}
    optimizers |= {k: memory.optimizer for k, memory in state.memories.items()}
    for owner, by_stage in optimizers.items():
        for stage, momenta in by_stage.items():
            for name, values in momenta.items():
                held[owner, stage, name] = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
    return held


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(equal(a[owner], b[owner]) for owner in a)
