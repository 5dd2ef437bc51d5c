"""Wall time of a round with one process and with two: `python -m benchmarks.processes`, on two quiet cores."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

from benchmarks.workloads import WORKLOADS, quiet_federation

ROUNDS, TURNS = 4, 3
WORK = {
    "W1": WORKLOADS["W1"],
    "W3": WORKLOADS["W3"],
    "W3 with 6 clients": replace(WORKLOADS["W3"], num_clients=6, per_round=6),
}


def one(name: str, devices: int) -> None:
    """Fit, and print the seconds of each round but the first and the last, which is evaluated and saved."""
    from fedlit.callbacks import FederationCallback

    seconds: list[float] = []

    class Clock(FederationCallback):
        def on_round_start(self, federation, module, round, clients) -> None:
            self.start = time.perf_counter()

        def on_round_end(self, federation, module, round, rows) -> None:
            seconds.append(time.perf_counter() - self.start)

    work = WORK[name]
    with tempfile.TemporaryDirectory() as folder:
        options = {"local_epochs": work.epochs, "devices": devices, "callbacks": Clock()}
        federation = quiet_federation(ROUNDS, folder, **options)
        federation.fit(work.federated_module(), work.federated_data())
        if federation.is_global_zero:
            print(json.dumps(seconds[1:-1]), flush=True)


def seconds(name: str, devices: int) -> float:
    command = [sys.executable, "-m", "benchmarks.processes", name, str(devices)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return statistics.median(json.loads(output.splitlines()[-1]))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    if len(sys.argv) == 3:
        one(sys.argv[1], int(sys.argv[2]))
    else:
        for name in WORK:
            pairs = [(seconds(name, 1), seconds(name, 2)) for _ in range(TURNS)]
            ratios = sorted(a / b for a, b in pairs)
            print(
                f"{name:20} {statistics.median(ratios):.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                flush=True,
            )
