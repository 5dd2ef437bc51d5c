"""What a study's tables say, and the same for a terminal, as Markdown and as LaTeX with booktabs.

The first table has a number for each cell, the paper's beside it. `Bold` is what stands in bold: a cell that is ahead
of every other of its column by a paired interval that excludes 0.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from shutil import get_terminal_size

import pandas as pd

from fedlit.records.rows import CONVERGENCE
from fedlit.studies.config_diff import warnings
from fedlit.studies.measure import TO_TARGET, Measure
from fedlit.studies.results import Estimate, Results, estimate
from fedlit.studies.study import Cell

NONE = "–"
OURS = "ours"  # the column of a study that has no columns
PAPER = "paper"
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
OF_CLIENTS = {"worst_client": "worst client", "worst_tenth": "worst tenth", "spread": "spread (sd)"}
MOST = 40  # characters of a row's name on a terminal
WIDEST = 66  # characters that surely fit beside each other on a page of LaTeX's class article


class Bold(str):
    """A cell in bold: the best of its column."""


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        title: What it shows.
        frame: Text, some of it `Bold`; rows by name. Columns have two levels where the paper's numbers stand beside
            ours.
        note: What a reader must know.
    """

    title: str
    frame: pd.DataFrame
    note: str = ""

    @property
    def head(self) -> list[str]:
        """Names of the columns; the paper's numbers stand right of ours."""
        if self.frame.columns.nlevels == 1:
            return list(self.frame.columns)
        return [kind if kind == PAPER else column for column, kind in self.frame.columns]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Every row with its name first."""
        return list(self.frame.itertuples(name=None))


# --- numbers as text


def short(text: str, most: int) -> str:
    """A name that fits.

    Example:
        >>> short("FedAvg with momentum", 10)
        'FedAvg wi…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def size(number: float) -> str:
    """Bytes with their unit; a kB has 1,000.

    Example:
        >>> size(7108160), size(512), size(0)
        ('7.11 MB', '512 B', '0 B')
    """
    factor, unit = unit_of(number)
    return f"{number:.0f} B" if factor == 1 else f"{number / factor:.2f} {unit}"


def unit_of(number: float) -> tuple[float, str]:
    """The unit for a number of bytes, and its factor."""
    return next((pair for pair in UNITS if number >= pair[0]), UNITS[-1])


def plus_minus(mean: float, sd: float, measure: Measure) -> str:
    """A mean with its standard deviation; without one where there is a single run.

    Example:
        >>> plus_minus(0.87654, 0.0123, Measure()), plus_minus(7e6, 1e5, Measure(at="bytes_to_target", target=0.9))
        ('87.65 ± 1.23', '7.00 ± 0.10 MB')
        >>> plus_minus(8.9, 0.5477, Measure("epochs_to_converge/personal_on_unseen", percent=False))
        '8.9 ± 0.5'
    """
    factor, decimals, unit = _scale(mean, measure)
    text = f"{mean * factor:.{decimals}f}"
    if not isnan(sd):
        text += f" ± {sd * factor:.{decimals}f}"
    return text + unit


def describe_difference(found: Estimate, measure: Measure) -> str:
    """A difference with its interval and p.

    Example:
        >>> describe_difference(Estimate(3, 0.031, 0.01, 0.012, 0.05, 0.0123), Measure())
        '+3.10 [+1.20, +5.00], p = 0.012'
    """
    factor, decimals, unit = _scale(found.mean, measure)
    mean, low, high = (f"{value * factor:+.{decimals}f}" for value in (found.mean, found.low, found.high))
    if isnan(found.low):
        return f"{mean}{unit}"
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    return f"{mean} [{low}, {high}]{unit}, {p}"


