"""The command line does what a Lightning user expects: recipes, overrides, environment, checkpoints, own classes."""

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import yaml
from toy_recipe import write_npz, write_recipe
from toys import equal

import fedlit
from fedlit import Federation, methods
from fedlit.cli.app import FederatedCLI, main
from fedlit.cli.command import SUBCOMMANDS
from fedlit.cli.methods import methods_of
from fedlit.records import checkpoint

FIT = ["fit", "--config", "run.yaml"]
LAST = "lightning_logs/version_{}/checkpoints/last.ckpt"


@pytest.fixture(autouse=True)
def _recipe_here(_own_folder):
    """A recipe where the test stands."""
    write_recipe()


def printed_config(args: list[str], capsys) -> dict:
    with pytest.raises(SystemExit) as stopped:
        main([*args, "--print_config"])
    assert stopped.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


def help_text(args: list[str], capsys, monkeypatch) -> str:
    monkeypatch.setenv("COLUMNS", "10000")
    with pytest.raises(SystemExit) as stopped:
        main(args)
    assert stopped.value.code == 0
    return capsys.readouterr().out


def final_state(version: int) -> dict[str, torch.Tensor]:
    return checkpoint.load(Path(LAST.format(version)))["global_state"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with a run of one round and one of two."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedlit"])
        patch.setattr(sys, "path", [*sys.path])
        patch.chdir(place)
        write_recipe()
        main([*FIT, "--trainer.num_rounds=1"])
        main(FIT)
    return place / "lightning_logs"


@pytest.fixture
def two_runs(finished) -> None:
    """As after both of them where the test stands."""
    shutil.copytree(finished, "lightning_logs")


def test_a_printed_config_prints_itself_again(capsys):
    config = printed_config(FIT, capsys)
    Path("printed.yaml").write_text(yaml.safe_dump(config))
    assert printed_config(["fit", "--config", "printed.yaml"], capsys) == config
    assert config["model"]["init_args"]["network"]["class_path"] == "fedlit.networks.MLP"


