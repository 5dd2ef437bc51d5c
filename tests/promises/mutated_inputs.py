"""Options and files as nobody means them: `python tests/promises/mutated_inputs.py [NUMBER [SEED]]`."""

import os
import sys
import tempfile
from collections.abc import Iterator
from inspect import Parameter, isclass, signature
from pathlib import Path
from random import Random

import torch
from forked_command import Case, run
from junk_files import FILE_CASES, write_junk
from odd_tables import table_cases, write_tables

from fedlit import augment, callbacks, methods, partition, server_optimizers, tasks
from fedlit.data import FederatedData, Saved
from fedlit.federation import Federation
from fedlit.methods.ramp import Ramp

LONG = 100_000
NUMBERS = [".nan", ".inf", "-.inf", "-1", "0", "1", "0.5", "1e30", "1e300", "-1e300", "1e23", "1e8", "1e-320"]
NUMBERS += [str(2**63), str(-(2**63)), "9" * 400, "1e999", "0x10", "1_0", "1:30", "٣", "true", "null"]
TEXTS = [
    "",
    " ",
    "~",
    "no",
    "[]",
    "{}",
    "[1, 2]",
    "{a: 1}",
    "{1: .nan}",
    "[[]]",
    "[.nan]",
    "{{",
    "'",
    "%s",
    "*",
    "&a [*a]",
    "!x",
]
TEXTS += [
    "ünï😀",
    "\udcff\udcfe",
    "a\nb",
    "\x1b[31mred",
    "\x7f",
    "x" * LONG,
    "{x: " * 2000,
    "[" * 5000,
    "${x}",
    "a`b`c",
]
TEXTS += ["!!python/object/apply:os.system ['touch pwned']", "!!binary aGk="]
PATHS = [
    "folder",
    "/dev/zero",
    "/dev/full",
    "fifo",
    "nowhere/x",
    "\udcff\udcfe",
    "toy.npz",
    "junk.npz",
    "../..",
    "/proc/self/mem",
]
CLASSES = [
    "Density",
    "Student",
    "fedlit.methods.dlad.Density",
    "fedlit.methods.dlad.Student",
    "fedlit.methods.moe.Mixture",
]
CLASSES += [
    "fedlit.methods.FederatedModule",
    "fedlit.partition.Partition",
    "fedlit.augment.Augmentation",
    "os.system",
    "fedlit",
]
CLASSES += [
    "torch",
    "builtins.print",
    "builtins.dict",
    "torch.optim.LBFGS",
    "torch.optim.SparseAdam",
    "torch.optim.Optimizer",
]
CLASSES += [
    "torch.nn.Module",
    "torch.nn.Identity",
    "A" * 200_000,
    "a." * LONG,
    ".",
    "..",
    "fedlit.",
    ".fedlit",
    "1.2",
    "fedlit.networks",
]
CLASSES += [
    "torch.optim.lr_scheduler.ReduceLROnPlateau",
    "torch.optim.lr_scheduler.LRScheduler",
    "lightning.pytorch.Trainer",
]
VALUES = [*NUMBERS, *TEXTS, *PATHS, *CLASSES]

FAMILIES = {  # method: its options in a recipe
    "FML": "personal: NETWORK, meme: NETWORK",
    "FedAvg": "network: NETWORK",
    "FedProx": "network: NETWORK, mu: 0.1",
    "FedMMD": "network: NETWORK, lam: 0.1",
    "FedFusion": "network: NETWORK, operator: conv",
    "MixtureOfExperts": "network: NETWORK, epochs: 2",
    "DLAD": "network: NETWORK, client_epochs: 1, density_epochs: 1, distil_epochs: 1",
    "LocalOnly": "network: NETWORK",
    "FineTuned": "network: NETWORK, finetune_epochs: 1",
    "SCAFFOLD": "network: NETWORK",
    "FedNova": "network: NETWORK",
    "FedDyn": "network: NETWORK",
    "FedBN": "network: NETWORK",
    "FedPer": "network: NETWORK",
    "FedRep": "network: NETWORK, head_epochs: 1",
    "LGFedAvg": "network: NETWORK",
    "Ditto": "network: NETWORK",
    "APFL": "network: NETWORK",
    "PFedMe": "network: NETWORK",
    "PerFedAvg": "network: NETWORK",
    "MOON": "network: NETWORK, projection: 4",
    "FedProto": "network: NETWORK, lam: 0.1",
    "FD": "network: NETWORK",
    "FedMD": "network: NETWORK, subset: 8, public_epochs: 1, private_epochs: 1",
    "FedDF": "network: NETWORK",
}
ON_A_POOL = ("DLAD", "FedMD", "FedDF")
WITHOUT_MOMENTUM = ("SCAFFOLD",)
NETWORK = "{class_path: fedlit.networks.CNN1, init_args: {in_channels: 1, image_size: 12, num_classes: 3, hidden: 8}}"
RECIPE = """\
data:
  class_path: fedlit.data.FederatedData
  init_args:
    dataset: toy.npz
    num_clients: 3
    batch_size: 8
    PUBLIC
    partition: {class_path: fedlit.partition.Dirichlet, init_args: {alpha: 0.9, min_samples: 5}}
model:
  class_path: fedlit.methods.METHOD
  init_args: {OPTIONS, optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1, momentum: 0.9}}}
trainer: {num_rounds: 2, accelerator: cpu, report: false}
"""
OF_OWN_DATA = ("target", "features", "client", "test_size", "image_size", "in_memory", "num_workers", "collate_fn")
NEWCOMER = "newcomer"  # FML with clients that join later
OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
SCHEDULES = (
    torch.optim.lr_scheduler.StepLR,
    torch.optim.lr_scheduler.CosineAnnealingLR,
    torch.optim.lr_scheduler.ExponentialLR,
)
GIVEN = {
    "num_classes": 3,
    "step_size": 2,
    "T_max": 2,
    "gamma": 0.5,
    "path": "dealt.csv",
    "samples_per_client": 5,
    "until": 0.5,
    "rounds": 2,
    "value": 0.5,
}
GIVEN_ELSEWHERE = {"self", "seed", "params", "optimizer", "train_dataset", "test_dataset", "foreach", "fused", "kwargs"}


