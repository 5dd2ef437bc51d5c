"""Bad input: one line on stderr that names the option and what is allowed, exit code 2, and nothing written."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.ops  # noqa: F401  (its MLP makes the name of ours ambiguous)
from toy_recipe import write_npz, write_recipe

from fedlit.cli.app import main

FIT = ["fit", "--config", "run.yaml"]
CHECKPOINT = "--ckpt_path=run/checkpoints/last.ckpt"
OTHER = r"^`--ckpt_path` run/checkpoints/last.ckpt is of another experiment: its "
NETWORK = "{class_path: fedlit.networks.MLP, init_args: {image_size: 8, num_classes: 3}}"
F1 = "{class_path: torchmetrics.classification.MulticlassF1Score, init_args: {num_classes: 7}}"


PAIR = "own_methods.Pair, init_args: {}"
OWN_METHODS = """
from torch import nn

from fedlit import FedAvg
from fedlit.methods import NetworkFactory


class Untyped(FedAvg):
    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)


class Half(FedAvg):
    def __init__(self, network: NetworkFactory, optimizer):
        super().__init__(network, optimizer)


class Two(FedAvg):
    def configure_optimizers(self):
        return [super().configure_optimizers(), super().configure_optimizers()]


class Asks(FedAvg):
    def check(self, data):
        raise KeyError("x")


class Pair(nn.Module):
    def forward(self, x):
        return x, x
