"""Folders of runs and studies of them, written by hand: nothing is trained."""

import json
from collections.abc import Callable
from pathlib import Path

import yaml

from fedlit.studies.outcome import Outcome
from fedlit.studies.results import Results
from fedlit.studies.study import SeedPair, build_study

ENVIRONMENT = {"fedlit": "9.9", "torch": "8.8", "lightning": "7.7", "python": "3.66", "cpu": "Some CPU", "threads": 1}
Values = dict[int, dict[int, float]]  # by round, then by client: accuracy


def write_run(
    folder: Path,
    values: Values,
    method: str = "FedAvg",
    bytes_up: int = 100,
    left_out: tuple[tuple[int, int, str], ...] = (),
    data: dict | None = None,
) -> Path:
    """What a run leaves: client 0 holds classes 0 and 1, client 1 class 1 ...; every client sends and gets as much."""
    folder.mkdir(parents=True)
    metrics = ["round,stage,client,model,data,metric,value"]
    ledger = ["round,client,direction,kind,bytes"]
    events = [{"event": "fit", "round": 0, "rounds": len(values), "processes": 1, "fast": False, **ENVIRONMENT}]
    for round, by_client in values.items():
        for client, value in by_client.items():
            metrics.append(f"{round},federate,{client},global,own,acc,{value:.9g}")
            metrics.append(f"{round},federate,{client},global,own,loss,{1 - value:.9g}")
            if bytes_up:
                ledger.append(f"{round},{client},down,model,{bytes_up}")
                ledger.append(f"{round},{client},up,model,{bytes_up}")
        for number, client, reason in left_out:
            if number == round:
                events.append({"event": "left_out", "round": round, "client": client, "reason": reason, "details": ""})
        events.append({"event": "round", "round": round, "stage": "federate", "clients": [*by_client], "seconds": 1.5})
    events.append({"event": "end", "round": max(values), "stopped_by": None})
    partition = ["client,split,index,label,shared", "0,train,0,0,1", "0,train,1,1,1", "0,val_train,2,2,0"]
    for client in range(1, len(values[min(values)])):
        partition += [f"{client},train,{10 * client + i},{client % 3},1" for i in range(client)]
    config = {
        "seed_everything": 1,
        "model": {"class_path": f"fedlit.methods.{method}", "init_args": {"weighting": "examples"}},
        "data": {"class_path": "fedlit.data.FederatedData", "init_args": {"num_clients": 3, **(data or {})}},
        "trainer": {"num_rounds": len(values)},
    }
    (folder / "metrics.csv").write_text("\n".join(metrics) + "\n")
    (folder / "ledger.csv").write_text("\n".join(ledger) + "\n")
    (folder / "partition.csv").write_text("\n".join(partition) + "\n")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [json.dumps({"time": "2026-01-01T00:00:00.000+00:00", **event}) for event in events]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def study_of(tmp_path: Path, content: dict, run_of: Callable[[str, str, SeedPair], dict | None]) -> Results:
    """A study whose runs are written by `run_of(row, column, seeds)`; None is a run that is missing."""
    study = build_study({"recipe": "toy.yaml", **content})
    outcomes = {}
    for number, cell in enumerate(study.cells):
        for seeds in study.seeds:
            given = run_of(cell.row, cell.column, seeds)
            if given is not None:
                outcomes[cell, seeds] = Outcome(write_run(tmp_path / f"run_{number}_{seeds.name}", **given))
    return Results(study, outcomes, {})


def steady(*last: float, rounds: int = 2) -> Values:
    """Clients that come half the way in the first round, and have their last value in the last."""
    return {round: {k: value * round / rounds for k, value in enumerate(last)} for round in range(1, rounds + 1)}
