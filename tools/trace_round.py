"""How much code runs in one round: functions and modules of fedlit, and pairs of modules that call each other.

python tools/trace_round.py    # FML on toy data; the second round is traced, with evaluation, records and checkpoint
"""

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedlit
from fedlit import FederatedData, Federation
from fedlit.callbacks import FederationCallback
from fedlit.methods import FML

ROOT = str(Path(fedlit.__file__).parent)


class Trace(FederationCallback):
    """Notes who calls whom between the start of the second round and that of the third."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.calls: dict[str, set[str]] = defaultdict(set)

    def on_round_start(self, federation: Any, module: Any, round: int, clients: list[int]) -> None:
        sys.setprofile(self._note if round == 2 else None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT) or code.co_name.startswith("<"):
            return
        self.functions.add((code.co_filename, code.co_qualname))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            self.calls[caller.f_code.co_filename].add(code.co_filename)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def main() -> None:
    x = torch.rand(120, 1, 4, 4)
    y = torch.arange(120) % 3
    data = FederatedData(train_dataset=TensorDataset(x, y), test_dataset=TensorDataset(x, y), num_clients=3)
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(num_rounds=3, callbacks=[trace], default_root_dir=folder, enable_progress_bar=False)
        federation.fit(FML(network, network, torch.optim.SGD), data)
    pairs = {tuple(sorted((a, b))) for a, called in trace.calls.items() for b in called if a in trace.calls.get(b, ())}
    modules = {file for file, _ in trace.functions}
    print(f"{len(trace.functions)} functions in {len(modules)} modules; {len(pairs)} pairs of modules call both ways")
    for one, other in sorted(pairs):
        print(f"  {Path(one).relative_to(ROOT)} <-> {Path(other).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