def write_recipes(folder: Path) -> None:
    """A recipe of each family, and every file that a case names."""
    for method, options in FAMILIES.items():
        public = "public: 0.5" if method in ON_A_POOL else "val_size: 0.2"
        text = RECIPE.replace("PUBLIC", public).replace("METHOD", method).replace("OPTIONS", options)
        if method in WITHOUT_MOMENTUM:
            text = text.replace(", momentum: 0.9", "")
        (folder / f"{method}.yaml").write_text(text.replace("NETWORK", NETWORK))
    _write_own_data(folder)
    joining = (folder / "FML.yaml").read_text().replace("meme: ", "personal_from: server, meme: ")
    (folder / f"{NEWCOMER}.yaml").write_text(joining.replace("batch_size: 8", "batch_size: 8\n    unseen_clients: 1"))
    write_junk(folder)


def _write_own_data(folder: Path) -> None:
    """Recipes of a table and of a folder of images, and both."""
    linear = "{class_path: torch.nn.Linear, init_args: {in_features: 2, out_features: 3}}"
    coloured = NETWORK.replace("in_channels: 1", "in_channels: 3")
    for name, path, network in (("table", "table.csv", linear), ("images", "images", coloured)):
        text = RECIPE.replace("METHOD", "FedAvg").replace("OPTIONS", f"network: {network}")
        text = text.replace("dataset: toy.npz", f"dataset: {path}").replace("PUBLIC", "test_size: 0.2")
        if name == "table":
            text = text.replace("num_clients: 3", "num_clients: 3\n    features: [a, b]")
        (folder / f"{name}.yaml").write_text(text)
    write_tables(folder)


