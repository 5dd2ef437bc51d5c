"""One call of `fedlit export`: from a checkpoint to a file, which is read again and must give the same outputs."""

import copy
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from fedlit.cli.app import FederatedCLI, notices_in_one_line, refused_in_one_line
from fedlit.cli.export import ENDINGS, TOLERANCE, Format, check_format
from fedlit.cli.recipes import note_configs, with_recipes_found
from fedlit.data import FederatedData
from fedlit.data.batches import Batches
from fedlit.data.remote import noise_like
from fedlit.inputs import arguments, batch_size, tensors
from fedlit.records.files import replacing

SAMPLES = 256  # on which outputs are compared
BATCH_IS_FIXED = ("Constraints violated (n)", "must match", "is invalid for input of size")

Network = Callable[..., Any]
Given = tuple[Any, ...]  # inputs by position
Named = dict[str, Any]  # and by name


def write(given: Namespace, args: list[str]) -> None:
    """Write the file, and print by how much its outputs differ.

    Args:
        given: The command's own options, checked.
        args: As of `fedlit predict`.
    """
    with notices_in_one_line(), refused_in_one_line():
        sys.argv[1:] = with_recipes_found(["predict", *args])
        cli = FederatedCLI()
        path = cli.config.predict.ckpt_path
        cli.trainer.load(cli.model, cli.datamodule, path)
        network = cli.trainer.network(given.client, given.with_preprocessing)
        output = _output(given, Path(cli.trainer.log_dir or "."))
        x = _samples(cli.trainer.state.data, given.client, given.with_preprocessing)
        note_configs(sys.argv[1:])
    try:
        difference = export(network, x, output, given.format)
    except NotTheSame as error:
        sys.stderr.write(f"fedlit: error: {error}\n")
        raise SystemExit(1) from error
    kind = "random inputs" if cli.trainer.state.data.is_placeholder else "test samples"
    print(f"{output}: on {batch_size(x, x)} {kind}, outputs differ by at most {difference:.1e} of the largest.")


def _output(given: Namespace, folder: Path) -> Path:
    """Where to write: as the user says, else in the folder of the run."""
    if given.output is not None:
        return Path(given.output)
    whose = "global" if given.client is None else f"client_{given.client}"
    return folder / f"network_{whose}{ENDINGS[given.format]}"


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
    check_format(format)
    allowed = 0.0 if format == "state_dict" else TOLERANCE
    with replacing(path) as temporary:
        difference = _write(network, x, temporary, format)
        if not difference <= allowed:
            raise NotTheSame(
                f"as {format}, outputs differ by {difference:.1e} of the largest, where {allowed:g} is allowed; "
                "nothing was written."
            )
    return difference


def _write(network: nn.Module, x: Any, path: Path, format: Format) -> float:
    try:
        with torch.no_grad(), quiet():
            WRITERS[format](network, *arguments(network, _first(x, 2)), path)
            read = READERS[format](network, path)
            return max(_compared(network, read, part) for part in (x, _first(x, 1)))
    except Exception as error:  # exporters raise what they like
        raise NotTheSame(f"this network cannot be had as {format}: {cause(error)}") from error


def cause(error: Exception) -> str:
    """The cause of an exporter's error: TorchScript has it in the last line, torch.export in the second."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")]
    if not lines:
        return type(error).__name__
    reason = lines[0]
    if reason.startswith("The following operation failed in the TorchScript interpreter"):
        reason = lines[-1]
    elif reason.startswith("Constraints violated") and len(lines) > 1:
        reason = lines[1]
    if any(word in str(error) for word in BATCH_IS_FIXED):
        reason += " (does `forward` fix the number of samples? `x.shape[0]` follows it, `len(x)` does not)"
    return reason


def largest_difference(one: Network, other: Network, *given: Any, **named: Any) -> float:
    """Of the outputs for the same inputs, as a share of the largest finite one.

    Example:
        >>> largest_difference(lambda x: x, lambda x: x + 1, torch.tensor([0.0, 4.0]))
        0.25
    """
    expected = tensors(one(*_copied(given), **_copied(named)))  # a network may work on its input in place
    found = tensors(other(*_copied(given), **_copied(named)))
    if [tensor.shape for tensor in found] != [tensor.shape for tensor in expected]:
        return torch.inf
    return max(_difference(a.double(), b.double()) for a, b in zip(expected, found, strict=True))


def _compared(network: nn.Module, read: Network, x: Any) -> float:
    given, named = arguments(network, x)
    return largest_difference(network, read, *given, **named)


def _difference(expected: Tensor, found: Tensor) -> float:
    differing = found[found != expected] - expected[found != expected]  # minus infinity stands for other tasks' classes
    if len(differing) == 0:
        return 0.0
    largest = expected[expected.isfinite()].abs().max()
    return float(differing.abs().max() / largest.clamp_min(torch.finfo(torch.float32).tiny))


def _first(x: Any, number: int) -> Any:
    return apply_to_collection(x, Tensor, lambda tensor: tensor[:number])


def _copied(x: Any) -> Any:
    return apply_to_collection(x, Tensor, Tensor.clone)


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters warn of what may go wrong, and torch of its own age; here the outputs are compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _write_state(network: nn.Module, given: Given, named: Named, path: Path) -> None:
    torch.save(network.state_dict(), path)


def _read_state(network: nn.Module, path: Path) -> Network:
    """The state in a copy that has forgotten its own."""
    blank = copy.deepcopy(network)
    for tensor in blank.state_dict().values():
        tensor.zero_()
    blank.load_state_dict(torch.load(path, weights_only=True))
    return blank


def _write_torchscript(network: nn.Module, given: Given, named: Named, path: Path) -> None:
    is_tensor = isinstance(network(*_copied(given), **_copied(named)), Tensor)
    inputs = {"example_kwarg_inputs": named} if named else {"example_inputs": given}
    torch.jit.save(torch.jit.trace(network, **inputs, strict=is_tensor), path)  # type: ignore[arg-type]


def _read_torchscript(network: nn.Module, path: Path) -> Network:
    return torch.jit.load(path)


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
    torch.onnx.export(
        network,
        given,
        str(path),
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes=_any_number(given),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _read_onnx(network: nn.Module, path: Path) -> Network:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


WRITERS = {
    "state_dict": _write_state,
    "torchscript": _write_torchscript,
    "pt2": _write_pt2,
    "onnx": _write_onnx,
}
READERS = {
    "state_dict": _read_state,
    "torchscript": _read_torchscript,
    "pt2": _read_pt2,
    "onnx": _read_onnx,
}