"""


def partition(name: str, **options) -> list[str]:
    return [f"--data.partition={name}", *(f"--data.partition.{key}={value}" for key, value in options.items())]


COMMANDS = {
    "fit": r"^`model` must be given",
    "fit --config": r"^argument -c/--config: expected one argument",
    "fit --config fedavg_fashoin.yaml": r"^`--config fedavg_fashoin.yaml`: .*did you mean fedavg_fashion.yaml\?$",
    "fit --config broken.yaml": r"^`--config broken.yaml` must be YAML, but in line 2: expected ',' or '}'",
    "fit --config=toy.npz": r"^`--config toy.npz` must be YAML, but: not a text file",
    "fit --config twice.yaml": r"^`--config twice.yaml` must be YAML, but in line 3: 'num_rounds' is given twice",
    "fit --config empty.yaml": r"^`--config empty.yaml` must hold options by name.*got nothing",
    "fit key.yaml": r"^'key.yaml' is one argument too many; a recipe is given by `--config key.yaml`.$",
    "fit --config key.yaml": r"^`trainer.num_round` is not an option. Did you mean `trainer.num_rounds`\?$",
    "fit --config type.yaml": r"^`data.num_clients`: Expected int. Got value: three",
    "fit --config network.yaml": r"^`model.network`: .* has no attribute 'MPL'. Did you mean `fedlit.networks.MLP`\?$",
    "fit --config client_networks.yaml": r"^`model.client_networks` must have one entry per client, 3, got 2",
    "fit --model FedAvgg": r"^`model`: there is no class 'FedAvgg'. Did you mean `FedAvg`\?$",
    "fit --model nowhere.Mine": r"^`model`: No module named 'nowhere'. Got value: nowhere.Mine$",
    "fit --model own_method.Half": r"^`model`: No module named 'own_method'. .* Did you mean `own_methods`\?$",
    "fit --model own_methods.Halv": r"^`model`: .* has no attribute 'Halv'.* Did you mean `own_methods.Half`\?$",
    "fit --model colorsys.Half": r"^`model`: .* has no attribute 'Half'.* colorsys.py is hidden by an inst",
    "fit --config beside.yaml": r"^`model.network`: .* belong below `init_args`, not beside `class_path`$",
    "fit --config alfa.yaml": r"^`data.partition.alfa` is not an option. Did you mean `data.partition.alpha`\?$",
    "fit --config run.yaml --trainer.clients_per_round 2": r"is not an option. Did you mean `trainer.fraction_fit`\?$",
    "fit --config run.yaml --learning_rate 0.1": r"^`--learning_rate` is not .*Did you mean `model.optimizer.lr`\?$",
    "fit --config run.yaml --model.lr 0.1": r"^`model.lr` is not an option. Did you mean `model.optimizer.lr`\?$",
    "fit --config run.yaml --trainer.gpus 1": r"Did you mean `trainer.accelerator` or `trainer.devices`\?$",
    "fit --config run.yaml --trainer.batch_size 8": r"^`trainer.batch_size` .*Did you mean `data.batch_size`\?$",
    "fit --config run.yaml --max_epochs 8": r"Did you mean `trainer.num_rounds` or `trainer.local_epochs`\?$",
    "fit --config hiden.yaml": r"^`model.network.hiden` is not an option. Did you mean `model.network.hidden`\?$",
    "fit --model slip.Mine": r"^`model`: invalid syntax \(slip.py, line 1\). Got value: slip.Mine",
    "fit --model torch.nn.Linear": r"^`model`: .* subclass of FederatedModule. Got value: torch.nn.Linear",
    "fit --config untyped.yaml": (
        r"^`model.optimizer` must be .* got a ready Namespace; annotate what `__init__` of the method takes: "
        r"`network: NetworkFactory` \(fedlit.methods\), `optimizer: OptimizerCallable` \(lightning.pytorch.cli\).$"
    ),
    "fit --model own_methods.Half --model.network=fedlit.networks.MLP --model.optimizer=SGD": (
        r"^`model.optimizer` must be .* got a ready str; annotate .*`optimizer: OptimizerCallable`"
    ),
    "fit --model.network.help LeNet5": r"^`model.network.help` is not an option.$",
    "fit --config two.yaml": r"^`model`: `configure_optimizers` of Two of client 0: automatic optimisation takes one",
    "fit --config tuple.yaml": r"^`model`: the network of client 0: a network must give one tensor, got a tuple",
    "fit --config asks.yaml": r"^KeyError: 'x' \(FEDLIT_DEBUG=1 shows where\)$",
    "fit --model FedAvg": r"^`model.network`, `model.optimizer` must be given",
    "fit --model FedAvg --model.network MLP": r"^`model.network`: Multiple subclasses with name MLP. Give the full",
    "predict --config run.yaml --client 3": r"^`--client` must be 0 to 2, got 3",
    "predict --config run.yaml --images shapes.npz": r"^`--images` shapes.npz must hold an array `images`, got ",
    "predict --config local.yaml": r"^LocalOnly has no global model; name one of its clients with `--client`",
    "test --config run.yaml --ckpt_path auto": r"^`--ckpt_path auto` is for `fit`, .*; give a file, `last` or `best`",
    f"validate --config local.yaml {CHECKPOINT}": OTHER + r"method differs \(FedAvg there, LocalOnly here\)",
    "validate --config local.yaml --ckpt_path=local/checkpoints/last.ckpt --model.network.hidden=[9]": (
        r"^`--ckpt_path` local/checkpoints/last.ckpt is of another experiment: its personal state differs"
    ),
}
TRAINER = {
    "--trainer.num_round=3": r"^`trainer.num_round` is not an option. Did you mean `trainer.num_rounds`\?$",
    "--trainer.aggregator=median": r"^`trainer.aggregator`: there is no class 'median'. Did you mean `Median`\?$",
    "--trainer.aggregator=Krum": r"^`trainer.aggregator` Krum needs 5 uploads in a round, but a round has 3 clients",
    "--trainer.server_optimizer=torch.optim.Optimizer": r"^`trainer.server_optimizer.defaults` must be given.$",
    "--trainer.num_rounds=0": r"^`trainer.num_rounds` must be at least 1, got 0",
    "--trainer.fraction_fit=2": r"^`trainer.fraction_fit` must lie in \(0, 1\], got 2.0",
    "--trainer.local_epochs=1 --trainer.local_steps=2": r"^`trainer.local_epochs` and `trainer.local_steps` exclude",
    "--trainer.batch_norm=global": r"^`trainer.batch_norm`: Expected one of \['average', 'local'\]. Got value: global",
    "--trainer.accelerator=abacus": r"^`trainer.accelerator` abacus, .*Available names are: .*cpu",
    "--trainer.callbacks=LearningRateMonitor": r"^`trainer.callbacks`: LearningRateMonitor needs .*; instead, ",
    "--trainer.lr_schedule=torch.optim.lr_scheduler.ReduceLROnPlateau": r"^`trainer.lr_schedule`: .*waits for a metric",
    "--trainer.monitor=acc/globl_on_own": r"^`trainer.monitor` names the model 'globl', but there are global, personal",
    "--trainer.default_root_dir=toy.npz": r"^`trainer.default_root_dir` toy.npz cannot hold a run: Not a directory",
    "--seed_everything=-1": r"^`seed_everything` must be 0 to 4294967295, got -1",
    "--num_rounds=3": r"^`--num_rounds` is not an option. Did you mean `trainer.num_rounds`\?$",
    "--trainer.lr_schedule=StepLR": r"^`trainer.lr_schedule.step_size` must be given.$",
    "--ckpt_path=nowhere.ckpt": r"^`--ckpt_path` must be a checkpoint file, `last` or `best`, got nowhere.ckpt",
    "--ckpt_path=foreign.ckpt": r"^`--ckpt_path` foreign.ckpt is not a checkpoint of fedlit",
    "--ckpt_path=run/checkpoints/damaged.ckpt": r"^`--ckpt_path` run/checkpoints/damaged.ckpt is damaged",
    "--ckpt_path=last": r"^`--ckpt_path last` looks for a run, but there is none in lightning_logs",
    f"{CHECKPOINT} --data.num_clients=4": OTHER + r"num_clients differs \(3 there, 4 here\)",
    f"{CHECKPOINT} --model.network.hidden=[9]": OTHER + r"shared state differs",
}
MODEL = {
    "--model.network=torch.relu": r"^`model.network`: .* a function that returns <class 'Module'>.* torch.relu",
    "--model.network.num_classes=4": r"^`model`: the network of client 0 must give 3 outputs, .*got shape \[4\]",
    "--model.network=LeNet5 --model.network.image_size=8": r"^`model.network.image_size` must be at least 16",
    "--model.optimizer.lr=abc": r"^`model.optimizer.lr`: Expected float. Got value: abc$",
    "--model.optimizer.lr=-1": r"^`model.optimizer` of client 0: Invalid learning rate: -1.0",
    "--model.optimizer.momentun=0.9": r"^`model.optimizer.momentun` is not .* mean `model.optimizer.momentum`\?$",
}
PROGRAMMES = {
    "--model=DLAD": r"^Stage 'density' needs a public pool; set `data.public`, such as 0.8",
    "--model=DLAD --data.public=valid": r"^`data.public: valid` needs a data set with a `valid` part",
    "--model=DLAD --data.public=0.5 --model.earlier=no.ckpt": r"^`model.earlier` must be a checkpoint file.* no.ckpt",
}
DATA = {
    "--data.alpha=3": r"^`data.alpha` is not an option. Did you mean `data.partition.alpha`\?$",
    "--data.dataset=nowhere.csv": r"^`data.dataset` nowhere.csv: there .* as data/nowhere.csv\.$",
    "--data.in_memory=false": r"^`data.in_memory: false` has no meaning for `data.dataset` toy.npz, which is arrays",
    "--data.collate_fn=nowhere.pad": r"^`data.collate_fn`",
    "--data.num_clients=61": r"^`data.num_clients`: 61 clients .* need 61 samples, there are 60",
    "--data.val_size=20": r"^`data.val_size`=20.0 leaves client 0 none of its 20 training samples",
    "--data.drop_last=true --data.batch_size=64": r"^`data.drop_last` leaves no client a batch in stage 'federate'",
    "--data.opt_out=[7]": r"^`data.opt_out` names client 7, but the clients are 0 to 2",
    "--data.opt_out=1": r"^No client may train in stage 'federate': all have opted out \(see `data.opt_out`\)",
    "--data.dataset=fashion_mnits": r"^`data.dataset` must be one of .*did you mean 'fashion_mnist'\?$",
    "--data.dataset=nowhere": r"^`data.dataset` must be one of .* or a folder of images, got 'nowhere'; there is no",
    "--data.dataset=run.yaml": r"^`data.dataset` must be one of .* or a folder of images, got 'run.yaml'\.$",
    "--data.dataset=nan.npz": r"^`train_images` of `data.dataset` nan.npz .*, got nan at \[1, 2\], the first of 1 such",
    "--data.dataset=key.npz": r"^key.npz must hold the arrays .*; missing: test_labels",
}
PARTITIONS = [
    (("Shards", {"per_client": 30}), r"^`data.partition.per_client`=30 .* 120 shards, .* from 60 samples"),
    (
        ("Majority", {"samples_per_client": 50}),
        r"^`data.partition.samples_per_client`=50 .* needs 73 samples of class 0, there are 20",
    ),
    (("Quantity", {}), r"^`data.partition`: Quantity takes alpha or power, one of them"),
    (
        ("ByColumn", {}),
        r"^`data.partition`: the clients of the training samples are unknown: name their column in `data.client`",
    ),
    (("fedlit.data.Saved", {"path": "no.csv"}), r"^`data.partition.path` must be .*there is no file no.csv"),
    (("fedlit.data.Saved", {"path": "two.csv"}), r"^`two.csv` assigns 2 clients, but `data.num_clients` is 4"),
]
CASES = [
    *((line.split(), message) for line, message in COMMANDS.items()),
    *((FIT + line.split(), message) for line, message in (TRAINER | MODEL | PROGRAMMES | DATA).items()),
    *(
        ([*FIT, "--data.num_clients=4", *partition(name, **options)], message)
        for (name, options), message in PARTITIONS
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Every file that the refused commands name, and two finished runs."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("refused")
        patch.chdir(place)
        patch.setattr(sys, "argv", ["fedlit"])
        patch.setattr(sys, "path", [*sys.path])
        write_files()
        for recipe, name in (("run.yaml", "run"), ("local.yaml", "local")):
            main(["fit", "--config", recipe])
            Path("lightning_logs/version_0").rename(name)
        Path("lightning_logs").rmdir()
        content = bytearray(Path("run/checkpoints/last.ckpt").read_bytes())
        content[content.index(b"\x80\x02}")] ^= 1
        Path("run/checkpoints/damaged.ckpt").write_bytes(content)
    return place


def write_files() -> None:
    write_recipe()
    write_recipe("key.yaml", ("num_rounds", "num_round"))
    write_recipe("type.yaml", ("num_clients: 3", "num_clients: three"))
    write_recipe("network.yaml", ("networks.MLP", "networks.MPL"))
    write_recipe("hiden.yaml", ("hidden", "hiden"))
    write_recipe("beside.yaml", (", init_args: {image_size: 8, num_classes: 3, hidden: [8]}", ", hidden: [8]"))
    dirichlet = "{class_path: fedlit.partition.Dirichlet, init_args: {alfa: 1}}"
    write_recipe("alfa.yaml", ("num_clients: 3", f"num_clients: 3, partition: {dirichlet}"))
    write_recipe("local.yaml", ("FedAvg", "LocalOnly"))
    networks = ("    optimizer", f"    client_networks: [{NETWORK}, {NETWORK}]\n    optimizer")
    write_recipe("client_networks.yaml", ("FedAvg", "LocalOnly"), networks)
    Path("broken.yaml").write_text("trainer: {num_rounds: 2\n model: [")
    Path("twice.yaml").write_text("trainer:\n  num_rounds: 3\n  num_rounds: 4\n")
    Path("empty.yaml").write_text("# nothing\n")
    Path("own_methods.py").write_text(OWN_METHODS)
    Path("colorsys.py").write_text(OWN_METHODS)
    for recipe in ("untyped", "two", "asks"):
        write_recipe(f"{recipe}.yaml", ("fedlit.methods.FedAvg", f"own_methods.{recipe.title()}"))
    write_recipe("tuple.yaml", ("fedlit.networks.MLP, init_args: {image_size: 8, num_classes: 3, hidden: [8]}", PAIR))
    Path("slip.py").write_text("class Mine(:\n")
    Path("two.csv").write_text("client,split,index,label,shared\n0,train,0,0,1\n1,train,1,1,1\n")
    write_npz("shapes.npz", test_images=np.zeros((30, 9, 9), dtype=np.uint8))
    write_npz("key.npz", test_labels=None)
    with_nan = np.zeros((60, 4), dtype=np.float32)
    with_nan[1, 2] = np.nan
    write_npz("nan.npz", train_images=with_nan)
    torch.save({"state_dict": {}}, "foreign.ckpt")


def refusal(args: list[str], capsys) -> str:
    """The one line that is said."""
    with pytest.raises(SystemExit) as stopped:
        main(args)
    printed = capsys.readouterr()
    assert stopped.value.code == 2, printed.err
    assert printed.out == ""
    assert printed.err.count("\n") == 1, printed.err
    assert printed.err.startswith("fedlit: error: ")
    return printed.err.removeprefix("fedlit: error: ").rstrip()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jsonargparse's, of an argument without a type
@pytest.mark.parametrize(("args", "message"), CASES, ids=[" ".join(args).replace("/", "-") for args, _ in CASES])
def test_bad_input_is_reported_in_one_line_and_nothing_is_written(args, message, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    said = refusal(list(args), capsys)
    assert re.search(message, said), said
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    assert not (folder / "lightning_logs").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (f"--trainer.metrics={{acc: {F1}}}", r"^`trainer.metrics` must leave acc and loss to the federation"),
        (f"--trainer.metrics={{f1: {F1}}}", r"^`trainer.metrics.f1` cannot score 3 classes by one number: "),
        (
            "--trainer.metrics={x: {class_path: torch.nn.Linear}}",
            r"^`trainer.metrics`: Import path torch.nn.Linear does not correspond to a subclass of Metric",
        ),
        ("--trainer.client_epochs=[1, 2]", r"^`trainer.client_epochs`: Expected dict. Got value: \[1, 2\]"),
        ("--trainer.client_epochs={1: x}", r"^`trainer.client_epochs`: Expected int. Got value: x"),
        ("--trainer.client_epochs={7: 2}", r"^`trainer.client_epochs` names client 7, but the clients are 0 to 2"),
        ("--trainer.client_epochs={1: 0}", r"^`trainer.client_epochs\[1\]` must be at least 1, got 0"),
    ],
)
def test_a_value_with_blanks_is_refused_likewise(option, message, folder, monkeypatch, capsys):
    test_bad_input_is_reported_in_one_line_and_nothing_is_written([*FIT, option], message, folder, monkeypatch, capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(folder, monkeypatch, capsys):
    message = r"^`trainer.accelerator` gpu, .*cannot be had here: No supported gpu backend found"
    args = [*FIT, "--trainer.accelerator=gpu"]
    test_bad_input_is_reported_in_one_line_and_nothing_is_written(args, message, folder, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "FEDLIT_FIT__TRAINER__NUM_ROUND",
            "3",
            r"^`trainer.num_round` is not an option. Did you mean `trainer.num_rounds`\? "
            r"\(FEDLIT_FIT__TRAINER__NUM_ROUND of the environment\)$",
        ),
        ("FEDLIT_FIT__TRAINER__SEEDS__X", "3", r"^`trainer.seeds.x` is not an option.*FEDLIT_FIT__TRAINER__SEEDS__X"),
        (
            "FEDLIT_FIT__MODEL__INIT_ARGS__NU",
            "1",
            r"^`model.nu` is not an option. \(FEDLIT_FIT__MODEL",
        ),
        (
            "FEDLIT_FIT__TRAINER__NUM_ROUNDS",
            "x",
            r"^`trainer.num_rounds`: Expected int. Got value: x \(FEDLIT_FIT__TRAINER__NUM_ROUNDS",
        ),
        ("FEDLIT_FTI__TRAINER__NUM_ROUNDS", "3", r"^`FEDLIT_FTI__TRAINER__NUM_ROUNDS` names no command; variables are"),
        ("FEDLIT_CONFIG", "run.yaml", r"^`FEDLIT_CONFIG` names no command; variables are such as FEDLIT_FIT__CONFIG"),
        ("FEDLIT_FIT__CONFIG", "no.yaml", r"^`FEDLIT_FIT__CONFIG`: `--config no.yaml`: there is no such file here"),
    ],
)
def test_what_the_environment_says_is_refused_by_name(variable, value, message, folder, monkeypatch, capsys):
    monkeypatch.setenv(variable, value)
    test_bad_input_is_reported_in_one_line_and_nothing_is_written(FIT, message, folder, monkeypatch, capsys)


@pytest.mark.parametrize(("logger", "package"), [("WandbLogger", "wandb"), ("MLFlowLogger", "mlflow")])
def test_a_logger_whose_package_is_missing_is_refused_with_what_to_install(
    logger, package, folder, monkeypatch, capsys
):
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    message = rf"Requirement '{package}.*' not met. HINT: Try running `pip install -U '{package}"
    args = [*FIT, f"--trainer.logger={logger}"]
    test_bad_input_is_reported_in_one_line_and_nothing_is_written(args, message, folder, monkeypatch, capsys)
