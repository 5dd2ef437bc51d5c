"""Time and memory per round as the number of clients grows: an MLP, 6 samples each, 10 clients a round.

usage: python benchmarks/many_clients.py DATA_FOLDER     (with mnist.npz; a process for each number of clients)
"""

import json
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

ROUNDS = 60


def one(root: str, num_clients: int) -> None:
    """Fit, and print seconds a round and peak memory."""
    import torch

    from fedlit import FedAvg, FederatedData, Federation
    from fedlit.networks import MLP
    from fedlit.partition import IID

    data = FederatedData("mnist", root, num_clients=num_clients, partition=IID(6), val_size=1)
    data.setup()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(
            num_rounds=ROUNDS,
            fraction_fit=10 / num_clients,
            eval_every_n_rounds=ROUNDS // 2,
            save_every_n_rounds=10,
            default_root_dir=folder,
            enable_progress_bar=False,
        )
        federation.fit(FedAvg(MLP, partial(torch.optim.SGD, lr=0.05)), data)
        lines = (Path(federation.log_dir) / "events.jsonl").read_text().splitlines()
    rounds = [event for event in map(json.loads, lines) if event["event"] == "round"]
    plain = sorted(event["seconds"] for event in rounds if event["round"] % (ROUNDS // 2))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {
        "clients": num_clients,
        "milliseconds a round": round(1000 * plain[len(plain) // 2], 1),
        "seconds of a round with evaluation of all": round(rounds[-1]["seconds"], 2),
        "MB before": round(before),
        "MB peak": round(peak),
    }
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        one(sys.argv[1], int(sys.argv[2]))
    else:
        for num_clients in (10, 100, 1000, 10_000):
            subprocess.run([sys.executable, __file__, sys.argv[1], str(num_clients)], check=True)
