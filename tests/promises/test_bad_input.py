"""Whatever is typed or lies in a file: it works, or it is refused in one line that names it; never a traceback.

The full form tries odd values of every option: `pytest -m slow -s tests/promises/test_bad_input.py`.
"""

import os
import pickle
from inspect import signature
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from forked_command import End, run
from toy_recipe import RECIPE, write_npz

from fedlit import methods
from fedlit.data import FederatedData
from fedlit.federation import Federation

FIT = ("fit", "--config", "run.yaml", "--trainer.fast_dev_run=true")
HEAD = b"a,b,label\n"


class Pwned:
    """Leaves a folder where somebody unpickles it."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


CONFIGS = {  # a file given as a second --config: its content, and what its refusal says
    "loop": (b"trainer: &a {num_rounds: 2, metrics: *a}\n", "more than 100000 entries"),
    "twice": (b"trainer: {num_rounds: 1}\ntrainer: {num_rounds: 2}\n", "twice.yaml"),
    "tabs": (b"trainer:\n\tnum_rounds: 2\n", "tabs.yaml"),
    "nul": (b"trainer: {num_rounds: 1}\n\x00", "nul.yaml"),
    "random": (np.random.default_rng(0).bytes(4096), "random.yaml"),
    "python": (b"trainer: !!python/object/apply:os.mkdir [pwned]\n", "python.yaml"),
    "long_class": (b"model: {class_path: " + b"A" * 200_000 + b"}\n", "`model`"),
    "class_list": (b"model: {class_path: [a, b]}\n", "model"),
}
ARRAYS = {  # what an .npz holds in place of images or labels
    "objects": {"train_images": np.array([Pwned()] * 60, dtype=object)},
    "nan_images": {"train_images": np.full((60, 8, 8), np.nan, np.float32)},
    "strings": {"train_labels": np.array(["a"] * 60)},
    "negative": {"train_labels": np.full(60, -1)},
    "far_labels": {"train_labels": np.full(60, 2**62)},
    "no_samples": {"train_images": np.zeros((0, 8, 8), np.uint8), "train_labels": np.zeros(0, int)},
}
TABLES = {  # a .csv given as the data set
    "empty": b"",
    "ragged": HEAD + b"1,2,0\n1,2,0,9,9\n" * 20,
    "words": HEAD + b"x,y,0\n" * 30,
    "infinite": HEAD + b"inf,nan,0\n" * 30,
    "no_target": b"a,b,c\n" + b"1,2,3\n" * 30,
    "latin": HEAD + "1,2,ä\n".encode("latin-1") * 30,
    "binary": np.random.default_rng(5).bytes(3000),
}
CHECKPOINTS = ("cut.ckpt", "junk.ckpt", "pickled.ckpt", "list.ckpt", "folder", "fifo", "/dev/zero")
REFUSED = {  # an option, and what its refusal says
    "--data.std=[]": "`data.std`",
    "--data.mean=.nan": "`data.mean` must be a finite number, got nan",
    "--data.batch_size=100000000000000000000000": "`data.batch_size` must be at most 1000000000",
    "--data.root=\udcff": "not UTF-8",
    "--model.optimizer.lr=1e30": "`model.optimizer.lr` must be at most 1e+10, got 1e+30",
    "--model.optimizer=SparseAdam": "SparseAdam does not support dense gradients",
    "--model=fedlit.methods.dlad.Student": "Student is a part of DLAD",
    "--trainer.num_threads=100000": "`trainer.num_threads` must be at most 1024, got 100000",
    "--data.dataset=fifo.npz": "fifo.npz",
    "--data.dataset=no_png": "no_png",
    **{f"--config={name}.yaml": word for name, (_, word) in CONFIGS.items()},
    **{f"--data.dataset={name}.npz": f"{name}.npz" for name in (*ARRAYS, "cut", "pickled")},
    **{f"--data.dataset={name}.csv": "`data." for name in TABLES},
    **{f"--ckpt_path={name}": "ckpt_path" for name in CHECKPOINTS},
}
QUICK = (  # one of each kind
    "--data.std=[]",
    "--data.batch_size=100000000000000000000000",
    "--data.root=\udcff",
    "--model.optimizer.lr=1e30",
    "--model=fedlit.methods.dlad.Student",
    "--config=loop.yaml",
    "--config=long_class.yaml",
    "--config=python.yaml",
    "--data.dataset=objects.npz",
    "--data.dataset=pickled.npz",
    "--data.dataset=words.csv",
    "--data.dataset=no_png",
    "--ckpt_path=pickled.ckpt",
    "--ckpt_path=fifo",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe with its data, and files that are not what they are taken for."""
    place = tmp_path_factory.mktemp("junk")
    (place / "run.yaml").write_text(RECIPE)
    write_npz(place / "toy.npz")
    for name, (content, _) in CONFIGS.items():
        (place / f"{name}.yaml").write_bytes(content)
    for name, changed in ARRAYS.items():
        write_npz(place / f"{name}.npz", **changed)
    for name, content in TABLES.items():
        (place / f"{name}.csv").write_bytes(content)
    for name in ("fifo", "fifo.npz"):
        os.mkfifo(place / name)
    (place / "folder").mkdir()
    _write_damaged(place)
    return place


