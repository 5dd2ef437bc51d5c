"""Records of a run as data frames; needs the extra `report`."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from fedlit.records.rows import POOLED, Row

if TYPE_CHECKING:
    from pandas import DataFrame

KINDS = {
    "round": "int64",
    "stage": "string",
    "client": "Int64",
    "model": "string",
    "data": "string",
    "metric": "string",
}


def read_metrics(run: str | Path) -> "DataFrame":
    """metrics.csv of a run, a line a row: what was measured, of which model, on whose data.

    Columns are those of the file: `round` (integer), `stage`, `client` (integer, and ``<NA>`` for the pooled test set,
    which is nobody's), `model`, `data`, `metric` (strings) and `value` (float). A run that is still going on may be
    read: a line that is half written is left out.

    Args:
        run: The run's folder, such as ``lightning_logs/version_0``.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("`fedlit.read_metrics` needs pandas; install it by: pip install 'fedlit[report]'") from error
    path = Path(run).expanduser() / "metrics.csv"
    if not path.is_file():
        raise ValueError(f"`run` must be the folder of a run, got {run}: there is no {path}.")
    whole, _, _ = path.read_text().rpartition("\n")
    header = whole.partition("\n")[0]
    if header != ",".join(Row._fields):
        raise ValueError(f"{path} must begin with {','.join(Row._fields)!r}, got {header!r}.")
    frame = pandas.read_csv(
        io.StringIO(whole),
        dtype=KINDS,
        converters={"value": float},  # older versions of pandas would round the last bit
        na_values={"client": [POOLED]},
        keep_default_na=False,  # a stage may be called "NA"
    )
    return frame.astype({"value": "float64"})  # without lines there was nothing to tell it by
