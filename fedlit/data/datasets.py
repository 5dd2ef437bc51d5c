"""Labelled images in a file: five well-known data sets, a real sample that ships with fedlit, and the user's own.

Every file is an ``.npz`` with ``train_images``, ``train_labels``, ``test_images`` and
``test_labels``, and, as CINIC-10 has them, perhaps ``valid_images`` and ``valid_labels``. Images
are uint8, ``[N, H, W]`` or ``[N, H, W, C]`` (not ``[N, C, H, W]``), or float32 features of any
shape ``[N, ...]``; labels are integers ``[N]`` that count from 0.
"""

import difflib
import os
import uuid
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]  # it has no type hints

from fedlit.data.splits import Facts, Names, Splits, StackedSamples, splits_of

_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_FACTS = {
    "fashion_sample": Facts(10, (0.286,), (0.353,)),
    "mnist": Facts(10, (0.1307,), (0.3081,)),
    "fashion_mnist": Facts(10, (0.286,), (0.353,)),
    "cifar10": Facts(10, *_CIFAR),
    "cifar100": Facts(100, *_CIFAR),
    "cinic10": Facts(10, (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)),
}
DATASETS = tuple(_FACTS)
_SAMPLE = Path(__file__).parent / "assets" / "fashion_mnist_7000.npz"


def published_classes(dataset: str) -> int | None:
    """How many classes a data set has, where that is known without reading it.

    Example:
        >>> published_classes("cifar100"), published_classes("own.npz")
        (100, None)
    """
    return _FACTS[dataset].num_classes if dataset in _FACTS else None


def read_images(dataset: str, root: str) -> Splits:
    """A data set by its name, or from the user's own file.

    Args:
        dataset: One of ``DATASETS``, or a path that ends in ``.npz``, from the current folder or
            else from ``root``. One's own uint8 images have the mean and the standard deviation of
            the training images.
        root: Folder that holds ``<dataset>.npz``. What is missing there is downloaded (CINIC-10:
            read from the folder ``CINIC-10``) and kept there as that file.
    """
    return _read_npz(fetch(dataset, root), _FACTS.get(dataset))


def fetch(dataset: str, root: str) -> Path:
    """The file of a data set, downloaded (or converted) if it is missing; takes what `read_images` takes."""
    folder = Path(root).expanduser()
    if dataset.endswith(".npz"):
        for path in places(dataset, root):
            if path.is_file():
                return path
        raise FileNotFoundError(f"`data.dataset` {dataset}: {nothing_there('file', dataset, root)}.")
    if dataset not in DATASETS:
        hint = "."
        if not any(path.exists() for path in places(dataset, root)):
            hint = f"; {nothing_there('file or folder', dataset, root)}."
        for close in difflib.get_close_matches(dataset.lower(), DATASETS, n=1):
            hint = f"; did you mean {close!r}?"
        allowed = f"one of {', '.join(DATASETS)} or the path of an .npz, a table or a folder of images"
        raise ValueError(f"`data.dataset` must be {allowed}, got {dataset!r}{hint}")
    if dataset == "fashion_sample":
        return _SAMPLE
    path = folder / f"{dataset}.npz"
    if path.is_file():
        return path
    arrays = read_cinic10(path) if dataset == "cinic10" else download(dataset, path)
    save_npz(path, arrays)
    return path


def places(dataset: str, root: str) -> tuple[Path, Path]:
    """Where a user's own file or folder may be: from the current folder, else from `root`."""
    own = Path(dataset).expanduser()
    return own, Path(root).expanduser() / own


def nothing_there(kind: str, dataset: str, root: str) -> str:
    """That there is no such thing, and where it was looked for.

    Example:
        >>> nothing_there("file", "own.npz", "data")
        'there is no such file here, nor in `data.root`, as data/own.npz'
        >>> nothing_there("file", "/own.npz", "data")
        'there is no such file'
    """
    here, there = places(dataset, root)
    message = f"there is no such {kind}"
    if here == there:  # a path from the root of all
        return message
    return f"{message} here, nor in `data.root`, as {there}"


def _npz_part(images: np.ndarray, y: np.ndarray, names: Names) -> StackedSamples:
    """Images or features of a file, with their classes."""
    x = channels_first(images, names.inputs)
    if not np.issubdtype(y.dtype, np.integer) or y.shape != (len(x),):
        raise ValueError(f"{names.targets} must be integers [{len(x)}], one per image, got {_kind(y)}.")
    return StackedSamples(x, torch.from_numpy(y.astype(np.int64)))


def _kind(x: Tensor | np.ndarray) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


