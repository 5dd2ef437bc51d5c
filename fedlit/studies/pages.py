"""The pages of a study and of a run, and all that a study writes: each page is one file that opens without a network.

Templates are those in `assets`; jinja2 escapes every text of a user, and every number is from the records of the runs.
"""

import fcntl
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader

from fedlit.records.files import replacing, write_whole
from fedlit.records.run_folder import LOCK, open_lock
from fedlit.studies.charts import FIGURES, draw_all, save
from fedlit.studies.config_diff import differences, warnings
from fedlit.studies.measure import Measure
from fedlit.studies.outcome import Outcome
from fedlit.studies.results import Results
from fedlit.studies.sweep import Selection
from fedlit.studies.tables import (
    Bold,
    Table,
    clients_table,
    cost_table,
    difference_table,
    latex_table,
    main_table,
    markdown_tables,
    size,
    target_table,
)

REPORT = "report.html"
NEEDED = ("metrics.csv", "ledger.csv", "events.jsonl")  # of a run with a page
ENVIRONMENT = ("fedlit", "torch", "lightning", "python", "cpu", "threads", "processes", "fast")
KINDS = ("png", "pdf")
PICTURES = {"curves": "Curves", "epochs": "Local epochs", "partition": "Data of the clients", "confusion": "Confusion"}
MOST_EVENTS = 200


def render(template: str, **content: Any) -> str:
    """A page from a template."""
    loader = PackageLoader("fedlit.studies", "assets")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests["bold"] = lambda text: isinstance(text, Bold)
    return environment.get_template(template).render(**content)


def picture(path: Path, title: str) -> dict[str, str]:
    """A PNG as a page holds it."""
    return {"title": title, "source": f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}"}


# --- of a study


