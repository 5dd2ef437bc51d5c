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
LOCAL = ["--config", "local.yaml"]
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


class Unknown(FedAvg):
    def __init__(self, network: NetworkFactory, optimizer: "OptimizerCallable"):
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
    "": r"^give a command: fit, validate, test, predict or adapt",
    "fti": r"^'fti' is no command; give fit, validate, test, predict or adapt",
    "fit": r"^`model` must be given",
    "fit --config": r"^argument -c/--config: expected one argument",
    "fit --config fedavg_fashoin.yaml": r"^`--config fedavg_fashoin.yaml`: .*did you mean fedavg_fashion.yaml\?$",
    "fit --config .": r"^`--config .`: there is no such file here, nor such a recipe; `fedlit recipes` lists",
    "fit --config broken.yaml": r"^`--config broken.yaml` must be YAML, but in line 2: a comma or the closing `}` is",
    "fit --config indented.yaml": r"`--config indented.yaml` must be YAML, but in line 3: it is indented too far, or ",
    "fit --config outdented.yaml": r"but in line 3: its indentation is that of no line above.$",
    "fit --config tab.yaml": r"`--config tab.yaml` must be YAML, but in line 2: it is indented by a tab; take spaces.$",
    "fit --config=toy.npz": r"^`--config toy.npz` must be YAML, but: not a text file",
    "fit --config list.yaml": r"^`--config list.yaml` must hold options by name, such as `trainer:`, got a list",
    "fit --config twice.yaml": r"^`--config twice.yaml` must be YAML, but in line 3: 'num_rounds' stands twice",
    "fit --config empty.yaml": r"^`--config empty.yaml` must hold options by name.*got nothing",
    "fit key.yaml": r"^a recipe needs `--config` before it: --config key.yaml.$",
    "fit --config key.yaml": r"^`trainer.num_round` is not an option. Did you mean `trainer.num_rounds`\?$",
    "fit --config data_key.yaml": r"^`data.num_client` is not an option. Did you mean `data.num_clients`\?$",
    "fit --config model_key.yaml": r"^`model.optimiser` is not an option. Did you mean `model.optimizer`\?$",
    "fit --config type.yaml": r"^`data.num_clients`: expected int, got 'three'",
    "fit --config network.yaml": r"^`model.network`: there is no 'MPL' in fedlit.networks. .* `fedlit.networks.MLP`\?$",
    "fit --config client_networks.yaml": r"^`model.client_networks` must have one entry per client, 3, got 2",
    "fit --config client_optimizers.yaml": r"^`model.client_optimizers` names client 7, but the clients are 0 to 2",
    "--config run.yaml fit": r"^options come after the command: fedlit fit --config",
    "fit --model FedAvgg": r"^`model`: there is no class 'FedAvgg'. Did you mean `FedAvg`\?$",
    "fit --model nowhere.Mine": r"^`model`: there is no module 'nowhere'.$",
    "fit --model own_method.Half": r"^`model`: there is no module 'own_method'. Did you mean `own_methods`\?$",
    "fit --model own_methods.Halv": r"^`model`: there is no 'Halv' in own_methods. Did you mean `own_methods.Half`\?$",
    "fit --model colorsys.Half": r"^`model`: there is no 'Half' in colorsys. colorsys.py is hidden by an inst",
    "fit --config beside.yaml": r"^`model.network.hidden` must stand below `init_args`, not beside `class_path`.$",
    "fit --config alfa.yaml": r"^`data.partition.alfa` is not an option. Did you mean `data.partition.alpha`\?$",
    "fit --config run.yaml --trainer.clients_per_round 2": r"is not an option. Did you mean `trainer.fraction_fit`\?$",
    "fit --config run.yaml --learning_rate 0.1": r"^`--learning_rate` is not .*Did you mean `model.optimizer.lr`\?$",
    "fit --config run.yaml --model.lr 0.1": r"^`model.lr` is not an option. Did you mean `model.optimizer.lr`\?$",
    "fit --config run.yaml --trainer.gpus 1": r"Did you mean `trainer.accelerator` or `trainer.devices`\?$",
    "fit --config run.yaml --trainer.batch_size 8": r"^`trainer.batch_size` .*Did you mean `data.batch_size`\?$",
    "fit --config run.yaml --max_epochs 8": r"Did you mean `trainer.num_rounds` or `trainer.local_epochs`\?$",
    "fit --config hiden.yaml": r"^`model.network.hiden` is not an option. Did you mean `model.network.hidden`\?$",
    "fit --model slip.Mine": r"^`model`: cannot use slip.Mine: .*\(slip.py, line 1\)",
    "fit --model torch.nn.Linear": r"^`model`: expected a FederatedModule, got torch.nn.Linear",
    "fit --config untyped.yaml": (
        r"^`model.network` and `model.optimizer`: annotate in `__init__` of own_methods.Untyped what .*: "
        r"`network: NetworkFactory` \(fedlit.methods\), `optimizer: OptimizerCallable` \(lightning.pytorch.cli\).$"
    ),
    "fit --config half.yaml": r"^`model.optimizer`: annotate in `__init__` of own_methods.Half .*: `optimizer: Optimiz",
    "fit --config unknown.yaml": r"^`model.optimizer`: annotate in `__init__` of own_methods.Unknown .*Optimiz",
    "fit --model own_methods.Half --model.network=fedlit.networks.MLP --model.optimizer=SGD": (
        r"^`model.optimizer`: annotate in `__init__` of own_methods.Half .*`optimizer: OptimizerCallable`"
    ),
    "fit --model.network.help LeNet5": r"^`--model.network.help` is not an option. Name the method before it: --model",
    "fit --data.nothing.help LeNet5": r"^`--data.nothing.help` is not an option.$",
    "fit --config two.yaml": r"^`model`: `configure_optimizers` of Two of client 0: automatic optimisation takes one",
    "fit --config tuple.yaml": r"^`model`: the network of client 0 must give one tensor, got a tuple",
    "fit --config asks.yaml": r"^KeyError: 'x' \(FEDLIT_DEBUG=1 shows where\)$",
    "fit --model FedAvg": r"^`model.network`, `model.optimizer` must be given",
    "fit --model FedAvg --model.network MLP": r"^`model.network`: several classes are named MLP; give one in full: ",
    "predict --config run.yaml --client 3": r"^`--client` must be 0 to 2, got 3",
    "predict --config run.yaml --images shapes.npz": r"^`--images` shapes.npz must hold an array `images`, got ",
    "predict --config run.yaml --images nowhere": r"^`--images` must be an .npz or a folder of images, got nowhere",
    "predict --config local.yaml": r"^LocalOnly has no global model; name one of its clients with `--client`",
    "test --config run.yaml --ckpt_path auto": r"^`--ckpt_path auto` is for `fit`, .*; give a file, `last` or `best`",
    "test --config run/config.yaml --ckpt_path=auto": r"^`--ckpt_path auto` is for `fit`",
    f"validate --config local.yaml {CHECKPOINT}": OTHER + r"method differs \(FedAvg there, LocalOnly here\)",
    "validate --config local.yaml --ckpt_path=local/checkpoints/last.ckpt --model.network.hidden=[9]": (
        r"^`--ckpt_path` local/checkpoints/last.ckpt is of another experiment: its personal state differs"
    ),
}
TRAINER = {
    "--trainer.num_round=3": r"^`trainer.num_round` is not an option. Did you mean `trainer.num_rounds`\?$",
    "--trainer.aggregator=median": r"^`trainer.aggregator`: there is no class 'median'. Did you mean `Median`\?$",
    "--trainer.aggregator=own_methods.nope": r"^`trainer.aggregator`: there is no 'nope' in own_methods.$",
    "--trainer.aggregator=Krum": r"^`trainer.aggregator` Krum needs 5 uploads in a round, but a round has 3 clients",
    "--trainer.aggregator=Krum --trainer.aggregator.num_bad=0": r"^`trainer.aggregator.num_bad` must .* 0.$",
    "--trainer.privacy=ClientLevelDP --trainer.privacy.clip=0": r"^`trainer.privacy.clip` is a norm .* 0.0.$",
    "--trainer.server_optimizer=torch.optim.Optimizer": r"^`trainer.server_optimizer.defaults` must be given.$",
    "--model.optimizer torch.optim.Optimizer": r"^`model.optimizer.defaults` must be given.$",
    "--trainer.num_rounds=many": r"^`trainer.num_rounds`: expected int, got 'many'",
    "--trainer.num_rounds=0": r"^`trainer.num_rounds` must be at least 1, got 0",
    "--trainer.num_rounds=-1": r"^`trainer.num_rounds` must be at least 1, got -1",
    "--trainer.fraction_fit=0": r"^`trainer.fraction_fit` must lie in \(0, 1\], got 0.0",
    "--trainer.fraction_fit=2": r"^`trainer.fraction_fit` must lie in \(0, 1\], got 2.0",
    "--trainer.personal_memory=-1": r"^`trainer.personal_memory` must be at least 0 gigabytes, got -1.0",
    "--trainer.local_epochs=1 --trainer.local_steps=2": r"^`trainer.local_epochs` and `trainer.local_steps` exclude",
    "--trainer.batch_norm=global": r"^`trainer.batch_norm`: expected one of \['average', 'local'\], got 'global'",
    "--trainer.min_clients=4": r"^`trainer.min_clients` is 4, but `data.num_clients` is 3",
    "--trainer.precision=12": r"`trainer.precision` 12 cannot be had here: .*Allowed precision values",
    "--trainer.accelerator=abacus": r"^`trainer.accelerator` abacus, .*Available names are: .*cpu",
    "--trainer.devices=0": r"`trainer.devices` 0, .*cannot be had here: ",
    "--trainer.callbacks=LearningRateMonitor": r"^`trainer.callbacks`: LearningRateMonitor needs .*; instead, ",
    "--trainer.callbacks=EarlyStop": r"^`trainer.callbacks`: there is no class 'EarlyStop'",
    "--trainer.lr_schedule=torch.optim.lr_scheduler.ReduceLROnPlateau": r"^`trainer.lr_schedule`: .*waits for a metric",
    "--trainer.lr_schedule=StepLR --trainer.lr_schedule.step_size=0": r"^`trainer.lr_schedule`: .*modulo by zero",
    "--trainer.metrics={x:torch.nn.Linear}": r"^`trainer.metrics`: expected .*Metric.*, got .*x:torch.nn.Linear",
    "--trainer.monitor=acc/globl": r"^`trainer.monitor` must be metric/model_on_data, .*, got acc/globl",
    "--trainer.monitor=acc/globl_on_own": r"^`trainer.monitor` names the model 'globl', but there are global, personal",
    "--trainer.default_root_dir=toy.npz": r"^`trainer.default_root_dir` toy.npz cannot hold a run: Not a directory",
    "--seed_everything=-1": r"^`seed_everything` must be 0 to 4294967295, got -1",
    "--seed_everything=x": r"^`seed_everything`: expected bool, int, got 'x'",
    "--ckptpath=x": r"^`--ckptpath` is not an option. Did you mean `--ckpt_path`\?$",
    "--num_rounds=3": r"^`--num_rounds` is not an option. Did you mean `trainer.num_rounds`\?$",
    "--trainer.lr_schedule=StepLR": r"^`trainer.lr_schedule.step_size` must be given.$",
    "--ckpt_path=nowhere.ckpt": r"^`--ckpt_path` must be a checkpoint file, `last` or `best`, got nowhere.ckpt",
    "--ckpt_path=run.yaml": r"^`--ckpt_path` run.yaml is not a checkpoint that can be read safely",
    "--ckpt_path=foreign.ckpt": r"^`--ckpt_path` foreign.ckpt is not a checkpoint of fedlit",
    "--ckpt_path=run/checkpoints/damaged.ckpt": r"^`--ckpt_path` run/checkpoints/damaged.ckpt is damaged",
    "--model=FML --model.untrained_clients=[99]": r"^`model.untrained_clients` names client 99, .* are 0 to 2",
    "--ckpt_path=last": r"^`--ckpt_path last` looks for a run, but there is none in lightning_logs",
    f"{CHECKPOINT} --data.num_clients=4": OTHER + r"num_clients differs \(3 there, 4 here\)",
    f"{CHECKPOINT} --seed_everything=5": OTHER + r"seed differs \(0 there, 5 here\)",
    f"{CHECKPOINT} --data.partition_seed=5": OTHER + r"partition differs",
    f"{CHECKPOINT} --model.network.hidden=[9]": OTHER + r"shared state differs",
}
MODEL = {
    "--model.weightin=uniform": r"^`model.weightin` is not an option. Did you mean `model.weighting`\?$",
    "--model.network=fedlit.networks.LeNet6": r"^`model.network`: there is no 'LeNet6' in fedlit.networks. Did you",
    "--model.network=torch.relu": r"^`model.network`: expected what builds a Module, got torch.relu",
    "--model.network.hiden=3": r"^`model.network.hiden` is not an option. Did you mean `model.network.hidden`\?$",
    "--model.network.num_classes=4": r"^`model`: the network of client 0 must give 3 outputs, .*got shape \[4\]",
    "--model.network.image_size=9": r"^`model`: the network of client 0 cannot take inputs of shape \[1, 8, 8\]",
    "--model.network=LeNet5 --model.network.image_size=8": r"^`model.network.image_size` must be at least 16",
    "--model.optimizer=SGDD": r"^`model.optimizer`: there is no class 'SGDD'. Did you mean `SGD`\?$",
    "--model.optimizer.lr=-1": r"^`model.optimizer` of client 0: Invalid learning rate: -1.0",
    "--model.optimizer.lr=fast": r"^`model.optimizer.lr`: expected float, Tensor, got 'fast'",
    "--model.optimizer.momentun=0.9": r"^`model.optimizer.momentun` is not .* mean `model.optimizer.momentum`\?$",
}
PROGRAMMES = {
    "--model=MixtureOfExperts --model.epochs=0": r"^`model.epochs` must be at least 1, got 0",
    "--model=MixtureOfExperts --model.mix=log": r"^`model.mix`: expected one of \['log_prob', .*\], got 'log'",
    "--model=DLAD": r"^Stage 'density' needs a public pool; set `data.public`, such as 0.8",
    "--model=DLAD --data.public=1": r"^`data.public` must lie in \[0, 1\) or be `valid`, got 1.0",
    "--model=DLAD --data.public=valid": r"^`data.public: valid` needs a data set with a `valid` part",
    "--model=DLAD --model.temperature=0": r"^`model.temperature` must be above 0, got 0.0",
    "--model=DLAD --model.aggregator=mean": r"^`model.aggregator`: expected one of \['adaptive', .*\], got 'mean'",
    "--model=DLAD --data.public=0.5 --model.earlier=no.ckpt": r"^`model.earlier` must be a checkpoint file.* no.ckpt",
}
DATA = {
    "--data.alpha=3": r"^`data.alpha` is not an option. Did you mean `data.partition.alpha`\?$",
    "--data.alpha=3 --model.alpha=0.5": r"^`data.alpha` is not an option. Did you mean `data.partition.alpha`\?$",
    "--data.dataset=nowhere.csv": r"^`data.dataset` nowhere.csv: there .* as data/nowhere.csv\.$",
    "--data.test_size=1.5": r"^`data.test_size` is a fraction in \(0, 1\), got 1.5",
    "--data.num_workers=-1": r"^`data.num_workers` must be at least 0, got -1",
    "--data.in_memory=perhaps": r"^`data.in_memory`: expected bool, one of \['auto'\], got 'perhaps'",
    "--data.in_memory=false": r"^`data.in_memory: false` has no meaning for `data.dataset` toy.npz, which is arrays",
    "--data.target=label": r"^`data.target` has no meaning for `data.dataset` toy.npz, which is arrays",
    "--data.collate_fn=nowhere.pad": r"^`data.collate_fn`",
    "--data.num_client=3": r"^`data.num_client` is not an option. Did you mean `data.num_clients`\?$",
    "--data.num_clients=61": r"^`data.num_clients`: 61 clients .* need 61 samples, there are 60",
    "--data.validation=tset": r"^`data.validation`: expected one of \['train', 'test', 'reserve', 'pool'\], got 'tset'",
    "--data.validation=reserve --data.val_size=1.5": r"^`data.val_size` with `data.validation: reserve` .*, got 1.5",
    "--data.val_size=20": r"^`data.val_size`=20.0 leaves client 0 none of its 20 training samples",
    "--data.std=0": r"^`data.std` must be above 0, got 0.0",
    "--data.drop_last=true --data.batch_size=64": r"^`data.drop_last` leaves no client a batch in stage 'federate'",
    "--data.opt_out=1.5": r"^`data.opt_out` is a fraction in \[0, 1\], got 1.5",
    "--data.opt_out=[7]": r"^`data.opt_out` names client 7, but the clients are 0 to 2",
    "--data.opt_out=1": r"^No client may train in stage 'federate': all have opted out \(see `data.opt_out`\)",
    "--data.unseen_clients=3": r"^`data.unseen_clients` must leave a client to train: 0 to 2, got 3",
    "--data.dataset=fashion_mnits": r"^`data.dataset` must be one of .*did you mean 'fashion_mnist'\?$",
    "--data.dataset=nowhere": r"^`data.dataset` must be one of .* or a folder of images, got 'nowhere'; there is no",
    "--data.dataset=run.yaml": r"^`data.dataset` must be one of .* or a folder of images, got 'run.yaml'\.$",
    "--data.dataset=nowhere.npz": r"^`data.dataset` nowhere.npz: there is no such file here, .* as data/nowhere.npz\.$",
    "--data.dataset=shapes.npz": r"^`test_images` of `data.dataset` shapes.npz must match .* uint8 \[30, 1, 9, 9\]",
    "--data.dataset=nan.npz": r"^`train_images` of `data.dataset` nan.npz .*, got nan at \[1, 2\], the only such",
    "--data.dataset=key.npz": r"^key.npz must hold the arrays .*; missing: test_labels",
    "--data.dataset=float.npz": r"^`train_labels` of `data.dataset` float.npz must be integers .*got float64 \[60\]",
}
PARTITIONS = [
    (("Shards", {"per_client": 30}), r"^`data.partition.per_client`=30 .* 120 shards, .* from 60 samples"),
    (
        ("Shards", {"mode": "per_class"}),
        r"makes 8 shards; `data.partition.mode`='per_class' needs a multiple of the 3",
    ),
    (
        ("Majority", {"samples_per_client": 50}),
        r"^`data.partition.samples_per_client`=50 .* needs 73 samples of class 0, there are 20",
    ),
    (("Dirichlet", {"min_samples": 21}), r"^`data.partition.min_samples`: .*need 84 samples, there are 60"),
    (("Dirichlet", {"alpha": -1}), r"^`data.partition.alpha` must be above 0, got -1.0"),
    (("Quantity", {}), r"^`data.partition`: Quantity takes alpha or power, one of them"),
    (("OverTime", {"slices": 0}), r"^`data.partition.slices` must be at least 1, got 0"),
    (
        ("ByColumn", {}),
        r"^`data.partition`: nobody says whose the training samples are: name their column in `data.client`",
    ),
    (("ByColumn", {"clients": "no.txt"}), r"^`data.partition.clients` must be .*there is no file no.txt"),
    (("Dirichlt", {}), r"^`data.partition`: there is no class 'Dirichlt'. Did you mean `Dirichlet`\?$"),
    (("fedlit.data.Saved", {"path": "no.csv"}), r"^`data.partition.path` must be .*there is no file no.csv"),
    (("fedlit.data.Saved", {"path": "two.csv"}), r"^`two.csv` assigns 2 clients, but `data.num_clients` is 4"),
]
AGAIN = {  # of a kind that another line shows; tried by the slow tests
    "fit --config .",
    "fit --config list.yaml",
    "fit --config data_key.yaml",
    "fit --config model_key.yaml",
    "fit --config client_optimizers.yaml",
    "fit --config half.yaml",
    "fit --config unknown.yaml",
    "fit --data.nothing.help LeNet5",
    "predict --config run.yaml --images nowhere",
    "test --config run/config.yaml --ckpt_path=auto",
    "--trainer.aggregator=own_methods.nope",
    "--trainer.aggregator=Krum --trainer.aggregator.num_bad=0",
    "--trainer.privacy=ClientLevelDP --trainer.privacy.clip=0",
    "--model.optimizer torch.optim.Optimizer",
    "--trainer.num_rounds=many",
    "--trainer.num_rounds=-1",
    "--trainer.fraction_fit=0",
    "--trainer.personal_memory=-1",
    "--trainer.min_clients=4",
    "--trainer.precision=12",
    "--trainer.devices=0",
    "--trainer.callbacks=EarlyStop",
    "--trainer.lr_schedule=StepLR --trainer.lr_schedule.step_size=0",
    "--trainer.metrics={x:torch.nn.Linear}",
    "--trainer.monitor=acc/globl",
    "--seed_everything=x",
    "--ckptpath=x",
    "--ckpt_path=run.yaml",
    "--model=FML --model.untrained_clients=[99]",
    f"{CHECKPOINT} --seed_everything=5",
    f"{CHECKPOINT} --data.partition_seed=5",
    "--model.weightin=uniform",
    "--model.network=fedlit.networks.LeNet6",
    "--model.network.hiden=3",
    "--model.network.image_size=9",
    "--model.optimizer=SGDD",
    "--model.optimizer.lr=fast",
    "--model=MixtureOfExperts --model.epochs=0",
    "--model=MixtureOfExperts --model.mix=log",
    "--model=DLAD --data.public=1",
    "--model=DLAD --model.temperature=0",
    "--model=DLAD --model.aggregator=mean",
    "--data.alpha=3 --model.alpha=0.5",
    "--data.test_size=1.5",
    "--data.num_workers=-1",
    "--data.in_memory=perhaps",
    "--data.target=label",
    "--data.num_client=3",
    "--data.validation=tset",
    "--data.validation=reserve --data.val_size=1.5",
    "--data.std=0",
    "--data.opt_out=1.5",
    "--data.unseen_clients=3",
    "--data.dataset=nowhere.npz",
    "--data.dataset=shapes.npz",
    "--data.dataset=float.npz",
    "--data.num_clients=4 --data.partition=Shards --data.partition.mode=per_class",
    "--data.num_clients=4 --data.partition=Dirichlet --data.partition.min_samples=21",
    "--data.num_clients=4 --data.partition=Dirichlet --data.partition.alpha=-1",
    "--data.num_clients=4 --data.partition=OverTime --data.partition.slices=0",
    "--data.num_clients=4 --data.partition=ByColumn --data.partition.clients=no.txt",
    "--data.num_clients=4 --data.partition=Dirichlt",
}
CASES = [
    *((line.split(), told) for line, told in COMMANDS.items()),
    *((FIT + line.split(), told) for line, told in (TRAINER | MODEL | PROGRAMMES | DATA).items()),
    *(([*FIT, "--data.num_clients=4", *partition(name, **options)], told) for (name, options), told in PARTITIONS),
]


