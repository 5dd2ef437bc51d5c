"""Tables: pandas frames, .csv and .parquet files. A column is the target, the others are features, float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedlit.data.items import Roles, listed
from fedlit.data.parts import Stacked

ENDINGS = (".csv", ".parquet")


def is_frame(value: object) -> bool:
    """Whether something is a pandas frame; pandas itself need not be there."""
    return all(hasattr(value, name) for name in ("columns", "iloc", "to_numpy"))


def read_table(path: Path) -> Any:
    """A frame of a file."""
    try:
        import pandas
    except ImportError:
        raise ValueError(f"`data.dataset` {path} needs pandas: pip install 'fedlit[report]'.") from None
    try:
        return pandas.read_csv(path) if path.suffix == ".csv" else pandas.read_parquet(path)
    except ImportError:
        raise ValueError(f"`data.dataset` {path} needs what pandas reads parquet by: pip install pyarrow.") from None
    except Exception as error:  # a damaged file raises what it likes
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"`data.dataset` {path} cannot be read as a table: {why}") from error


def frame_parts(frames: Sequence[Any], names: Sequence[str], roles: Roles) -> tuple[list[Stacked], int]:
    """The samples of frames that belong together, and how many classes there are; 0 if targets are no classes.

    Text is a class: all that occur are sorted. Whole numbers are classes as they are, floats are values.
    """
    whose = f"the columns of `{names[0]}`"
    columns = list(frames[0].columns)
    target = roles.target_of(columns, whose)
    inputs = roles.features_of(columns, whose)
    if roles.client is not None and roles.client not in columns:
        raise ValueError(f"`data.client` must be one of {whose}: {listed(columns)}; got {roles.client}.")
    for frame, name in zip(frames, names, strict=True):
        held = set(frame.columns)
        missing = [column for column in (target, *inputs) if column not in held]
        if missing:
            raise ValueError(f"`{name}` must have the columns of `{names[0]}`; missing: {listed(missing)}.")
        if len(frame) == 0:
            raise ValueError(f"`{name}` must not be empty, got no rows.")
    targets = [_values(frame[target], target, name) for frame, name in zip(frames, names, strict=True)]
    coded, num_classes = with_codes(targets)
    parts = []
    for frame, name, y in zip(frames, names, coded, strict=True):
        x = np.stack([_feature(frame[column], column, name) for column in inputs], axis=1)
        owners = None
        if roles.client in frame.columns:
            owners = _values(frame[roles.client], str(roles.client), name)
        parts.append(Stacked(torch.from_numpy(x), torch.from_numpy(y), owners))
    return parts, num_classes


def with_codes(targets: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Targets of several parts, text as places among all that occur; and how many classes that makes.

    Example:
        >>> coded, number = with_codes([np.array(["cat", "ant"]), np.array(["bee"])])
        >>> [codes.tolist() for codes in coded], number
        ([[2, 0], [1]], 3)
    """
    kinds = {values.dtype.kind for values in targets}
    if kinds <= set("iu"):
        return [values.astype(np.int64) for values in targets], 0
    if kinds <= set("iuf"):
        return [values.astype(np.float32) for values in targets], 0
    texts = [values.astype(str) for values in targets]
    classes = np.unique(np.concatenate(texts))
    return [np.searchsorted(classes, text) for text in texts], len(classes)


def _values(column: Any, name: str, whose: str) -> np.ndarray:
    """A column in which no value may be missing."""
    if bool(column.isna().any()):
        row = int(np.flatnonzero(column.isna().to_numpy())[0])
        raise ValueError(f"column `{name}` of `{whose}` must have a value in every row, got none in row {row}.")
    return column.to_numpy()


def _feature(column: Any, name: str, whose: str) -> np.ndarray:
    values = column.to_numpy()
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"column `{name}` of `{whose}` must be numbers to be a feature, got {column.dtype}: encode or drop it, or "
            "name the features in `data.features`."
        )
    found = values.astype(np.float32)
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found))[0])
        raise ValueError(f"column `{name}` of `{whose}` must be finite, got {values[row]} in row {row}.")
    return found