def options_of(kind: type) -> list[str]:
    """Names of its arguments."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    parameters = signature(kind).parameters.items()
    return [name for name, parameter in parameters if name not in GIVEN_ELSEWHERE and parameter.kind in kinds]


def concrete(module: object, base: type) -> list[type]:
    kinds = [kind for kind in vars(module).values() if isclass(kind) and issubclass(kind, base)]
    return [kind for kind in kinds if not getattr(kind, "__abstractmethods__", None)]


def nested_classes() -> Iterator[tuple[str, type]]:
    """Options that take a class, with each class that may stand there."""
    for kind in [*concrete(partition, partition.Partition), Saved]:
        yield "data.partition", kind
    for kind in concrete(augment, augment.Augmentation):
        yield "data.augmentation", kind
    for kind in OPTIMIZERS:
        yield "model.optimizer", kind
    for kind in SCHEDULES:
        yield "trainer.lr_schedule", kind
    for kind in (callbacks.StopAt, callbacks.Patience):
        yield "trainer.callbacks", kind
    for kind in (*concrete(server_optimizers, torch.optim.Optimizer), torch.optim.SGD):
        yield "trainer.server_optimizer", kind
    for kind in concrete(tasks, tasks.Task):
        yield "model.task", kind
    yield "model.alpha_ramp", Ramp


def targets() -> list[tuple[str, str, type | None]]:
    """Every option: of which recipe, its name as typed, and the class that it is an option of where that is nested."""
    found: list[tuple[str, str, type | None]] = []
    for prefix, kind in (("data", FederatedData), ("trainer", Federation)):
        found += [("FedAvg", f"{prefix}.{name}", None) for name in options_of(kind)]
    found += [(recipe, f"data.{name}", None) for recipe in ("table", "images") for name in OF_OWN_DATA]
    for family in FAMILIES:
        found += [(family, f"model.{name}", None) for name in ("network", *options_of(getattr(methods, family)))]
    for option, kind in nested_classes():
        family = "FML" if kind is Ramp else "FedAvg"
        found += [(family, f"{option}.{name}", kind) for name in options_of(kind)]
        found.append((family, option, None))
    found += [("FedAvg", "seed_everything", None), ("FedAvg", "ckpt_path", None), ("FedAvg", "model", None)]
    found += [("FedAvg", "data", None), ("FedAvg", "trainer", None), (NEWCOMER, "model.personal_from", None)]
    return list(dict.fromkeys(found))


def typed(family: str, option: str, kind: type | None, value: str) -> Case:
    """As arguments of the command line."""
    args = ["fit", "--config", f"{family}.yaml", "--trainer.fast_dev_run=true"]
    if kind is not None:
        parent, _, name = option.rpartition(".")
        name_of_kind = f"{kind.__module__}.{kind.__qualname__}"
        given = {key: GIVEN[key] for key in options_of(kind) if key in GIVEN and key != name}
        inner = ", ".join([f"{key}: {given[key]}" for key in given] + [f"{name}: {value}"])
        whole = f"{{class_path: {name_of_kind}, init_args: {{{inner}}}}}"
        if parent in ("data.augmentation", "trainer.callbacks"):
            whole = f"[{whole}]"
        return Case((*args, f"--{parent}={whole}"), (option, parent, "`model`", f"{name!r} must be given"))
    names = (option, "`model`: the network") if option == "model.network" else (option,)
    return Case((*args, f"--{option}={value}"), names)


def written(family: str, option: str, kind: type | None, value: str, folder: Path) -> Case:
    """As a file of its own on top of the recipe."""
    (option_of_case,) = typed(family, option, kind, value).args[-1:]
    name, _, text = option_of_case.removeprefix("--").partition("=")
    *above, last = name.split(".")
    if above and above[0] in ("data", "model"):
        above.insert(1, "init_args")
    content = f"{last}: {text}\n"
    for key in reversed(above):
        content = f"{key}:\n" + "".join(f"  {line}\n" for line in content.splitlines())
    path = folder / f"mutant_{abs(hash((family, option, value))) % 10**12}.yaml"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    args = ("fit", "--config", f"{family}.yaml", "--config", path.name, "--trainer.fast_dev_run=true")
    return Case(args, (option, option.rpartition(".")[0] or option, path.name, "`model`"))


def drawn_cases(number: int, seed: int, folder: Path) -> list[Case]:
    """So many mutated options; every option comes before one comes again."""
    draw = Random(seed)
    cases: list[Case] = []
    while len(cases) < number:
        order = targets()
        draw.shuffle(order)
        for family, option, kind in order[: number - len(cases)]:
            value = draw.choice(draw.choice([NUMBERS, NUMBERS, VALUES]))
            if option in ("trainer.devices", "trainer.num_nodes") and value in ("-1", "0x10", "1_0", "1:30"):
                continue  # legal: other processes, or machines that are waited for
            if draw.random() < 0.7:
                cases.append(typed(family, option, kind, value))
            else:
                cases.append(written(family, option, kind, value, folder))
    return cases


def failures(cases: list[Case], folder: Path, told: bool = True) -> list[str]:
    """What is wrong, a line for each case that has something; prints the figure."""
    found = []
    ends = []
    for case in cases:
        end = run(case, folder)
        ends.append(end)
        wrong = end.faults(case)
        if wrong:
            found.append(f"{case}: {'; '.join(wrong)}: {end.err[-500:]}")
            if told:
                print("FAULT", found[-1], flush=True)
    refused = sum(end.code == 2 for end in ends)
    worked = sum(end.code == 0 for end in ends)
    longest = max(end.seconds for end in ends)
    print(f"{len(cases)} mutated options and files: {refused} refused in one line or more, {worked} worked, ", end="")
    print(f"{len(found)} with something wrong; at most {longest:.1f} s each")
    return found


if __name__ == "__main__":
    number, seed = ([int(arg) for arg in sys.argv[1:]] + [600, 0])[:2] if len(sys.argv) < 3 else map(int, sys.argv[1:3])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        write_recipes(Path(name))
        cases = [*FILE_CASES, *table_cases(), *drawn_cases(number, seed, Path(name))]
        sys.exit(bool(failures(cases, Path(name))))