def measured(cells: Sequence[Cell]) -> str:
    """What the numbers of a table are: once, if it is the same everywhere.

    Example:
        >>> cells = [Cell("FML", "", "", (), Measure()), Cell("MoE", "", "", (), Measure(at="best"))]
        >>> measured(cells)
        'Accuracy on own data (%), last round (FML); Accuracy on own data (%), best round (MoE)'
    """
    owners: dict[str, list[Cell]] = {}
    for cell in cells:
        owners.setdefault(str(cell.measure), []).append(cell)
    if len(owners) == 1:
        return next(iter(owners))
    is_by_row = len({(cell.row, str(cell.measure)) for cell in cells}) == len({cell.row for cell in cells})
    names = {
        measure: dict.fromkeys(c.row if is_by_row else c.column for c in owned) for measure, owned in owners.items()
    }
    return "; ".join(f"{measure} ({', '.join(its)})" for measure, its in names.items())


def _scale(mean: float, measure: Measure) -> tuple[float, int, str]:
    """Factor, decimals (about four significant digits) and unit of a measured number."""
    if measure.at == "bytes_to_target":
        factor, unit = unit_of(abs(mean))
        return 1 / factor, 0 if unit == "B" else 2, f" {unit}"
    if measure.is_to_target:
        return 1.0, 1, " s" if measure.at == "seconds_to_target" else ""
    if measure.percent:
        return 100.0, 2, ""
    if measure.metric.startswith(f"{CONVERGENCE}/"):  # a count
        return 1.0, 1, ""
    return 1.0, 4 if abs(mean) < 10 else 2 if abs(mean) < 1000 else 0, ""


# --- the tables


def main_table(results: Results) -> Table:
    """Mean and standard deviation of every cell, the paper's number beside it."""
    study = results.study
    columns: dict[tuple[str, str], list[str]] = {}
    for column in study.columns:
        cells = [study.cell(row, column) for row in study.rows]
        columns[column or OURS, OURS] = [_entry(results, cell) for cell in cells]
        if any(cell is not None and cell.paper is not None for cell in cells):
            papers = [None if cell is None else cell.paper for cell in cells]
            columns[column or OURS, PAPER] = [NONE if paper is None else f"{paper:g}" for paper in papers]
    frame = pd.DataFrame(columns, index=list(study.rows), dtype=object)
    if len(columns) == len(study.columns):
        frame.columns = frame.columns.droplevel(1)
    return Table(measured(study.cells), frame, main_note(results))


def main_note(results: Results) -> str:
    """How the first table is read."""
    study = results.study
    seeds = len(study.seeds)
    if seeds == 1:
        return "One run each: without more seeds there is no interval, and none is marked as best."
    note = (
        f"Mean ± standard deviation over n = {seeds} pairs of seeds. Bold: ahead of every other row of the column by "
        "a paired 95 % interval that excludes 0."
    )
    if any(runs < seeds for runs in results.summary["done"]):
        note += f" (k/{seeds}): only k of {seeds} runs are done."
    if any(cell.measure.is_to_target for cell in study.cells):
        note += " (k reached): mean over the k runs that reached the target."
    return note


def difference_table(results: Results) -> Table | None:
    """The difference of every row to the baseline; None if there is nothing to compare."""
    study = results.study
    others = [row for row in study.rows if row != study.baseline]
    if not others:
        return None
    columns = {}
    for column in study.columns:
        columns[column or "difference"] = [_difference(results, study.cell(row, column)) for row in others]
    note = (
        "Mean of the differences within pairs of seeds [95 % interval of the t-distribution] and p of the paired "
        "t-test of each comparison by itself: nothing is corrected for there being several."
    )
    return Table(f"Paired difference to {study.baseline}", pd.DataFrame(columns, index=others, dtype=object), note)