def line_of(args: list[str]) -> str:
    """As it stands in the tables above."""
    return " ".join(args).removeprefix(" ".join(FIT) + " ")


def cases() -> list:
    found = []
    for args, told in CASES:
        marks = [pytest.mark.slow] if line_of(args) in AGAIN else []
        found.append(pytest.param(args, told, id=" ".join(args).replace("/", "-"), marks=marks))
    return found


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
        content[len(content) // 2] ^= 1
        Path("run/checkpoints/damaged.ckpt").write_bytes(content)
    return place


def write_files() -> None:
    write_recipe()
    write_recipe("key.yaml", ("num_rounds", "num_round"))
    write_recipe("data_key.yaml", ("num_clients", "num_client"))
    write_recipe("model_key.yaml", ("    optimizer", "    optimiser"))
    write_recipe("type.yaml", ("num_clients: 3", "num_clients: three"))
    write_recipe("network.yaml", ("networks.MLP", "networks.MPL"))
    write_recipe("hiden.yaml", ("hidden", "hiden"))
    write_recipe("beside.yaml", (", init_args: {image_size: 8, num_classes: 3, hidden: [8]}", ", hidden: [8]"))
    dirichlet = "{class_path: fedlit.partition.Dirichlet, init_args: {alfa: 1}}"
    write_recipe("alfa.yaml", ("num_clients: 3", f"num_clients: 3, partition: {dirichlet}"))
    write_recipe("local.yaml", ("FedAvg", "LocalOnly"))
    networks = ("    optimizer", f"    client_networks: [{NETWORK}, {NETWORK}]\n    optimizer")
    write_recipe("client_networks.yaml", ("FedAvg", "LocalOnly"), networks)
    optimizers = "    client_optimizers: {7: {class_path: torch.optim.SGD, init_args: {lr: 0.2}}}\n    optimizer"
    write_recipe("client_optimizers.yaml", ("    optimizer", optimizers))
    Path("broken.yaml").write_text("trainer: {num_rounds: 2\n model: [")
    Path("indented.yaml").write_text("trainer:\n  num_rounds: 2\n   local_epochs: 3\n")
    Path("outdented.yaml").write_text("trainer:\n  num_rounds: 2\n local_epochs: 3\n")
    Path("tab.yaml").write_text("trainer:\n\tnum_rounds: 2\n")
    Path("list.yaml").write_text("- 1\n")
    Path("twice.yaml").write_text("trainer:\n  num_rounds: 3\n  num_rounds: 4\n")
    Path("empty.yaml").write_text("# nothing\n")
    Path("own_methods.py").write_text(OWN_METHODS)
    Path("colorsys.py").write_text(OWN_METHODS)
    for recipe in ("untyped", "half", "unknown", "two", "asks"):
        write_recipe(f"{recipe}.yaml", ("fedlit.methods.FedAvg", f"own_methods.{recipe.title()}"))
    write_recipe("tuple.yaml", ("fedlit.networks.MLP, init_args: {image_size: 8, num_classes: 3, hidden: [8]}", PAIR))
    Path("slip.py").write_text("class Mine(:\n")
    Path("two.csv").write_text("client,split,index,label,shared\n0,train,0,0,1\n1,train,1,1,1\n")
    write_npz("shapes.npz", test_images=np.zeros((30, 9, 9), dtype=np.uint8))
    write_npz("key.npz", test_labels=None)
    write_npz("float.npz", train_labels=np.zeros(60))
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


def test_what_is_tried_again_stands_in_a_table():
    assert {line_of(args) for args, _ in CASES} >= AGAIN


@pytest.mark.parametrize(("args", "told"), cases())
def test_bad_input_is_told_in_one_line_and_nothing_is_written(args, told, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["fedlit"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    said = refusal(list(args), capsys)
    assert re.search(told, said), said
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    assert not (folder / "lightning_logs").exists()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (f"--trainer.metrics={{acc: {F1}}}", r"^`trainer.metrics` must leave acc and loss to the federation"),
        (f"--trainer.metrics={{f1: {F1}}}", r"^`trainer.metrics.f1` cannot score 3 classes by one number: "),
        (
            "--trainer.metrics={x: {class_path: torch.nn.Linear}}",
            r"^`trainer.metrics`: expected a Metric, got .*Linear",
        ),
        ("--trainer.client_epochs=[1, 2]", r"^`trainer.client_epochs`: expected dict\[int, int\], got '\[1, 2\]'"),
        ("--trainer.client_epochs={1: x}", r"^`trainer.client_epochs`: expected dict\[int, int\], got \"\{1: 'x'\}\""),
        ("--trainer.client_epochs={7: 2}", r"^`trainer.client_epochs` names client 7, but the clients are 0 to 2"),
        ("--trainer.client_epochs={1: 0}", r"^`trainer.client_epochs\[1\]` must be at least 1, got 0"),
    ],
)
def test_a_value_with_blanks_is_refused_likewise(option, told, folder, monkeypatch, capsys):
    test_bad_input_is_told_in_one_line_and_nothing_is_written([*FIT, option], told, folder, monkeypatch, capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(folder, monkeypatch, capsys):
    told = r"^`trainer.accelerator` gpu, .*cannot be had here: No supported gpu backend found"
    args = [*FIT, "--trainer.accelerator=gpu"]
    test_bad_input_is_told_in_one_line_and_nothing_is_written(args, told, folder, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
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
            r"^`model.init_args.nu` is not an option. \(FEDLIT_FIT__MODEL",
        ),
        (
            "FEDLIT_FIT__TRAINER__NUM_ROUNDS",
            "x",
            r"^`trainer.num_rounds`: expected int, got 'x'. \(FEDLIT_FIT__TRAINER__NUM_ROUNDS",
        ),
        ("FEDLIT_FTI__TRAINER__NUM_ROUNDS", "3", r"^`FEDLIT_FTI__TRAINER__NUM_ROUNDS` names no command; variables are"),
        ("FEDLIT_CONFIG", "run.yaml", r"^`FEDLIT_CONFIG` names no command; variables are such as FEDLIT_FIT__CONFIG"),
        ("FEDLIT_FIT__CONFIG", "no.yaml", r"^`FEDLIT_FIT__CONFIG`: `--config no.yaml`: there is no such file here"),
    ],
)
def test_what_the_environment_says_is_refused_by_name(variable, value, told, folder, monkeypatch, capsys):
    monkeypatch.setenv(variable, value)
    test_bad_input_is_told_in_one_line_and_nothing_is_written(FIT, told, folder, monkeypatch, capsys)


@pytest.mark.parametrize(("logger", "package"), [("WandbLogger", "wandb"), ("MLFlowLogger", "mlflow")])
def test_a_logger_whose_package_is_missing_is_refused_with_what_to_install(
    logger, package, folder, monkeypatch, capsys
):
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    told = rf"^`trainer.logger: {logger}` needs the package {package}: pip install {package}$"
    args = [*FIT, f"--trainer.logger={logger}"]
    test_bad_input_is_told_in_one_line_and_nothing_is_written(args, told, folder, monkeypatch, capsys)