def _read_npz(path: Path, facts: Facts | None) -> Splits:
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("not a zip archive")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key.endswith(("_images", "_labels"))}
    except Exception as error:  # a damaged file raises what it likes, and may claim any size
        raise ValueError(f"{path} must be an .npz file of plain arrays; reading failed: {error!r}.") from error
    names = ["train", "test"]
    if any(key.startswith("valid_") for key in arrays):
        names.append("valid")
    keys = [f"{name}_{what}" for name in names for what in ("images", "labels")]
    missing = [key for key in keys if not isinstance(arrays.get(key), np.ndarray)]  # what is no array comes as bytes
    if missing:
        raise ValueError(f"{path} must hold the arrays {', '.join(keys)}; missing: {', '.join(missing)}.")
    parts = {}
    whose = str(path)
    if facts is None:
        whose = f"`data.dataset` {path}"
    named = {name: Names(f"`{name}_images` of {whose}", f"`{name}_labels` of {whose}") for name in names}
    for name in names:
        parts[name] = _npz_part(arrays[f"{name}_images"], arrays[f"{name}_labels"], named[name])
    return splits_of(parts, named, facts)


def channels_first(x: np.ndarray, name: str) -> Tensor:
    """uint8 ``[N, H, W]`` or ``[N, H, W, C]`` as ``[N, C, H, W]``; float32 as it is."""
    if x.dtype == np.float32 and x.ndim >= 2:
        return torch.from_numpy(x)
    grey = x.ndim == 3
    # More than 4 channels are most likely [N, C, H, W], which would be read as images of 3 rows.
    coloured = x.ndim == 4 and x.shape[3] <= 4
    if x.dtype != np.uint8 or not (grey or coloured):
        raise ValueError(f"{name} must be uint8 [N, H, W] or [N, H, W, C <= 4], or float32 [N, ...], got {_kind(x)}.")
    if grey:
        x = x[..., None]
    return torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()


TORCHVISION = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}


def save_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Whole or not at all: several processes may read, and write, at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes an array for `allow_pickle`
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def download(dataset: str, path: Path) -> dict[str, np.ndarray]:
    """The arrays of a data set that torchvision knows; leaves no folder behind where that fails."""
    # Here, because it takes a second and is needed once.
    import torchvision.datasets  # type: ignore[import-untyped]  # it has no type hints

    source = getattr(torchvision.datasets, TORCHVISION[dataset])
    folders = [path.parent / source.__name__ / "raw", path.parent / source.__name__, path.parent]
    made = [folder for folder in folders if not folder.exists()]
    arrays: dict[str, np.ndarray] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what lies there already; if it is of use, all is well
            for split in ("train", "test"):
                found = source(path.parent, train=split == "train", download=True)
                arrays[f"{split}_images"] = np.asarray(found.data)
                arrays[f"{split}_labels"] = np.asarray(found.targets)
    except Exception as error:  # what lies there from an earlier download may be anything
        for folder in made:
            with suppress(OSError):  # there is something in it
                folder.rmdir()
        raise FileNotFoundError(
            f"No file {path}, and the download failed: {_first_line(error)}. Put the file there, or point `root` at "
            "its folder; it holds uint8 train_images and test_images, integer train_labels and test_labels. Recipes "
            "that end in `_fashion.yaml` need no download: `fedlit fit --config fml_fashion.yaml`."
        ) from error
    return arrays


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")


def read_cinic10(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the unpacked folder CINIC-10, beside which their file is to stand."""
    from PIL import Image

    folder = path.parent / "CINIC-10"
    files = {split: sorted((folder / split).glob("*/*.png")) for split in ("train", "valid", "test")}
    classes = {split: sorted({png.parent.name for png in pngs}) for split, pngs in files.items()}
    if not all(len(names) == 10 and names == classes["train"] for names in classes.values()):
        raise FileNotFoundError(
            f"No file {path}, and {folder} (https://datashare.ed.ac.uk/handle/10283/3192, unpacked) must hold train, "
            f"valid and test with the same ten folders of .png, got {[len(names) for names in classes.values()]}."
        )
    arrays: dict[str, np.ndarray] = {}
    for split, pngs in files.items():
        images = np.empty((len(pngs), 32, 32, 3), dtype=np.uint8)
        for i, png in enumerate(tqdm(pngs, desc=f"CINIC-10 {split}", disable=None)):  # None: on a terminal only
            with Image.open(png) as image:
                if image.size != (32, 32):
                    raise ValueError(f"{png} must be 32 x 32 pixels, got {image.size[0]} x {image.size[1]}.")
                images[i] = np.asarray(image.convert("RGB"))
        labels = [classes[split].index(png.parent.name) for png in pngs]
        arrays[f"{split}_images"] = images
        arrays[f"{split}_labels"] = np.array(labels, dtype=np.uint8)
    return arrays
