"""Folders of runs as `fedlit fit` leaves them, written by hand: no training is needed to read them."""

import json
from pathlib import Path

import yaml


def write_run(
    folder: Path,
    curve: list[list[float]],
    model: str = "personal",
    method: str = "fedlit.FedAvg",
    seed: int = 1,
    seconds: float = 2.0,
    bytes_up: int = 100,
    options: dict | None = None,
) -> Path:
    """A run whose clients have the accuracies of `curve`, rounds x clients, on their own samples."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = ["round,stage,client,model,data,metric,value"]
    ledger = ["round,client,direction,kind,bytes"]
    events = [{"event": "fit", "round": 0}]
    for number, values in enumerate(curve, start=1):
        for client, value in enumerate(values):
            metrics.append(f"{number},train,{client},{model},own,acc,{value}")
            ledger.append(f"{number},{client},up,state,{bytes_up}")
        pooled = sum(values) / len(values) - 0.1
        metrics.append(f"{number},train,all,global,pooled,acc,{pooled}")
        events.append({"event": "round", "round": number, "stage": "train", "clients": [0], "seconds": seconds})
    events.append({"event": "end", "round": len(curve), "stopped_by": None})
    (folder / "metrics.csv").write_text("\n".join(metrics) + "\n")
    (folder / "ledger.csv").write_text("\n".join(ledger) + "\n")
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "partition.csv").write_text("client,split,index,label,shared\n0,train,0,0,1\n1,train,1,1,1\n")
    config = {
        "seed_everything": seed,
        "trainer": {"num_rounds": len(curve)},
        "model": {"class_path": method, "init_args": options or {}},
        "data": {"class_path": "fedlit.data.FederatedData", "init_args": {"partition_seed": seed, "num_clients": 2}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def write_adaptation(folder: Path, curve: list[float], client: int = 2) -> None:
    """adapt.csv of one newcomer with the accuracies of `curve`, by epoch from 0; from scratch it has half of them."""
    rows = ["round,stage,client,model,data,metric,value"]
    for model, share in (("personal", 1.0), ("scratch", 0.5)):
        for epoch, value in enumerate(curve):
            rows.append(f"{epoch},adapt,{client},{model},unseen,acc,{share * value}")
        rows.append(f"{len(curve) - 1},adapt,{client},{model},unseen,epochs_to_converge,{len(curve) - 1}")
    (folder / "adapt.csv").write_text("\n".join(rows) + "\n")
