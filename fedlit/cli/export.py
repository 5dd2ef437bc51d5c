"""`fedlit export`: a network of a checkpoint as a file for others, checked."""

import sys
from pathlib import Path

import torch
from torch import Tensor

from fedlit.cli.app import FederatedCLI, refused_in_one_line
from fedlit.cli.notices import notices_in_one_line
from fedlit.cli.recipes import with_recipes_found
from fedlit.cli.refusal import OneLineParser
from fedlit.cli.values import typed_values
from fedlit.data import FederatedData
from fedlit.records.exports import ENDINGS, FORMATS, TOLERANCE, NotTheSame, check_format, export
from fedlit.records.run_folder import find_checkpoint

EXAMPLES = f"""\
What was written is read again and compared with the network on test samples: outputs must be equal, to the bit for
state_dict, else within {TOLERANCE:g} of the largest. If they are not, nothing is left and the exit code is 1.
Further options, such as --data.root FOLDER, are those of `fedlit predict`.

examples:
  fedlit export --ckpt_path best --format state_dict
  fedlit export --ckpt_path lightning_logs/version_3/checkpoints/last.ckpt --client 3 --format onnx --with_preprocessing
"""
SAMPLES = 256  # on which outputs are compared


def main(args: list[str]) -> None:
    """Write a network of a checkpoint as a file, and check that it gives the same outputs."""
    parser = OneLineParser("fedlit export", str(main.__doc__), epilog=EXAMPLES)
    parser.add_argument("--ckpt_path", required=True, help="A checkpoint file, or `last` or `best` of the newest run.")
    parser.add_argument(
        "-c", "--config", metavar="RECIPE", action="append", default=[], help="That of the run if none."
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
        check_format(given.format)
        if given.with_preprocessing and given.format == "state_dict":
            raise ValueError("`--with_preprocessing` goes with a network, but `--format state_dict` is weights alone.")
        recipes = _recipes(given.config, given.ckpt_path, rest)
        sys.argv[1:] = with_recipes_found(["predict", *recipes, "--ckpt_path", given.ckpt_path, *rest])
        cli = FederatedCLI()
        path = cli.config.predict.ckpt_path
        cli.trainer.load(cli.model, cli.datamodule, path)
        network = cli.trainer.network(given.client, given.with_preprocessing)
        output = _output(given.output, Path(cli.trainer.log_dir or "."), given.client, ENDINGS[given.format])
        x = _samples(cli.datamodule, given.client, given.with_preprocessing)
    try:
        difference = export(network, x, output, given.format)
    except NotTheSame as error:
        sys.stderr.write(f"fedlit: error: {error}\n")
        raise SystemExit(1) from error
    print(f"{output}: on {len(x)} test samples, outputs differ by at most {difference:.1e} of the largest.")


def _recipes(given: list[str], ckpt_path: str, rest: list[str]) -> list[str]:
    """`--config` as it was given, else the config of the checkpoint's own run, which may be named in the rest."""
    if given:
        return [word for recipe in given for word in ("--config", recipe)]
    typed = dict(typed_values(rest))
    found = find_checkpoint(ckpt_path, Path(), name=typed.get("trainer.run_name"))
    if found is None:
        raise ValueError("`--ckpt_path` must be a checkpoint file, `last` or `best`, got nothing.")
    config = found.parent.parent / "config.yaml"
    if not config.is_file():
        raise ValueError(f"`--config` must be given: `--ckpt_path` {ckpt_path} is of no run that has a {config}.")
    return ["--config", str(config)]


def _output(given: str | None, folder: Path, client: int | None, ending: str) -> Path:
    """Where to write, if that can be."""
    if given is None:
        whose = "global" if client is None else f"client_{client}"
        return folder / f"network_{whose}{ending}"
    path = Path(given)
    if not path.parent.is_dir():
        raise ValueError(f"`--output` {given}: there is no folder {path.parent}.")
    if path.is_dir():
        raise ValueError(f"`--output` {given} must be a file, it is a folder.")
    return path


def _samples(data: FederatedData, client: int | None, raw: bool) -> Tensor:
    """Of the test set, as the data set holds them or as networks are given them."""
    if raw:
        return data.images.test_x[:SAMPLES]
    ready: list[Tensor] = []
    for x, _ in data.test_batches(client):
        ready.append(x)
        if sum(map(len, ready)) >= SAMPLES:
            break
    return torch.cat(ready)[:SAMPLES]
