"""Print what every method differs by on the device from the CPU, in each precision, exact and fast.

python -m tests.device.table                    # all methods, about ten minutes of one core
python -m tests.device.table FedAvg FedDF       # these
"""

import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from every_method import METHODS

from device.cases import trial
from device.process import DeviceProcess, FailedOnDevice

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
MODES = {"exact": False, "fast": True}


def cell(process: DeviceProcess, method: str, precision: str, fast: bool) -> str:
    """The largest difference of a fit on the device, and of one with its rounds on CPU, device and CPU."""
    try:
        found = process.run(trial, method, precision, fast)
    except FailedOnDevice as error:
        return str(error).partition("\n--- printed")[0].strip().splitlines()[-1][:60]
    if not found["is_finite"]:
        return "not finite"
    return f"{_number(found['device'])}, {_number(found['resumed'])}"


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}"


def main() -> None:
    columns = list(product(PRECISIONS, MODES))
    print("| method |", " | ".join(f"{precision}, {mode}" for precision, mode in columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    process = DeviceProcess()
    for method in sys.argv[1:] or METHODS:
        cells = [cell(process, method, precision, MODES[mode]) for precision, mode in columns]
        print(f"| {method} |", " | ".join(cells), "|", flush=True)
    process.close()


if __name__ == "__main__":
    main()
