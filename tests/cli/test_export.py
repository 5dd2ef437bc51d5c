"""An exported network is read by others and says what `predict` says; else nothing is left."""

import importlib.util
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from toy_recipe import write_recipe
from toys import linear

from fedlit.cli import app
from fedlit.cli import export as exporting
from fedlit.cli.export import FORMATS, ONNX, NotTheSame, export, main
from fedlit.heads import Scattered

RUN = Path("lightning_logs/version_0")
BEST = ["--ckpt_path", str(RUN / "checkpoints/best.ckpt")]


def has_onnx() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ONNX)


HERE = [format for format in FORMATS if format != "onnx" or has_onnx()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a finished run of FML."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["fedlit"])
        patch.setattr(sys, "path", [*sys.path])
        network = "{class_path: fedlit.networks.MLP, init_args: {image_size: 8, num_classes: 3, hidden: [8]}}"
        write_recipe(
            "run.yaml", ("FedAvg", "FML"), (f"network: {network}", f"personal: {network}\n    meme: {network}")
        )
        app.main(["fit", "--config", "run.yaml"])
    return folder


@pytest.fixture(autouse=True)
def _there(place, _own_folder, monkeypatch):
    monkeypatch.chdir(place)


def read(format: str, path: Path):
    """As somebody else would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of TorchScript's age
        return exporting.READERS[format](nn.Identity(), path)


def predicted(*args: str) -> list[int]:
    app.main(["predict", "--config", str(RUN / "config.yaml"), "--ckpt_path", "best", *args])
    whose = "client_1" if args else "global"
    lines = (RUN / f"predictions_{whose}.csv").read_text().splitlines()[1:]
    return [int(line.split(",")[1]) for line in lines]


GLOBAL_AND_CLIENT = [[], pytest.param(["--client", "1"], marks=pytest.mark.slow)]  # whose weights lie, below


@pytest.mark.parametrize("format", [format for format in HERE if format != "state_dict"])
@pytest.mark.parametrize("client", GLOBAL_AND_CLIENT)
def test_what_was_written_predicts_as_predict(format, client, capsys):
    from fedlit.data import FederatedData

    main([*BEST, *client, "--format", format, "--with_preprocessing", "--output", f"own_{format}"])
    said = capsys.readouterr().out
    assert re.fullmatch(r"own_\w+: on 30 test samples, outputs differ by at most \S+ of the largest.\n", said)
    data = FederatedData("toy.npz", num_clients=3)
    data.setup()
    network = read(format, Path(f"own_{format}"))
    assert network(data.images.test_x).argmax(dim=1).tolist() == predicted(*client)
    assert network(data.images.test_x[:1]).shape == (1, 3)


def test_weights_are_those_of_the_checkpoint_and_lie_in_the_run_by_default(capsys):
    main([*BEST, "--client", "2", "--format", "state_dict"])
    path = RUN / "network_client_2.pt"
    assert capsys.readouterr().out.startswith(f"{path}: on 30 test samples, outputs differ by at most 0.0e+00")
    written = torch.load(path, weights_only=True)
    personal = torch.load(RUN / "checkpoints/best.ckpt", weights_only=True)["personal_states"][2]
    assert {f"personal.{name}" for name in written} == personal.keys()
    assert all(torch.equal(tensor, personal[f"personal.{name}"]) for name, tensor in written.items())


def test_a_run_in_its_place_is_exported_by_its_own_config_which_is_named(capsys):
    main([*BEST, "--format", "state_dict"])
    assert capsys.readouterr().err == f"fedlit: note: Built from the config {RUN / 'config.yaml'}.\n"


def test_the_config_of_a_run_from_elsewhere_is_not_built_from_unasked(tmp_path, capsys):
    shutil.copytree(RUN, tmp_path / "downloaded")
    config = tmp_path / "downloaded/config.yaml"
    config.write_text(config.read_text().replace("num_clients: 3", "num_clients: 0"))  # not even looked at
    args = ["--ckpt_path", str(tmp_path / "downloaded/checkpoints/best.ckpt"), "--format", "state_dict"]
    with pytest.raises(SystemExit, match="2"):
        main(args)
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(r"`--config` must be given: .* lies outside lightning_logs, and a config is a program", line)
    shutil.copy(RUN / "config.yaml", config)
    main([*args, "--config", str(config)])
    assert (tmp_path / "downloaded/network_global.pt").is_file()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--ckpt_path best", r"the following arguments are required: --format"),
        ("--ckpt_path best --format tflite", r"argument --format: invalid choice: 'tflite'.*state_dict"),
        (
            "--ckpt_path nowhere.ckpt --format pt2",
            r"^`--config` must be given: `--ckpt_path` nowhere.ckpt is of",
        ),
        ("--ckpt_path= --format pt2", r"^`--ckpt_path` must be a checkpoint file, `last` or `best`, got nothing"),
        ("--ckpt_path best --format pt2 --client 7", r"^`--client` must be 0 to 2, got 7"),
        (
            "--ckpt_path best --format pt2 --output nowhere/x.pt2",
            r"^`--output` nowhere/x.pt2: there is no folder",
        ),
        ("--ckpt_path best --format pt2 --output lightning_logs", r"^`--output` lightning_logs must be a file"),
        ("--ckpt_path best --format state_dict --with_preprocessing", r"^`--with_preprocessing` goes with a network"),
        ("--ckpt_path best --format pt2 --outptu x", r"^`--outptu` is not an option"),
        ("--ckpt_path best --format pt2 --data.num_clients 4", r"is of another experiment: its num_clients differs"),
    ],
)
def test_bad_input_is_reported_in_one_line_and_nothing_is_written(args, message, place, capsys):
    before = sorted(place.rglob("*"))
    with pytest.raises(SystemExit, match="2"):
        main(args.split())
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    assert re.search(message, printed.err.removeprefix("fedlit: error: ").rstrip()), printed.err
    assert sorted(place.rglob("*")) == before


def test_without_onnx_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr("fedlit.cli.export.ONNX", ("onnx_of_nobody",))
    with pytest.raises(SystemExit, match="2"):
        main([*BEST, "--format", "onnx"])
    message = "`--format onnx` needs onnx_of_nobody; install them by: pip install 'fedlit[onnx]'"
    assert message in capsys.readouterr().err


class Moody(nn.Module):
    """A trace keeps the way that it took for the first inputs."""

    def forward(self, x):
        return x.flatten(1) * 2 if len(x) == 1 else x.flatten(1)


def test_what_does_not_do_the_same_is_not_left(tmp_path):
    path = tmp_path / "network.pt"
    with pytest.raises(NotTheSame, match=r"as torchscript, outputs differ by .* is allowed; nothing was written"):
        export(Moody().eval(), torch.rand(5, 1, 2, 2) + 1, path, "torchscript")
    assert list(tmp_path.iterdir()) == []


class FixedBatch(nn.Module):
    """A token in front, as transformers have; `len` is a number that a trace keeps."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 4))

    def forward(self, x):
        return torch.cat([self.token.expand(len(x), -1), x.flatten(1)], dim=1)


@pytest.mark.parametrize(("format", "message"), [("torchscript", "RuntimeError: "), ("pt2", "n")])
def test_what_an_exporter_stumbles_over_is_reported(format, message, tmp_path):
    with pytest.raises(
        NotTheSame, match=rf"cannot be had as {format}: .*{message}.*`x.shape\[0\]` follows it"
    ) as refusal:
        export(FixedBatch().eval(), torch.rand(5, 1, 2, 2), tmp_path / "network.pt", format)
    assert "interpreter" not in str(refusal.value)


def test_what_cannot_be_exported_ends_with_code_1(monkeypatch, capsys):
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(SystemExit, match="1"):
        main([*BEST, "--format", "torchscript", "--output", "never.pt"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("fedlit: error: as torchscript, outputs differ by 0.0e+00 of the largest")
    assert not Path("never.pt").exists()


@pytest.mark.parametrize("format", HERE)
def test_a_network_for_some_classes_is_exported_with_minus_infinity_for_the_others(format, tmp_path):
    network = Scattered(linear(), [0, 3, 4], num_classes=5).eval()
    assert export(network, torch.rand(7, 1, 8, 8), tmp_path / "network", format) <= exporting.TOLERANCE