def clients_table(results: Results) -> Table | None:
    """Worst client, worst tenth, spread, and who does better than alone; None if nothing is measured of clients."""
    rows = {}
    has_alone = results.summary["better_than_alone"].notna().any()
    for cell, line in _done(results):
        if isnan(line["worst_client"]):
            continue
        measure = Measure(cell.measure.metric, percent=cell.measure.percent)  # of the metric itself
        row = {shown: plus_minus(line[key], nan, measure) for key, shown in OF_CLIENTS.items()}
        if has_alone:
            share = line["better_than_alone"]
            row["better than alone"] = NONE if isnan(share) else f"{100 * share:.0f} % of clients"
        rows[str(cell)] = row
    if not rows:
        return None
    note = "Over clients within a run, then the mean over runs; the worst tenth is at least one client."
    if has_alone:
        note += " Better than alone: the share of clients who do better than under LocalOnly with the same seeds."
    return Table("Clients", pd.DataFrame.from_dict(rows, orient="index"), note)


def cost_table(results: Results) -> Table:
    """Rounds, bytes and seconds of a run, as means."""
    rows = {
        str(cell): {
            "rounds": f"{line['rounds']:.4g}",
            "bytes": size(line["bytes"]),
            "seconds": f"{line['seconds']:.1f}",
        }
        for cell, line in _done(results)
    }
    note = "Means over runs; bytes are those of all clients, up and down; seconds are of the rounds."
    return Table("Cost of a run", pd.DataFrame.from_dict(rows, orient="index"), note)


def target_table(results: Results) -> Table | None:
    """Rounds, bytes and seconds to the target, and how many runs reached it; None without a target."""
    rows = {}
    cells = [cell for cell in results.study.cells if cell.measure.target is not None]
    for cell in cells:
        runs = results.done_runs_of(cell)[list(TO_TARGET)]
        row = {"reached": f"{runs['rounds_to_target'].count()} of {len(runs)}" if len(runs) else NONE}
        for at in TO_TARGET:
            found = estimate(runs[at].dropna().astype(float).to_list())
            measure = Measure(at=at, target=cell.measure.target)
            row[at.removesuffix("_to_target")] = plus_minus(found.mean, found.sd, measure) if found.n else NONE
        rows[str(cell)] = row
    if not rows:
        return None
    values = " or ".join(f"{target:g}" for target in sorted({cell.measure.target or 0.0 for cell in cells}))
    note = "Mean ± standard deviation over the runs that reached the target; the others are in no mean."
    return Table(f"To the target {values}", pd.DataFrame.from_dict(rows, orient="index"), note)


def _done(results: Results) -> list[tuple[Cell, pd.Series]]:
    """Cells of which a run is done, with their lines of summary.csv."""
    lines = [line for _, line in results.summary.iterrows()]
    return [(cell, line) for cell, line in zip(results.study.cells, lines, strict=True) if line["done"]]


def _entry(results: Results, cell: Cell | None) -> str:
    """What stands in a cell, and why where it is no number."""
    if cell is None:
        return NONE
    runs = results.runs_of(cell)
    done = int((runs["status"] == "done").sum())
    failed = int((runs["status"] == "failed").sum())
    found = estimate(list(results.values(cell).values()))
    if done == 0:
        return f"failed ({failed}/{len(runs)})" if failed else f"missing (0/{len(runs)})"
    notes = [f"{done}/{len(runs)}"] if done < len(runs) else []
    if cell.measure.is_to_target and found.n < done:
        notes.append(f"{found.n} of {done} reached")
    text = plus_minus(found.mean, found.sd, cell.measure) if found.n else "not reached"
    if notes:
        text += f" ({', '.join(notes)})"
    return Bold(text) if results.is_best(cell) else text


def _difference(results: Results, cell: Cell | None) -> str:
    if cell is None:
        return NONE
    found = results.against_baseline(cell)
    if found is None or found.n == 0:
        return "no pair"
    text = describe_difference(found, cell.measure)
    if found.n == 1:
        return f"{text} (one pair: no interval)"
    return f"{text} ({found.n} pairs)" if found.n < len(results.study.seeds) else text


# --- for a terminal, as Markdown and as LaTeX