@contextmanager
def study_lock(output: Path) -> Iterator[None]:
    """Wait until no other call gathers and writes this study: the last to write has then seen the most runs."""
    output.mkdir(parents=True, exist_ok=True)
    with open_lock(output / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_all(results: Results, output: Path, command: str, selection: Selection | None = None) -> None:
    """All that is made of a study; to be called within `study_lock`, in which the runs were gathered."""
    settings = None if selection is None else selection.table
    for name, frame in (("runs.csv", results.runs), ("summary.csv", results.summary)):
        write_whole(output / name, frame.to_csv(index=False))
    write_whole(output / "table.md", markdown_tables(results, settings))
    write_whole(output / "table.tex", latex_table(results))
    from matplotlib import rc_context

    pictures = []
    with rc_context({"text.parse_math": False}):  # what stands between two dollars is no formula
        drawn = dict(draw_all(results))
        for name, figure in drawn.items():
            for kind in KINDS:
                with replacing(output / f"{name}.{kind}") as temporary:
                    save(figure, temporary, kind)
            pictures.append(picture(output / f"{name}.png", FIGURES[name]))
    for name in FIGURES.keys() - drawn.keys():  # of an earlier call
        for kind in KINDS:
            (output / f"{name}.{kind}").unlink(missing_ok=True)
    write_whole(output / REPORT, study_page(results, pictures, command, selection))


def study_page(
    results: Results, pictures: list[dict[str, str]], command: str, selection: Selection | None = None
) -> str:
    """The page of a study, as HTML."""
    study = results.study
    runs = results.runs
    whys = {(cell.row, cell.column, *pair): why for (cell, pair), why in results.failures.items()}
    places = runs[["row", "column", "training_seed", "partition_seed"]].itertuples(index=False, name=None)
    shown = runs[["row", "column"]].assign(seeds=runs["training_seed"].astype(str), status=runs["status"])
    shown["seeds"] += " and " + runs["partition_seed"].astype(str)
    missing = shown.assign(why=[whys.get(place, "") for place in places])[runs["status"] != "done"]
    values = ["" if pd.isna(value) else f"{value:.6g}" for value in runs["value"]]
    made_with: Counter[tuple[str, ...]] = Counter()
    for outcome in results.outcomes.values():
        made_with[tuple(str(outcome.environment.get(name, "not recorded")) for name in ENVIRONMENT)] += 1
    configurations = [(between, differences(results, between)) for between in ("row", "column")]
    tables = (main_table, difference_table, clients_table, cost_table, target_table)
    return render(
        "study.html.j2",
        title=study.title,
        lead=[study.source, study.note],
        study=study,
        done=len(results.outcomes),
        warnings=[*warnings(results), *(() if selection is None else selection.edges)],
        tables=[table for table in (make(results) for make in tables) if table is not None],
        settings=None if selection is None else selection.table,
        missing=missing,
        runs=shown.assign(value=values, folder=runs["folder"]),
        pictures=pictures,
        left_out=_left_out(results),
        configurations=[(between, frame) for between, frame in configurations if not frame.empty],
        command=command,
        environment=ENVIRONMENT,
        made_with=[(f"{number} runs", *values) for values, number in made_with.items()],
    )


def _left_out(results: Results) -> list[tuple[str, ...]]:
    """Who was left out, and why: a line for each client and reason of a run, with the rounds."""
    rounds = defaultdict(list)
    for cell in results.study.cells:
        for seeds, outcome in results.outcomes_of(cell):
            for event in outcome.left_out:
                name = seeds.name.replace("_", " ")
                rounds[str(cell), name, str(event["client"]), str(event["reason"])].append(str(event["round"]))
    return [(*key, ", ".join(numbers)) for key, numbers in rounds.items()]


# --- of a run


def write_run_page(folder: Path, path: Path | None = None) -> Path:
    """Write the page of a run, by default into its folder; returns its path."""
    path = path or folder / REPORT
    write_whole(path, run_page(Outcome(folder)))
    return path


def run_page(outcome: Outcome) -> str:
    """The page of a run, as HTML."""
    config, folder = outcome.config, outcome.folder
    method = str(config.get("model", {}).get("class_path", "")).rpartition(".")[2]
    happened = [event for event in outcome.events if event["event"] != "round"]
    events = [(str(event.get("time", "")), event["event"], _details(event)) for event in happened[:MOST_EVENTS]]
    return render(
        "run.html.j2",
        title=method or folder.name,
        lead=[str(folder), _describe_progress(outcome)],
        tables=[table for table in (scores_table(outcome), sent_table(outcome)) if table is not None],
        pictures=[
            picture(folder / f"{name}.png", title)
            for name, title in PICTURES.items()
            if (folder / f"{name}.png").is_file()
        ],
        half_lines=outcome.half_lines,
        events=events,
        more_events=len(happened) - len(events),
        config=yaml.safe_dump(config, sort_keys=False, allow_unicode=True) if config else "",
        environment=[pair for pair in outcome.environment.items() if pair[0] not in ("event", "round")],
    )


def scores_table(outcome: Outcome) -> Table | None:
    """The last value of every metric over clients, and the best mean with its round; what the task measures first."""
    rows: dict[str, dict[str, str]] = {}
    kinds = list(outcome.directions)
    by_kind = sorted(outcome.keys(), key=lambda key: [*kinds, key.rpartition("/")[0]].index(key.rpartition("/")[0]))
    for key in by_kind:
        measure = Measure(key).for_run(outcome.directions)
        values = outcome.by_client(measure)
        mean = values.mean(axis=1)
        last = {"last mean": mean.iloc[-1], "least": values.iloc[-1].min(), "most": values.iloc[-1].max()}
        rows[key] = {name: f"{value:.4f}" for name, value in last.items()} | {"best mean": "", "its round": ""}
        if mean.notna().any():  # else it was never finite
            best = mean.idxmax() if measure.rises else mean.idxmin()
            rows[key] |= {"best mean": f"{mean[best]:.4f}", "its round": str(best)}
    note = "Mean, least and most over clients in the last round that was measured."
    return Table("Scores", pd.DataFrame.from_dict(rows, orient="index"), note) if rows else None


def sent_table(outcome: Outcome) -> Table | None:
    """Bytes up and down, by what they were, and seconds of the rounds."""
    kinds = outcome.ledger.groupby(["direction", "kind"])["bytes"].agg(["sum", "count"])
    rows = {}
    for (direction, kind), line in kinds.iterrows():
        rows[f"{direction}, {kind}"] = {"bytes": size(line["sum"]), "times": str(line["count"])}
    return Table("Communication", pd.DataFrame.from_dict(rows, orient="index")) if rows else None


def _describe_progress(outcome: Outcome) -> str:
    """How far the run has come."""
    done = 0 if outcome.rounds.empty else int(outcome.rounds.index[-1])
    planned = outcome.environment.get("rounds")
    text = f"{done} of {planned} rounds are done" if planned else f"{done} rounds are done"
    text += f", in {outcome.total_seconds:.1f} s; {size(outcome.total_bytes)} were sent by all clients, up and down."
    ends = [event for event in outcome.events if event["event"] == "end"]
    if ends and ends[-1].get("stopped_by") is not None:
        text += f" Stopped by signal {ends[-1]['stopped_by']}."
    return text


def _details(event: Mapping[str, Any]) -> str:
    """What an event says; a start's environment stands elsewhere."""
    shown = {name: value for name, value in event.items() if name not in ("time", "event") and value not in (None, "")}
    if event["event"] == "fit":
        shown = {name: value for name, value in shown.items() if name in ("round", "rounds", "processes", "fast")}
    return ", ".join(f"{name}: {value}" for name, value in shown.items())
