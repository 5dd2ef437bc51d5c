"""`fedlit export`: a network of a checkpoint as a file, which is read again and must give the same outputs."""

import copy
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from fedlit.cli.app import FederatedCLI, notices_in_one_line, refused_in_one_line
from fedlit.cli.recipes import note_configs, typed_values, with_recipes_found
from fedlit.cli.refusal import OneLineParser
from fedlit.data import FederatedData
from fedlit.data.batches import Batches
from fedlit.data.remote import noise_like
from fedlit.inputs import arguments, batch_size, tensors
from fedlit.records.files import replacing
from fedlit.records.run_folder import RUNS, find_checkpoint

Format = Literal["state_dict", "torchscript", "pt2", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)
ENDINGS: dict[Format, str] = {"state_dict": ".pt", "torchscript": ".torchscript.pt", "pt2": ".pt2", "onnx": ".onnx"}
TOLERANCE = 1e-4  # of the largest output; other runtimes add up in another order
ONNX = ("onnx", "onnxscript", "onnxruntime")
SAMPLES = 256  # on which outputs are compared
BATCH_IS_FIXED = ("Constraints violated (n)", "must match", "is invalid for input of size")
EXAMPLES = f"""\
What was written is read again and compared with the network on test samples: outputs must be equal, to the bit for
state_dict, else within {TOLERANCE:g} of the largest. If they are not, nothing is left and the exit code is 1.
Further options, such as --data.root FOLDER, are those of `fedlit predict`.

examples:
  fedlit export --ckpt_path best --format state_dict
  fedlit export --ckpt_path lightning_logs/version_3/checkpoints/last.ckpt --client 3 --format onnx --with_preprocessing
"""

Network = Callable[..., Any]
Given = tuple[Any, ...]  # inputs by position
Named = dict[str, Any]  # and by name


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
    with notices_in_one_line(), refused_in_one_line():
        _check(given)
        recipes = _recipes(given.config, given.ckpt_path, rest)
        sys.argv[1:] = with_recipes_found(["predict", *recipes, f"--ckpt_path={given.ckpt_path}", *rest])
        cli = FederatedCLI()
        cli.trainer.load(cli.model, cli.datamodule, cli.options.ckpt_path)
        network = cli.trainer.network(given.client, given.with_preprocessing)
        data = cli.trainer.state.data
        output = _output(given, Path(cli.trainer.log_dir or "."))
        x = _samples(data, given.client, given.with_preprocessing)
        note_configs(sys.argv[1:])
    try:
        difference = export(network, x, output, given.format)
    except NotTheSame as error:
        sys.stderr.write(f"fedlit: error: {error}\n")
        raise SystemExit(1) from error
    kind = "random inputs" if data.is_placeholder else "test samples"
    print(f"{output}: on {batch_size(x, x)} {kind}, outputs differ by at most {difference:.1e} of the largest.")


def _check(given: Namespace) -> None:
    """Refuse options that are wrong for every checkpoint."""
    missing = [name for name in ONNX if find_spec(name) is None]
    if given.format == "onnx" and missing:
        raise ValueError(f"`--format onnx` needs {', '.join(missing)}; install them by: pip install 'fedlit[onnx]'")
    if given.with_preprocessing and given.format == "state_dict":
        raise ValueError("`--with_preprocessing` goes with a network, but `--format state_dict` is weights alone.")
    path = Path(given.output or "network")
    if not path.parent.is_dir():
        raise ValueError(f"`--output` {given.output}: there is no folder {path.parent}.")
    if given.output is not None and path.is_dir():
        raise ValueError(f"`--output` {given.output} must be a file, it is a folder.")


def _recipes(given: list[str], ckpt_path: str, rest: list[str]) -> list[str]:
    """`--config` as it was given, else the config of the checkpoint's own run, which may be named in the rest.

    The config of a run outside `lightning_logs` must be given: it may have been downloaded.
    """
    if given:
        return [f"--config={recipe}" for recipe in given]
    found = find_checkpoint(ckpt_path, Path(), name=dict(typed_values(rest)).get("trainer.run_name"))
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
    return [f"--config={config}"]


def _output(given: Namespace, folder: Path) -> Path:
    """Where to write: as the user says, else in the folder of the run."""
    whose = "global" if given.client is None else f"client_{given.client}"
    return Path(given.output or folder / f"network_{whose}{ENDINGS[given.format]}")


def _samples(data: FederatedData, client: int | None, raw: bool) -> Any:
    """Of the test set, as the data set holds them or as networks are given them."""
    if raw:
        test = data.splits.test
        some = test.taken(np.arange(min(SAMPLES, len(test))))
        x = next(iter(Batches(some, len(some))))[0]
    else:
        [x] = [x for x, _ in replace(data.test_batches(client).first(SAMPLES), batch_size=SAMPLES)]
    return noise_like(x) if data.is_placeholder else x


class NotTheSame(Exception):
    """The exported network gives other outputs, or could not be written."""