def terminal_table(results: Results, width: int | None = None) -> str:
    """Every cell, its difference to the baseline, and runs that reached the target; `*` marks the best."""
    width = width or get_terminal_size().columns
    blocks = []
    for table in (main_table(results), difference_table(results), target_table(results)):
        if table is not None:
            frame = table.frame.map(lambda text: f"{text} *" if isinstance(text, Bold) else text)
            frame = frame.set_axis(table.head, axis=1).rename(index=lambda row: short(row, MOST))
            blocks.append(f"{table.title}\n{frame.to_string(line_width=width)}")
    if " *" in blocks[0]:
        blocks.append("*  ahead of every other row of the column by a paired 95 % interval that excludes 0")
    return "\n\n".join([*blocks, *(f"!  {line}" for line in warnings(results))])


def markdown_tables(results: Results, *more: Table | None) -> str:
    """All tables of a study, and more, under its title."""
    study = results.study
    tables = [f(results) for f in (main_table, difference_table, clients_table, cost_table, target_table)]
    blocks = [f"# {_escaped(study.title)}", _escaped(study.source), _escaped(study.note)]
    for table in (*tables, *more):
        if table is not None:
            blocks += [f"## {_escaped(table.title)}", markdown_table(table), _escaped(table.note)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def markdown_table(table: Table) -> str:
    """A table without its title and note."""
    rows = [["", *map(_escaped, table.head)], ["---"] + ["---:"] * len(table.head)]
    for row in table.rows:
        rows.append([f"**{_escaped(text)}**" if isinstance(text, Bold) else _escaped(text) for text in row])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _escaped(text: str) -> str:
    r"""Text that Markdown leaves as it is.

    Example:
        >>> print(_escaped("a|b *c* <d>"))
        a\|b \*c\* &lt;d>
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]#])", r"\\\1", text)


def latex_table(results: Results) -> str:
    r"""A `table` for a document with \usepackage{booktabs}; a wide one is resized to the width of the text."""
    study, table = results.study, main_table(results)
    caption = [study.title, f"Measured: {table.title}.", table.note]
    if PAPER in table.head:
        caption.append(f"Paper: as printed there ({study.source})." if study.source else "Paper: as printed there.")
    caption_text = " ".join(latex_escaped(part if part.endswith(".") else f"{part}.") for part in caption)
    label = re.sub(r"\W+", "-", study.title.casefold(), flags=re.ASCII).strip("-") or "study"
    frame = table.frame.map(lambda s: rf"\textbf{{{latex_escaped(s)}}}" if isinstance(s, Bold) else latex_escaped(s))
    shown = frame.rename(index=latex_escaped, columns=latex_escaped)
    tabular = shown.to_latex(column_format="l" + "r" * len(table.head), multicolumn_format="c").strip()
    if max(sum(map(len, row)) + 3 * len(row) for row in (table.head, *table.rows)) > WIDEST:
        tabular = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{tabular}}}"
    return f"""% \\usepackage{{booktabs}}, and graphicx for a wide table
\\begin{{table}}
\\centering\\small
\\caption{{{caption_text}}}
\\label{{tab:{label}}}
{tabular}
\\end{{table}}
"""


GREEK = {chr(code): unicodedata.name(chr(code)).split()[-1].lower() for code in range(0x3B1, 0x3CA)}
SPECIAL: dict[str, str | int | None] = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{letter: f"$\\{name.replace('lamda', 'lambda')}$" for letter, name in GREEK.items()},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$"},
    **{"–": "--", "−": "$-$", "→": r"$\rightarrow$", "∞": r"$\infty$", "²": "$^2$", '"': "''"},
}


def latex_escaped(text: str) -> str:
    r"""Text that LaTeX prints as it is; Greek letters as those of mathematics.

    Example:
        >>> print(latex_escaped("100 % of A&B_1 ± 2"))
        100 \% of A\&B\_1 $\pm$ 2
        >>> print(latex_escaped("Dirichlet, α ≤ 0.5"))
        Dirichlet, $\alpha$ $\leq$ 0.5
    """
    return " ".join(text.split()).translate(str.maketrans(SPECIAL))
