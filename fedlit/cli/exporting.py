"""One call of `fedlit export`: from a checkpoint to a file."""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedlit.cli.app import FederatedCLI, refused_in_one_line
from fedlit.cli.notices import notices_in_one_line
from fedlit.cli.recipes import tell_configs, with_recipes_found
from fedlit.data import FederatedData
from fedlit.data.remote import noise_like
from fedlit.inputs import batch_size
from fedlit.records.export_formats import ENDINGS
from fedlit.records.exports import NotTheSame, export

SAMPLES = 256  # on which outputs are compared


def write(given: Namespace, args: list[str]) -> None:
    """Write what was asked for, and tell how near its outputs are.

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
        tell_configs(sys.argv[1:])
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
        x = next(iter(some.batches(len(some))))[0]
    else:
        [x] = [x for x, _ in replace(data.test_batches(client).first(SAMPLES), batch_size=SAMPLES)]
    return noise_like(x) if data.is_placeholder else x