def export(network: nn.Module, x: Any, path: Path, format: Format) -> float:
    """Write a network and read it again; the largest difference of outputs, as a share of the largest output.

    Args:
        network: In evaluation mode, on the CPU.
        x: Inputs ``[N, ...]``, or a tree of them, on which both are compared, all at once and the first alone.
        path: Where to; nothing is left there if the outputs are not the same: to the bit for `state_dict`, else
            within `TOLERANCE`.
        format: `state_dict` is weights alone; `torchscript`, `pt2` (torch.export) and `onnx` need no class.
    """
    allowed = 0.0 if format == "state_dict" else TOLERANCE
    with replacing(path) as temporary:
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what may go wrong: outputs are compared
                WRITERS[format](network, *arguments(network, _first(x, 2)), temporary)
                read = READERS[format](network, temporary)
                difference = max(largest_difference(network, read, part) for part in (x, _first(x, 1)))
        except Exception as error:  # exporters raise what they like
            raise NotTheSame(f"this network cannot be had as {format}: {cause(error)}") from error
        if not difference <= allowed:
            raise NotTheSame(
                f"as {format}, outputs differ by {difference:.1e} of the largest, where {allowed:g} is allowed; "
                "nothing was written."
            )
    return difference


def cause(error: Exception) -> str:
    """The line of an exporter's error that says why: TorchScript's last, torch.export's second."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")] or [type(error).__name__]
    which = {"The following operation failed": -1, "Constraints violated": min(1, len(lines) - 1)}
    reason = next((lines[place] for start, place in which.items() if lines[0].startswith(start)), lines[0])
    is_fixed = any(word in str(error) for word in BATCH_IS_FIXED)
    hint = " (does `forward` fix the number of samples? `x.shape[0]` follows it, `len(x)` does not)"
    return reason + hint if is_fixed else reason


def largest_difference(network: nn.Module, read: Network, x: Any) -> float:
    """Of two networks' outputs for the same inputs, as a share of the largest finite output."""
    given, named = arguments(network, x)
    expected = tensors(network(*_copied(given), **_copied(named)))  # a network may work on its input in place
    found = tensors(read(*_copied(given), **_copied(named)))
    if [tensor.shape for tensor in found] != [tensor.shape for tensor in expected]:
        return torch.inf
    return max(_difference(a.double(), b.double()) for a, b in zip(expected, found, strict=True))


def _difference(expected: Tensor, found: Tensor) -> float:
    differing = found[found != expected] - expected[found != expected]  # minus infinity: classes of other tasks
    if len(differing) == 0:
        return 0.0
    largest = expected[expected.isfinite()].abs().max()
    return float(differing.abs().max() / largest.clamp_min(torch.finfo(torch.float32).tiny))


def _first(x: Any, number: int) -> Any:
    return apply_to_collection(x, Tensor, lambda tensor: tensor[:number])


def _copied(x: Any) -> Any:
    return apply_to_collection(x, Tensor, Tensor.clone)


def _write_state(network: nn.Module, given: Given, named: Named, path: Path) -> None:
    torch.save(network.state_dict(), path)


def _read_state(network: nn.Module, path: Path) -> Network:
    """The state in a copy whose own was erased."""
    blank = copy.deepcopy(network)
    for tensor in blank.state_dict().values():
        tensor.zero_()
    blank.load_state_dict(torch.load(path, weights_only=True))
    return blank


def _write_torchscript(network: nn.Module, given: Given, named: Named, path: Path) -> None:
    is_tensor = isinstance(network(*_copied(given), **_copied(named)), Tensor)
    inputs = {"example_kwarg_inputs": named} if named else {"example_inputs": given}
    torch.jit.save(torch.jit.trace(network, **inputs, strict=is_tensor), path)  # type: ignore[arg-type]


def _any_number(inputs: Given | Named) -> Any:
    """Each tensor may have any number of samples."""
    number = torch.export.Dim("n", min=1)
    return apply_to_collection(inputs, Tensor, lambda _: {0: number})


def _write_pt2(network: nn.Module, given: Given, named: Named, path: Path) -> None:
    with path.open("wb") as file:
        shapes = _any_number(named or given)
        torch.export.save(torch.export.export(network, given, named, dynamic_shapes=shapes), file)


def _read_pt2(network: nn.Module, path: Path) -> Network:
    with path.open("rb") as file:
        return torch.export.load(file).module()


def _write_onnx(network: nn.Module, given: Given, named: Named, path: Path) -> None:
    if named or len(given) > 1 or not isinstance(given[0], Tensor):
        raise ValueError("it takes more than one tensor, which fedlit writes as torchscript or pt2 only")
    options = {"dynamo": True, "external_data": False, "verbose": False, "dynamic_shapes": _any_number(given)}
    torch.onnx.export(network, given, str(path), input_names=["x"], output_names=["logits"], **options)


def _read_onnx(network: nn.Module, path: Path) -> Network:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


WRITERS = {"state_dict": _write_state, "torchscript": _write_torchscript, "pt2": _write_pt2, "onnx": _write_onnx}
READERS: dict[Format, Callable[[nn.Module, Path], Network]] = {
    "state_dict": _read_state,
    "torchscript": lambda network, path: torch.jit.load(path),
    "pt2": _read_pt2,
    "onnx": _read_onnx,
}
