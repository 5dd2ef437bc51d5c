"""A config may not call the standard library, `torch.load` or `torch.hub`: refused before anything ran."""

from pathlib import Path

import pytest
import torch
from toy_recipe import write_recipe

from fedlit.cli.app import main

NETWORK = "{class_path: fedlit.networks.MLP, init_args: {image_size: 8, num_classes: 3, hidden: [8]}}"
TOUCH = "init_args: {command: touch ran}"


class Touches:
    """Unpickled, it runs a command."""

    def __reduce__(self):
        return Path.touch, (Path("ran"),)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jsonargparse's, of functions without a type
@pytest.mark.parametrize(
    ("old", "new", "option"),
    [
        (f"network: {NETWORK}", f"network: {{class_path: os.system, {TOUCH}}}", "model.network"),
        (f"network: {NETWORK}", f"network: {{class_path: torch.serialization.os.system, {TOUCH}}}", "model.network"),
        (
            f"network: {NETWORK}",
            "network: {class_path: torch.load, init_args: {f: own.pt, weights_only: false}}",
            "model.network",
        ),
        (
            "batch_size: 8",
            "collate_fn: {class_path: subprocess.getoutput, init_args: {cmd: touch ran}}",
            "data.collate_fn",
        ),
        (
            "trainer: {",
            "trainer: {server_optimizer: {class_path: subprocess.getoutput, init_args: {cmd: touch ran}}, ",
            "trainer.server_optimizer",
        ),
    ],
)
def test_what_would_run_is_refused_before_it_does(old, new, option, capsys):
    torch.save(Touches(), "own.pt")
    write_recipe("run.yaml", (old, new))
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--config", "run.yaml"])
    [line] = capsys.readouterr().err.splitlines()
    named = new.partition("class_path: ")[2].partition(",")[0]
    assert line.startswith(f"fedlit: error: `{option}` must not be {named}: a config may call nothing of the standard")
    assert not Path("ran").exists()