def test_the_command_line_beats_the_environment_which_beats_the_recipe_which_beats_the_default(capsys, monkeypatch):
    monkeypatch.setenv("FEDLIT_FIT__TRAINER__NUM_ROUNDS", "7")
    monkeypatch.setenv("FEDLIT_FIT__MODEL__INIT_ARGS__OPTIMIZER__INIT_ARGS__LR", "0.5")
    monkeypatch.setenv("FEDLIT_TEST__TRAINER__SEED", "of another command")
    config = printed_config(FIT, capsys)
    assert (config["trainer"]["num_rounds"], config["trainer"]["min_clients"]) == (7, 1)
    assert config["trainer"]["accelerator"] == "cpu"
    assert config["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.5
    assert printed_config([*FIT, "--trainer.num_rounds=5"], capsys)["trainer"]["num_rounds"] == 5


def test_the_environment_names_a_recipe_as_the_command_line_does(capsys, monkeypatch):
    monkeypatch.setenv("FEDLIT_FIT__CONFIG", "fml_fashion.yaml")
    assert printed_config(["fit"], capsys)["model"]["class_path"] == "fedlit.methods.FML"
    config = printed_config(["fit", "--config=fedavg_fashion.yaml"], capsys)
    assert config["model"]["class_path"] == "fedlit.methods.FedAvg"


def test_a_second_recipe_and_an_option_of_a_class_override_the_first(capsys):
    Path("more.yaml").write_text("trainer: {num_rounds: 9}\n")
    config = printed_config([*FIT, "--config=more.yaml", "--model.optimizer.momentum=0.5"], capsys)
    assert config["trainer"]["num_rounds"] == 9
    assert config["model"]["init_args"]["optimizer"]["init_args"]["momentum"] == 0.5
    assert config["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.1


def test_a_file_where_the_user_stands_comes_before_the_recipe_of_that_name(capsys):
    write_recipe("fedavg_fashion.yaml")
    assert printed_config(["fit", "-c", "fedavg_fashion.yaml"], capsys)["seed_everything"] == 0


def test_every_trainer_option_has_help_and_the_environment_is_explained(capsys, monkeypatch):
    shown = help_text(["fit", "--help"], capsys, monkeypatch)
    options = [text for text in shown.split("\n  --") if text.startswith("trainer.")]
    assert len(options) > 20
    for text in options:
        assert len(text.partition("(type:")[0].splitlines()[-1].strip()) > 8, f"{text.split()[0]} has no help"
    assert "FEDLIT_FIT__TRAINER__NUM_ROUNDS=3 is --trainer.num_rounds 3" in shown


@pytest.mark.parametrize("args", [["--help"], ["--model.help", "FML"], ["--data.help", "FederatedData"]])
def test_help_fits_on_a_few_screens_and_names_no_class_that_nobody_would_give(args, capsys, monkeypatch):
    shown = help_text(["fit", *args], capsys, monkeypatch)
    assert len(shown.splitlines()) < 160
    assert "torch.ao" not in shown
    assert "datapipes" not in shown


@pytest.mark.parametrize(
    ("option", "kind", "words"),
    [
        ("--data.help", "FederatedData", "--data.num_clients NUM_CLIENTS Clients in the federation."),
        ("--model.help", "FedAvg", "--model.network NETWORK Builds the network."),
        ("--model.help", "fedlit.methods.FedProx", "--model.mu MU"),
    ],
)
def test_help_of_a_class_lists_its_options(option, kind, words, capsys, monkeypatch):
    assert words in " ".join(help_text(["fit", option, kind], capsys, monkeypatch).split())


OWN_NETWORKS = """
from torch import nn


def untyped(width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))


def typed(width: int = 8) -> nn.Module:
    return untyped(width)
"""


@pytest.mark.parametrize("name", ["untyped", "typed"])
def test_a_function_that_builds_a_network_takes_arguments_on_the_command_line(name, capsys):
    Path("own_networks.py").write_text(OWN_NETWORKS)
    function = [f"--model.network=own_networks.{name}", "--model.network.width", "5"]
    config = printed_config([*FIT, *function], capsys)
    assert config["model"]["init_args"]["network"]["init_args"] == {"width": 5}
    main([*FIT, *function])
    assert final_state(0)["network.1.weight"].shape == (5, 64)


def test_null_takes_an_option_of_a_recipe_back(capsys):
    write_recipe("epochs.yaml", ("num_rounds: 2", "num_rounds: 2, local_epochs: 3"))
    trainer = printed_config(
        ["fit", "-c", "epochs.yaml", "--trainer.local_epochs", "null", "--trainer.local_steps=4"], capsys
    )["trainer"]
    assert (trainer["local_epochs"], trainer["local_steps"]) == (None, 4)


def test_a_development_run_writes_nothing():
    before = sorted(Path().rglob("*"))
    main([*FIT, "--trainer.fast_dev_run=true"])
    assert sorted(Path().rglob("*")) == before


def test_the_saved_config_starts_the_same_run_again_to_the_last_bit():
    main([*FIT, "--seed_everything=3", "--model.network.hidden=[6]"])
    main(["fit", "--config", "lightning_logs/version_0/config.yaml"])
    assert equal(final_state(0), final_state(1))
    main([*FIT, "--seed_everything=4", "--model.network.hidden=[6]"])
    assert not equal(final_state(0), final_state(2))


def test_a_random_seed_is_saved_so_that_the_run_can_be_repeated():
    main([*FIT, "--seed_everything=true"])
    assert type(yaml.safe_load(Path("lightning_logs/version_0/config.yaml").read_text())["seed_everything"]) is int
    main(["fit", "--config", "lightning_logs/version_0/config.yaml"])
    assert equal(final_state(0), final_state(1))


def test_a_run_goes_on_in_its_own_folder_and_its_config_starts_it_anew():
    main([*FIT, "--trainer.num_rounds=1"])
    main([*FIT, "--ckpt_path=last"])
    main(FIT)
    assert equal(final_state(0), final_state(1))
    assert not Path("lightning_logs/version_2").exists()
    assert yaml.safe_load(Path("lightning_logs/version_0/config.yaml").read_text())["ckpt_path"] is None


@pytest.mark.parametrize("typed", [["--config", "{}", "--ckpt_path", "last"], ["-c={}", "--ckpt_path=last"]])
@pytest.mark.usefixtures("two_runs")
def test_last_means_the_own_run_of_a_saved_config_however_it_is_typed(typed):
    own = "lightning_logs/version_0/config.yaml"
    main(["fit", *(arg.format(own) for arg in typed), "--trainer.num_rounds=3"])
    assert [checkpoint.load(Path(LAST.format(version)))["round"] for version in (0, 1)] == [3, 2]


@pytest.mark.usefixtures("two_runs")
def test_the_best_checkpoint_is_validated_tested_and_predicted_from(capsys):
    for command, file in (("validate", "validate.csv"), ("test", "test.csv"), ("predict", "predictions_global.csv")):
        main([command, "--config", "run.yaml", "--ckpt_path=best"])
        assert len(Path("lightning_logs/version_1", file).read_text().splitlines()) >= 3
    assert "untrained" not in capsys.readouterr().err
    main(["predict", "--config", "run.yaml", "--ckpt_path=best", "--client=2"])
    assert sorted(path.name for path in Path("lightning_logs").iterdir()) == ["version_0", "version_1"]


def test_without_a_checkpoint_the_user_is_reported_that_the_model_is_untrained(capsys):
    main(["validate", "--config", "run.yaml"])
    assert "an untrained model" in capsys.readouterr().err
    assert not Path("lightning_logs").exists()


def test_a_method_in_a_file_where_the_user_stands_is_found(monkeypatch):
    Path("my_methods.py").write_text("from fedlit import FedAvg\n\n\nclass Mine(FedAvg):\n    monitor = 'acc/mine'\n")
    network = "--model.network={class_path: fedlit.networks.MLP, init_args: {image_size: 8, num_classes: 3}}"
    optimizer = ["--model.optimizer=SGD", "--model.optimizer.lr=0.1"]
    quiet = ["--data.dataset=toy.npz", "--data.num_clients=3", "--trainer.num_rounds=1", "--trainer.accelerator=cpu"]
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)
    main(["fit", "--model", "my_methods.Mine", network, *optimizer, *quiet, "--trainer.logger=false"])
    assert checkpoint.load(Path(LAST.format(0)))["fingerprint"]["method"] == "Mine"


def test_a_function_of_torchvision_builds_the_network():
    network = "{class_path: torchvision.models.squeezenet1_1, init_args: {num_classes: 10}}"
    old = "{class_path: fedlit.networks.MLP, init_args: {image_size: 8, num_classes: 3, hidden: [8]}}"
    write_recipe("function.yaml", (old, network))
    write_npz("toy.npz", (32, 32, 3), test_labels=torch.arange(30).remainder(10).numpy())
    main(["fit", "--config", "function.yaml", "--trainer.num_rounds=1", "--trainer.local_steps=1"])
    main(["fit", "--config", "lightning_logs/version_0/config.yaml"])
    assert equal(final_state(0), final_state(1))
    assert final_state(0)["network.classifier.1.weight"].shape == (10, 512, 1, 1)


def said_without_torch(*args: str) -> str:
    """What the `fedlit` command prints, in a process that has not imported torch by then."""
    script = f"""if True:
        import sys
        from fedlit.cli.command import main
        sys.argv = {["fedlit", *args]}
        main()
        assert "torch" not in sys.modules
    """
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_the_help_comes_without_torch_and_says_what_the_subcommands_do():
    described = {name: getattr(Federation, name).__doc__.strip().splitlines()[0] for name in FederatedCLI.subcommands()}
    assert described == SUBCOMMANDS
    shown = said_without_torch("--help")
    assert all(name in shown for name in SUBCOMMANDS)
    assert said_without_torch() == said_without_torch("-h") == shown


def test_the_version_comes_without_torch_and_names_what_results_depend_on():
    python = ".".join(map(str, sys.version_info[:3]))
    used = f"torch {version('torch')}, lightning {version('lightning')}, Python {python}"
    assert said_without_torch("--version") == f"fedlit {fedlit.__version__} ({used})\n"


@pytest.mark.slow
def test_names_of_the_package_come_when_they_are_asked_for():
    script = (
        "import sys, fedlit; assert 'torch' not in sys.modules; assert 'FedAvg' in dir(fedlit); fedlit.FedAvg; "
        "assert 'torch' in sys.modules; import torchvision; fedlit.networks.MLP; fedlit.methods.FML"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_method_can_be_had_from_the_package_and_of_other_classes_it_is_reported_where_they_are():
    for method in methods_of(methods):
        assert getattr(fedlit, method.__name__) is method
    with pytest.raises(AttributeError, match=r"no attribute 'Dirichlet'; it is in fedlit.partition$"):
        fedlit.Dirichlet  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Tensor'"):  # what a room has taken in is not its own
        exec("from fedlit import Tensor")
