"""Stands for `fedlit fit` and `adapt` where only the study around it is tested: leaves the folder of a run, at once.

Of its options, `--config`, `--trainer.default_root_dir` and `--epochs` count. What the data set is called says what
becomes of the run.
"""

import shutil
import signal
import sys
import time
from pathlib import Path

import yaml
from runs_by_hand import write_adaptation, write_run

from fedlit.records.run_folder import newest_run


def fit(config_path: Path) -> None:
    config = yaml.safe_load(config_path.read_text())
    root = Path(sys.argv[sys.argv.index("--trainer.default_root_dir") + 1])
    with (root / "calls.txt").open("a") as calls:
        calls.write(f"{sys.argv[1]}\n")
    dataset = config["data"]["init_args"]["dataset"]
    if dataset == "bad":
        sys.exit("fedlit: error: a line that says why")
    if dataset == "stuck":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if dataset in ("slow", "stuck"):
        time.sleep(60)
    if dataset == "deleted":
        shutil.rmtree(root)
        sys.exit(4)
    if dataset == "full.npz":
        (root / "lightning_logs" / "version_0").mkdir(parents=True)
        sys.exit(4)
    number = len((root / "calls.txt").read_text().splitlines())
    model = config["model"]["init_args"]
    lr = model["optimizer"]["init_args"]["lr"]
    if lr > 1:
        sys.exit("fedlit: error: the loss is not finite")
    level = 0.9 - abs(lr - 0.1) - abs(model.get("mu", 0.1) - 0.1) / 10  # best with lr 0.1 and mu 0.1
    write_run(root / "lightning_logs" / f"version_{number}", [[level, level / 2]], seed=config["seed_everything"])


def adapt(epochs: int) -> None:
    root = Path(sys.argv[sys.argv.index("--trainer.default_root_dir") + 1])
    with (root / "calls.txt").open("a") as calls:
        calls.write("adapt\n")
    if epochs == 13:
        sys.exit("fedlit: error: nobody could join")
    write_adaptation(newest_run(root), [epoch / 100 for epoch in range(epochs + 1)])


if __name__ == "__main__":
    if sys.argv[-1] == "look":
        sys.exit(3)
    config = Path(sys.argv[sys.argv.index("--config") + 1])
    if sys.argv[1] == "adapt":
        adapt(int(sys.argv[sys.argv.index("--epochs") + 1]))
    else:
        fit(config)
