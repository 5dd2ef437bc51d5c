"""The number of classes of the data is that of networks, unless they are given another."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from torch import nn

from fedlit.cli.app import main

RECIPE = {
    "data": {"class_path": "fedlit.data.FederatedData", "init_args": {"dataset": "cifar100", "num_clients": 2}},
    "trainer": {"num_rounds": 1, "enable_progress_bar": False, "report": False, "local_steps": 1},
}
SGD = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}


class Needs(nn.Sequential):
    """A network of the user's own that must be given its classes."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))


class Fixed(nn.Sequential):
    """One that takes no such argument."""

    def __init__(self, width: int = 100) -> None:
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, width))


def built(num_classes: int = 7) -> nn.Module:
    return Needs(num_classes)


@pytest.fixture(autouse=True)
def _here(_own_folder):
    draw = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"] = draw.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(40)  # none of the highest
    Path("data").mkdir()
    np.savez("data/cifar100.npz", **arrays)
    np.savez("own.npz", **arrays)


def write(method: str, **networks) -> None:
    model = {"class_path": f"fedlit.methods.{method}", "init_args": {"optimizer": SGD, **networks}}
    Path("run.yaml").write_text(yaml.safe_dump({**RECIPE, "model": model}))


def printed(args: list[str], capsys) -> dict:
    with pytest.raises(SystemExit):
        main(["fit", "--config", "run.yaml", *args, "--print_config"])
    return yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]


def numbers(args: list[str], capsys) -> dict[str, int]:
    found = printed(args, capsys)
    networks = {name: found[name]["init_args"] for name in ("personal", "meme")}
    return {name: args["num_classes"] for name, args in networks.items() if "num_classes" in args}


LENET = {"class_path": "LeNet5"}
GIVEN = {"class_path": "LeNet5", "init_args": {"num_classes": 10}}


@pytest.mark.parametrize(
    ("recipe", "args", "expected"),
    [
        ({"personal": LENET, "meme": GIVEN}, [], {"personal": 100, "meme": 10}),
        (
            {"personal": LENET, "meme": LENET},
            ["--data.num_classes=120", "--model.meme.num_classes=10"],
            {"personal": 120, "meme": 10},
        ),
        ({"personal": LENET, "meme": LENET}, ["--data.dataset=own.npz"], {"personal": 10, "meme": 10}),
    ],
)
def test_networks_have_the_classes_of_the_data_unless_they_are_given_others(recipe, args, expected, capsys):
    write("FML", **recipe)
    assert numbers(args, capsys) == expected


def test_some_clients_networks_have_them_too(capsys):
    write("LocalOnly", network=LENET, client_networks={1: LENET, 0: GIVEN})
    found = printed([], capsys)["client_networks"]
    assert {int(k): one["init_args"]["num_classes"] for k, one in found.items()} == {1: 100, 0: 10}


def test_networks_of_ones_own_have_them_if_they_take_them(capsys):
    write("FML", personal={"class_path": f"{__name__}.built"}, meme={"class_path": f"{__name__}.Fixed"})
    assert numbers([], capsys) == {"personal": 100}


def test_a_run_trains_with_them_and_the_config_that_it_saves_runs_again():
    write("FedAvg", network=LENET)
    main(["fit", "--config", "run.yaml", f"--model.network={__name__}.Needs"])
    saved = Path("lightning_logs/version_0/config.yaml")
    assert yaml.safe_load(saved.read_text())["model"]["init_args"]["network"]["init_args"] == {"num_classes": 100}
    main(["fit", "--config", str(saved)])
    first, second = (Path(f"lightning_logs/version_{k}/metrics.csv").read_text() for k in (0, 1))
    assert first == second


def test_a_number_that_the_data_do_not_have_is_refused(capsys):
    write("FedAvg", network=GIVEN)
    with pytest.raises(SystemExit) as refused:
        main(["fit", "--config", "run.yaml"])
    assert refused.value.code == 2
    assert "must give 100 outputs, one per class of the data, got shape [10]" in capsys.readouterr().err


def test_a_network_that_needs_a_number_must_be_given_it_where_the_data_do_not_say(capsys):
    write("FedAvg", network={"class_path": f"{__name__}.Needs"})
    with pytest.raises(SystemExit) as refused:
        main(["fit", "--config", "run.yaml", "--data.dataset=own.npz"])
    assert refused.value.code == 2
    assert capsys.readouterr().err == "fedlit: error: `model.network.num_classes` must be given.\n"
