"""Files that are not what they are taken for, and what is typed to have them read."""

import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import torch
from forked_command import Case

ODD = b"f\xff\xfe".decode("utf-8", "surrogateescape")  # a name that is no UTF-8
FIT = ("fit", "--config", "FedAvg.yaml", "--trainer.fast_dev_run=true")
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))


class Pwned:
    """Leaves a file where somebody unpickles it."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


CONFIGS = {  # name: content of a file given as --config
    "loop.yaml": b"trainer: &a {num_rounds: 2, metrics: *a}\n",
    "loop_list.yaml": b"trainer: {callbacks: &a [*a]}\n",
    "laughs.yaml": (LAUGHS + "trainer: {monitor: *a39}\n").encode(),
    "merges.yaml": (MERGES + "trainer: *a39\n").encode(),
    "deep.yaml": b"trainer: " + b"[" * 100_000,
    "deep_map.yaml": b"trainer: " + b"{a: " * 20_000,
    "deep_block.yaml": "".join(f"{' ' * i}a:\n" for i in range(3000)).encode(),
    "twice.yaml": b"trainer: {num_rounds: 1}\ntrainer: {num_rounds: 2}\n",
    "list_key.yaml": b"? [1, 2]\n: x\ntrainer: {}\n",
    "map_key.yaml": b"trainer: {{a: 1}: 2}\n",
    "number_key.yaml": b"1: 2\ntrainer: {3: 4}\n",
    "null_key.yaml": b"~: 2\ntrainer: {}\n",
    "tabs.yaml": b"trainer:\n\tnum_rounds: 2\n",
    "bom.yaml": b"\xef\xbb\xbftrainer: {num_rounds: 1}\n",
    "utf16.yaml": "trainer: {num_rounds: 1}\n".encode("utf-16"),
    "nul.yaml": b"trainer: {num_rounds: 1}\n\x00",
    "latin.yaml": "trainer: {monitor: ä}\n".encode("latin-1"),
    "random.yaml": np.random.default_rng(0).bytes(4096),
    "zero_bytes.yaml": b"",
    "scalar.yaml": b"trainer\n",
    "documents.yaml": b"trainer: {}\n---\ntrainer: {}\n",
    "python.yaml": b"trainer: !!python/object/apply:os.mkdir [pwned]\n",
    "tag.yaml": b"trainer: !mine {}\n",
    "merge_nothing.yaml": b"trainer: {<<: 1}\n",
    "anchor.yaml": b"trainer: *nothing\n",
    "long_class.yaml": b"model: {class_path: " + b"A" * 200_000 + b"}\n",
    "long_line.yaml": b"trainer: {monitor: " + b"x" * 1_000_000 + b"}\n",
    "long_key.yaml": b"trainer: {" + b"x" * 1_000 + b": 1}\n",
    "no_mapping.yaml": b"trainer: 3\ndata: []\nmodel: 4\n",
    "class_list.yaml": b"model: {class_path: [a, b]}\n",
    "class_null.yaml": b"model: {class_path: null}\n",
    "class_number.yaml": b"data: {class_path: 3}\n",
    "args_list.yaml": b"model: {class_path: fedlit.methods.FedAvg, init_args: [1]}\n",
    "class_of_class.yaml": b"model: {class_path: {class_path: fedlit.methods.FedAvg}}\n",
    "date.yaml": b"trainer: {num_rounds: 2001-01-01}\n",
    "set.yaml": b"trainer: !!set {a, b}\n",
    "omap.yaml": b"trainer: !!omap [a: 1]\n",
    "huge_int.yaml": b"trainer: {num_rounds: " + b"9" * 5000 + b"}\n",
    "empty_trainer.yaml": b"trainer:\n",
    "config_in_config.yaml": b"config: config_in_config.yaml\n",
    "subcommand.yaml": b"fit: {trainer: {num_rounds: 1}}\nsubcommand: fit\n",
}
REFUSED = ("loop", "laughs", "deep", "twice", "nul", "random", "python", "utf16", "tabs", "long_class")
ENVIRONMENTS = [
    {"FEDLIT_FIT__TRAINER__LOCAL_EPOCHS": value} for value in ("", "x", ".nan", "[1", "-1", "\udcff", "9" * 400)
]
ENVIRONMENTS += [
    {"FEDLIT_FIT__DATA": "{"},
    {"FEDLIT_FIT__TRAINER": "x"},
    {"FEDLIT_CONFIG": "nowhere"},
    {"FEDLIT_FIT__CONFIG": "fifo"},
]
ENVIRONMENTS += [{"FEDLIT_SUBCOMMAND": "x"}, {"FEDLIT_FIT__MODEL": "&a [*a]"}, {"FEDLIT_NO_SUCH_THING": "1"}]
ENVIRONMENTS += [
    {"COLUMNS": "x"},
    {"COLUMNS": "-1"},
    {"TMPDIR": "/nowhere"},
    {"HOME": "\udcff"},
    {"LC_ALL": "C"},
    {"OMP_NUM_THREADS": "x"},
]
ENVIRONMENTS += [
    {"PL_GLOBAL_SEED": "x"},
    {"LOCAL_RANK": "x"},
    {"WORLD_SIZE": "x"},
    {"MASTER_PORT": "x"},
    {"SLURM_NTASKS": "x"},
]


def arrays(size: int = 60, classes: int = 3) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    found = {}
    for split, number in (("train", size), ("test", size // 2)):
        found[f"{split}_images"] = draw.integers(0, 256, (number, 12, 12), dtype=np.uint8)
        found[f"{split}_labels"] = np.arange(number) % classes
    return found


def odd_arrays() -> dict[str, dict[str, np.ndarray]]:
    """What an .npz may hold in place of images and labels."""
    floats = np.zeros((60, 12, 12), np.float32)
    floats[3] = np.nan
    changed: dict[str, dict[str, np.ndarray]] = {
        "objects": {"train_images": np.array([Pwned()] * 60, dtype=object)},
        "nan_images": {"train_images": floats, "test_images": floats[10:40]},
        "inf_images": {"train_images": np.full((60, 12, 12), np.inf, np.float32), "test_images": floats[10:40]},
        "huge_images": {
            "train_images": np.full((60, 1, 12, 12), 3e38, np.float32),
            "test_images": np.zeros((30, 1, 12, 12), np.float32),
        },
        "strings": {"train_labels": np.array(["a"] * 60)},
        "dates": {"train_labels": np.zeros(60, "datetime64[s]")},
        "complex": {"train_images": np.zeros((60, 12, 12), complex)},
        "bools": {"train_labels": np.zeros(60, bool)},
        "records": {"train_images": np.zeros(60, [("a", "u1"), ("b", "f4")])},
        "negative": {"train_labels": np.full(60, -1)},
        "far_labels": {"train_labels": np.full(60, 2**62)},
        "unsigned_labels": {"train_labels": np.full(60, 2**64 - 1, np.uint64)},
        "million_labels": {"train_labels": np.arange(60) * 1_000_000_000},
        "columns": {"train_labels": np.zeros((60, 3), int)},
        "no_samples": {"train_images": np.zeros((0, 12, 12), np.uint8), "train_labels": np.zeros(0, int)},
        "no_pixels": {"train_images": np.zeros((60, 0, 12), np.uint8), "test_images": np.zeros((30, 0, 12), np.uint8)},
        "no_test": {"test_images": np.zeros((0, 12, 12), np.uint8), "test_labels": np.zeros(0, int)},
        "scalar": {"train_images": np.uint8(3)},
        "one_class": {"train_labels": np.zeros(60, int), "test_labels": np.zeros(30, int)},
        "big_endian": {"train_labels": (np.arange(60) % 3).astype(">i8")},
        "big_endian_floats": {"train_images": floats.astype(">f4")},
        "valid_only_images": {"valid_images": np.zeros((5, 12, 12), np.uint8)},
        "fortran": {"train_images": np.asfortranarray(arrays()["train_images"])},
        "two_pixels": {"train_images": np.zeros((60, 2, 2), np.uint8), "test_images": np.zeros((30, 2, 2), np.uint8)},
        "channels_first": {
            "train_images": np.zeros((60, 3, 12, 12), np.uint8),
            "test_images": np.zeros((30, 3, 12, 12), np.uint8),
        },
        "flat": {"train_images": np.zeros((60, 9), np.float32), "test_images": np.zeros((30, 9), np.float32)},
        "vectors": {"train_images": np.zeros(60, np.float32), "test_images": np.zeros(30, np.float32)},
    }
    return changed


NPZ = [
    *odd_arrays(),
    "cut",
    "cut_late",
    "flipped",
    "not_zip",
    "pickled",
    "empty_zip",
    "bomb",
    "lying_header",
    "no_header",
    "folder_entry",
]
CHECKPOINTS = [
    "cut.ckpt",
    "junk.ckpt",
    "empty.ckpt",
    "pickled.ckpt",
    "tensor.ckpt",
    "list.ckpt",
    "toy.npz",
    "folder",
    "fifo",
    "/dev/zero",
]


def write_junk(folder: Path) -> None:
    """Every file that the cases name."""
    for name, content in CONFIGS.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    os.mkfifo(folder / "fifo.npz")
    np.savez(folder / "toy.npz", **arrays())
    for name, changed in odd_arrays().items():
        np.savez(folder / f"{name}.npz", **(arrays() | changed))
    _write_damaged(folder)
    _write_checkpoints(folder)
    _write_mnist(folder)
    odd = folder / ODD
    odd.mkdir()
    np.savez(odd / "toy.npz", **arrays())
    (odd / "recipe.yaml").write_bytes((folder / "FedAvg.yaml").read_bytes())
    (folder / f"{ODD}.yaml").write_bytes((folder / "FedAvg.yaml").read_bytes())
    (folder / "dealt.csv").write_text("client,split,index,label,shared\n0,train,0,0,1\n1,train,1,1,1\n2,train,2,2,1\n")
    (folder / "junk.csv").write_bytes(np.random.default_rng(2).bytes(500))
    (folder / "words.csv").write_text("client,split,index,label,shared\nx,y,z,.nan,\n")
    (folder / "far.csv").write_text("client,split,index,label,shared\n" + f"0,train,{10**30},0,1\n")


def _write_damaged(folder: Path) -> None:
    whole = (folder / "toy.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "cut_late.npz").write_bytes(whole[:-10])
    flipped = bytearray(whole)
    for place in range(200, len(flipped), 997):
        flipped[place] ^= 0x55
    (folder / "flipped.npz").write_bytes(flipped)
    (folder / "not_zip.npz").write_bytes(b"no zip")
    (folder / "junk.npz").write_bytes(np.random.default_rng(1).bytes(5000))
    (folder / "pickled.npz").write_bytes(pickle.dumps(Pwned()))
    with zipfile.ZipFile(folder / "empty_zip.npz", "w"):
        pass
    with zipfile.ZipFile(folder / "folder_entry.npz", "w") as file:
        file.writestr("train_images/", b"")
        file.writestr("train_labels.txt", b"no array")
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s,), }"
    for name, shape in (("lying_header", "99999999999999"), ("bomb", "4000000000")):
        text = (header % shape).encode().ljust(117) + b"\n"
        with zipfile.ZipFile(folder / f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("train_images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(10**6))
    with zipfile.ZipFile(folder / "no_header.npz", "w") as file:
        file.writestr("train_images.npy", b"\x93NUMPY\x01\x00\xff\xff{'descr'")


def _write_checkpoints(folder: Path) -> None:
    torch.save({"global_state": {"w": torch.zeros(3)}}, folder / "tensor.ckpt")
    torch.save([1, 2], folder / "list.ckpt")
    whole = (folder / "tensor.ckpt").read_bytes()
    (folder / "cut.ckpt").write_bytes(whole[: len(whole) // 2])
    (folder / "junk.ckpt").write_bytes(np.random.default_rng(3).bytes(5000))
    (folder / "empty.ckpt").write_bytes(b"")
    (folder / "pickled.ckpt").write_bytes(pickle.dumps(Pwned()))


def _write_mnist(folder: Path) -> None:
    """What torchvision looks for before it downloads, as junk."""
    for root, name, place in (("old", "training.pt", "processed"), ("raw", "train-images-idx3-ubyte", "raw")):
        where = folder / root / "MNIST" / place
        where.mkdir(parents=True)
        others = {
            "processed": ["training.pt", "test.pt"],
            "raw": [
                "train-images-idx3-ubyte",
                "train-labels-idx1-ubyte",
                "t10k-images-idx3-ubyte",
                "t10k-labels-idx1-ubyte",
            ],
        }
        for other in {name, *others[place]}:
            (where / other).write_bytes(np.random.default_rng(4).bytes(700))
    (folder / "pickled" / "MNIST" / "processed").mkdir(parents=True)
    for name in ("training.pt", "test.pt"):
        (folder / "pickled" / "MNIST" / "processed" / name).write_bytes(pickle.dumps(Pwned()))
    (folder / "cifar" / "cifar-10-batches-py").mkdir(parents=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]:
        (folder / "cifar" / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(Pwned()))
    (folder / "named").mkdir()
    (folder / "named" / "mnist.npz").write_bytes(b"no zip")
    (folder / "a_file").write_text("no folder")
    (folder / "cinic" / "CINIC-10" / "train" / "cat").mkdir(parents=True)
    (folder / "cinic" / "CINIC-10" / "train" / "cat" / "1.png").write_bytes(b"no png")


def file_cases() -> list[Case]:
    """Files in every place where one can be given."""
    fast = "--trainer.fast_dev_run=true"
    cases = [Case(("fit", "--config", "FedAvg.yaml", "--config", name, fast)) for name in CONFIGS]
    cases += [
        Case(("fit", "--config", name, fast))
        for name in ("toy.npz", "junk.ckpt", "folder", "fifo", "/dev/zero", ODD, "")
    ]
    cases += [Case(("fit", f"--config={ODD}.yaml", fast)), Case(("fit", "--config", f"{ODD}/recipe.yaml", fast))]
    cases += [Case((*FIT, f"--data.dataset={name}.npz"), ("data.dataset", f"{name}.npz", "`model`")) for name in NPZ]
    cases += [Case((*FIT, f"--data.dataset={ODD}/toy.npz")), Case((*FIT, "--data.dataset=fifo.npz"), ("fifo.npz",))]
    cases += [
        Case((*FIT, "--data.dataset=folder/.npz"), ("data.dataset",)),
        Case((*FIT, "--data.dataset=.npz"), ("data.dataset",)),
    ]
    for root in ("old", "raw", "pickled", "named", "a_file", ODD, "fifo", "/dev/null", "/proc/1", ""):
        cases.append(Case((*FIT, "--data.dataset=mnist", f"--data.root={root}")))
    cases += [
        Case((*FIT, "--data.dataset=cifar10", "--data.root=cifar")),
        Case((*FIT, "--data.dataset=cinic10", "--data.root=cinic")),
    ]
    for command in ("fit", "test"):
        common = (command, "--config", "FedAvg.yaml", fast)
        cases += [Case((*common, f"--ckpt_path={name}"), ("ckpt_path",)) for name in CHECKPOINTS]
    for name in ("cut.ckpt", "pickled.ckpt", "folder", "fifo"):
        cases.append(Case(("fit", "--config", "DLAD.yaml", fast, f"--model.earlier={name}"), ("earlier",)))
    for name in ("junk.csv", "words.csv", "far.csv", "folder", "fifo", "toy.npz", "/dev/zero"):
        saved = f"--data.partition={{class_path: fedlit.data.Saved, init_args: {{path: {name}}}}}"
        cases.append(Case((*FIT, saved)))
    cases += [Case(FIT, environment=environment) for environment in ENVIRONMENTS]
    cases += [
        Case((*FIT, f"--trainer.default_root_dir={name}"))
        for name in ("a_file", "fifo", ODD, "/proc/x", "\x00", "x" * 5000)
    ]
    for images in ("junk.npz", "folder", "fifo", "/dev/zero", "toy.npz", ODD):
        cases.append(Case(("predict", "--config", "FedAvg.yaml", f"--images={images}"), ("images",)))
    return [*cases, *command_cases(), *long_cases()]


def command_cases() -> list[Case]:
    """Of the commands that are no federation's."""
    lines = [
        "recipes \x00",
        "recipes [",
        "methods x",
        f"methods {'x' * 5000}",
        "report folder",
        "report fifo",
        f"report {ODD}",
        "report a_file",
    ]
    lines += [
        "compare junk.npz",
        "compare loop.yaml",
        "compare laughs.yaml",
        "compare deep.yaml",
        "compare folder",
        "compare fifo",
    ]
    lines += [
        "compare FedAvg.yaml --seeds 0",
        "compare FedAvg.yaml --seeds 1e9",
        "compare FedAvg.yaml --seeds 99999999999 --dry-run",
    ]
    lines += [
        "compare FedAvg.yaml --jobs -1 --dry-run",
        "compare FedAvg.yaml --target nan --dry-run",
        "compare FedAvg.yaml --array 1/0",
    ]
    lines += [
        "compare FedAvg.yaml --at x",
        "compare FedAvg.yaml --metric x --dry-run",
        "compare --from-runs folder",
        "compare --from-runs fifo",
    ]
    lines += [
        "compare FedAvg.yaml --only \udcff",
        "compare FedAvg.yaml --output a_file --dry-run",
        "partition --config laughs.yaml",
    ]
    lines += [
        "partition --config FedAvg.yaml --data.num_clients=1e30",
        "partition --config fifo",
        "partition --config deep.yaml",
    ]
    lines += [
        "export --config FedAvg.yaml --ckpt_path junk.ckpt",
        "export --config FedAvg.yaml --ckpt_path fifo",
        "export",
        "\udcff",
        "fit \udcff",
    ]
    lines += [
        "fit --",
        "fit -",
        "fit --config",
        "fit --=x",
        "fit =",
        "fit --trainer=",
        "fit --trainer.",
        "fit --.=",
        "x" * 5000,
        "--\udcff",
    ]
    return [Case(tuple(line.split(" "))) for line in lines]


RUN = ("fit", "--config", "FedAvg.yaml", "--trainer.logger=false", "--trainer.default_root_dir=runs")
LONG_RUN = Case((*RUN, "--trainer.num_rounds=100000000"), runs_for_ever=True)


def long_cases() -> list[Case]:
    """So much of anything that one would wait for ever, if it did not begin at once or was refused."""
    options = ["--trainer.num_threads=100000", "--data.batch_size=1e23", "--trainer.devices=100000"]
    options += ["--trainer.local_steps=99999999999999999999", "--trainer.num_nodes=100000"]
    options += ["--model.optimizer=LBFGS", "--model.optimizer=SparseAdam", "--model.optimizer.lr=1e30"]
    return [LONG_RUN, *(Case((*RUN, option)) for option in options)]


FILE_CASES = file_cases()
