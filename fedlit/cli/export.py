"""`fedlit export`: a network of a checkpoint as a file, checked; here its options, without torch."""

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from fedlit.cli.refusal import OneLineParser, refusals
from fedlit.cli.values import typed_values
from fedlit.records.run_folder import RUNS, find_checkpoint

Format = Literal["state_dict", "torchscript", "pt2", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)
ENDINGS: dict[Format, str] = {"state_dict": ".pt", "torchscript": ".torchscript.pt", "pt2": ".pt2", "onnx": ".onnx"}
TOLERANCE = 1e-4  # of the largest output; other runtimes add up in another order
ONNX = ("onnx", "onnxscript", "onnxruntime")
EXAMPLES = f"""\
What was written is read again and compared with the network on test samples: outputs must be equal, to the bit for
state_dict, else within {TOLERANCE:g} of the largest. If they are not, nothing is left and the exit code is 1.
Further options, such as --data.root FOLDER, are those of `fedlit predict`.

examples:
  fedlit export --ckpt_path best --format state_dict
  fedlit export --ckpt_path lightning_logs/version_3/checkpoints/last.ckpt --client 3 --format onnx --with_preprocessing
"""


def main(args: list[str]) -> None:
    """Write a network of a checkpoint as a file, and check that it gives the same outputs."""
    parser = OneLineParser("fedlit export", str(main.__doc__), epilog=EXAMPLES)
    parser.add_argument("--ckpt_path", required=True, help="A checkpoint file, or `last` or `best` of the newest run.")
    parser.add_argument(
        "-c", "--config", metavar="RECIPE", action="append", default=[], help=f"That of a run in {RUNS} if none."
    )
    parser.add_argument("--client", type=int, metavar="K", help="Whose model; the global one by default.")
    parser.add_argument(
        "--format", required=True, choices=FORMATS, help="pt2 is torch.export, onnx needs fedlit[onnx]."
    )
    parser.add_argument("--output", metavar="FILE", help="By default network_* in the folder of the run.")
    parser.add_argument(
        "--with_preprocessing", action="store_true", help="It takes images as the data set holds them, uint8."
    )
    given, rest = parser.parse_known_args(args)
    with refusals():  # before seconds of imports
        _check(given)
        recipes = _recipes(given.config, given.ckpt_path, rest)
    from fedlit.cli.exporting import write

    write(given, [*recipes, "--ckpt_path", given.ckpt_path, *rest])


def _check(given: Namespace) -> None:
    """Refuse what cannot be, whatever the checkpoint holds."""
    check_format(given.format)
    if given.with_preprocessing and given.format == "state_dict":
        raise ValueError("`--with_preprocessing` goes with a network, but `--format state_dict` is weights alone.")
    if given.output is None:
        return
    path = Path(given.output)
    if not path.parent.is_dir():
        raise ValueError(f"`--output` {given.output}: there is no folder {path.parent}.")
    if path.is_dir():
        raise ValueError(f"`--output` {given.output} must be a file, it is a folder.")


def _recipes(given: list[str], ckpt_path: str, rest: list[str]) -> list[str]:
    """`--config` as it was given, else the config of the checkpoint's own run, which may be named in the rest.

    The config of a run outside `lightning_logs` is not built from unasked: it may have been downloaded.
    """
    if given:
        return [word for recipe in given for word in ("--config", recipe)]
    typed = dict(typed_values(rest))
    found = find_checkpoint(ckpt_path, Path(), name=typed.get("trainer.run_name"))
    if found is None:
        raise ValueError("`--ckpt_path` must be a checkpoint file, `last` or `best`, got nothing.")
    config = found.parent.parent / "config.yaml"
    if not config.is_file():
        raise ValueError(f"`--config` must be given: `--ckpt_path` {ckpt_path} is of no run that has a {config}.")
    if not found.resolve().is_relative_to(Path(RUNS).resolve()):
        raise ValueError(
            f"`--config` must be given: `--ckpt_path` {ckpt_path} lies outside {RUNS}, and a config is a program "
            f"(docs/security.md); if you trust that of the run: --config {config}"
        )
    return ["--config", str(config)]


def check_format(format: Format) -> None:
    """Refuse a format whose packages are not here."""
    missing = [name for name in ONNX if find_spec(name) is None]
    if format == "onnx" and missing:
        raise ValueError(f"`--format onnx` needs {', '.join(missing)}; install them by: pip install 'fedlit[onnx]'")