def _write_damaged(place: Path) -> None:
    torch.save([1, 2], place / "list.ckpt")
    (place / "junk.ckpt").write_bytes(np.random.default_rng(3).bytes(5000))
    for whole, cut in (("toy.npz", "cut.npz"), ("list.ckpt", "cut.ckpt")):
        content = (place / whole).read_bytes()
        (place / cut).write_bytes(content[: len(content) // 2])
    for name in ("pickled.npz", "pickled.ckpt"):
        (place / name).write_bytes(pickle.dumps(Pwned()))
    for label in "ab":
        (place / "no_png" / label).mkdir(parents=True)
        (place / "no_png" / label / "1.png").write_bytes(b"no picture")


@pytest.mark.parametrize(
    "option", [pytest.param(option, marks=() if option in QUICK else pytest.mark.slow) for option in REFUSED]
)
def test_what_cannot_be_right_is_refused_in_one_line_that_names_it(option, folder):
    end = run(folder, *FIT, option)
    assert end.faults(REFUSED[option]) == [], end.err
    assert end.code == 2


@pytest.mark.parametrize("option", ["--model.optimizer=LBFGS", "--trainer.num_rounds=1"])
def test_what_can_be_right_works(option, folder):
    end = run(folder, *FIT, option)
    assert (end.code, end.faults()) == (0, []), end.err


@pytest.mark.parametrize(
    ("name", "value"),
    [("FEDLIT_FIT__CONFIG", "fifo"), ("FEDLIT_FIT__TRAINER__LOCAL_EPOCHS", ".nan"), ("FEDLIT_FIT__MODEL", "&a [*a]")],
)
def test_a_variable_that_cannot_be_right_is_refused_as_well(name, value, folder):
    end = run(folder, *FIT, **{name: value})
    assert end.code == 2
    assert end.faults() == [], end.err


COMMANDS = ["report fifo", "report run.yaml", "compare loop.yaml", "compare toy.npz", "compare --from-runs fifo"]
COMMANDS += ["compare run.yaml --seeds 0", "compare run.yaml --array 1/0", "partition --config loop.yaml"]
COMMANDS += ["export --config run.yaml --ckpt_path junk.ckpt", "predict --config run.yaml --images=fifo", "fit --=x"]


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_so_is_what_other_commands_are_given(line, folder):
    end = run(folder, *line.split())
    assert end.code == 2
    assert end.faults() == [], end.err


@pytest.mark.parametrize(
    ("end", "fault"),
    [
        (End(1, "", "Traceback (most recent call last):\n", frozenset()), "traceback"),
        (End(-11, "", "", frozenset()), "ended with -11"),
        (End(None, "", "", frozenset()), "took more than 5 s"),
        (End(2, "", "fedlit: error: wrong.\n", frozenset()), "does not name data.std"),
        (End(2, "", "fedlit: error: `data.std`\nis wrong.\n", frozenset()), "2 lines"),
        (End(2, "", "fedlit: error: `data.std`\n", frozenset({"pwned"})), "wrote ['pwned']"),
    ],
)
def test_each_fault_would_be_noticed(end, fault):
    assert fault in end.faults("data.std")


# --- every option

VALUES = [".nan", ".inf", "-1", "0", "1", "0.5", "1e30", "-1e300", "1e8", str(2**63), "9" * 400, "0x10", "true", "null"]
VALUES += ["", "~", "[]", "{}", "[1, 2]", "{a: 1}", "[.nan]", "{{", "!x", "a\nb", "folder", "toy.npz", "os.system"]
VALUES += ["fedlit.methods.FederatedModule", "torch.optim.SparseAdam", "torch.nn.Identity", "fedlit.", "builtins.dict"]
GIVEN_ELSEWHERE = {"self", "train_dataset", "test_dataset", "kwargs", "devices", "num_nodes"}
POOLED = ("DLAD", "FedDF", "FedMD")
NUM_DRAWN = 400


def options() -> list[tuple[str, str]]:
    """Every option of data, trainer and methods, with the method that it is tried with."""
    found = [("FedAvg", f"data.{name}") for name in signature(FederatedData).parameters]
    found += [("FedAvg", f"trainer.{name}") for name in signature(Federation).parameters]
    kinds = [kind for kind in vars(methods).values() if isinstance(kind, type)]
    for kind in kinds:
        if issubclass(kind, methods.FederatedModule) and kind is not methods.FederatedModule:
            found += [(kind.__name__, f"model.{name}") for name in signature(kind).parameters]
    return [(method, option) for method, option in found if option.split(".")[1] not in GIVEN_ELSEWHERE]


@pytest.mark.slow
def test_hundreds_of_odd_values_are_refused_in_one_line_or_work(folder, capsys):
    network = (
        "{class_path: fedlit.networks.CNN1, init_args: {in_channels: 1, image_size: 12, num_classes: 3, hidden: 8}}"
    )
    write_npz(folder / "wide.npz", (12, 12))
    draw = Random(0)
    order = options()
    draw.shuffle(order)
    found, codes = [], []
    for method, option in (order * 2)[:NUM_DRAWN]:
        value = draw.choice(VALUES)
        args = ["--data.dataset=wide.npz", f"--data.public={0.5 * (method in POOLED)}", f"--model={method}"]
        args += [f"--model.network={network}", "--model.optimizer=SGD", "--model.optimizer.lr=0.1"]
        end = run(folder, *FIT, *args, f"--{option}={value}")
        codes.append(end.code)
        names_it = any(word in end.err for word in (option.rpartition(".")[2], "`model"))
        faults = end.faults() + ["unnamed"] * (end.code == 2 and not names_it)
        if faults:
            found.append(f"{method} --{option}={value[:40]!r}: {faults}: {end.err[-300:]}")
    with capsys.disabled():
        print(f"\n{len(codes)} odd values: {codes.count(2)} refused, {codes.count(0)} worked, {len(found)} with faults")
    assert len(order) > 200
    assert found == [], "\n".join(found)
