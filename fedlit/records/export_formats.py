"""Formats of exported networks: what is known of them without torch."""

from importlib.util import find_spec
from typing import Literal, get_args

Format = Literal["state_dict", "torchscript", "pt2", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)
ENDINGS: dict[Format, str] = {"state_dict": ".pt", "torchscript": ".torchscript.pt", "pt2": ".pt2", "onnx": ".onnx"}
TOLERANCE = 1e-4  # of the largest output; other runtimes add up in another order
ONNX = ("onnx", "onnxscript", "onnxruntime")


def check_format(format: Format) -> None:
    """Refuse a format whose packages are not here."""
    missing = [name for name in ONNX if find_spec(name) is None]
    if format == "onnx" and missing:
        raise ValueError(f"`--format onnx` needs {', '.join(missing)}; install them by: pip install 'fedlit[onnx]'")
