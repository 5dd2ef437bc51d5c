"""Labelled data sets in memory: five well-known ones, a real sample that ships with fedlit, and the user's own.

Every file is an ``.npz`` with ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``, and, as CINIC-10
has them, perhaps ``valid_images`` and ``valid_labels``. Images are uint8, ``[N, H, W]`` or ``[N, H, W, C]`` (not
``[N, C, H, W]``), or float32 features of any shape ``[N, ...]``; labels are integers ``[N]`` that count from 0.
"""

import difflib
import operator
import os
import uuid
import zipfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from tqdm.auto import tqdm


@dataclass(frozen=True, eq=False)
class Images:
    """A labelled data set in memory: uint8 images (normalised on the fly) or float32 features (taken as they are)."""

    train_x: Tensor  # [N, C, H, W] uint8, or float32 of any shape [N, ...]
    train_y: Tensor  # [N] int64, in [0, num_classes)
    test_x: Tensor
    test_y: Tensor
    num_classes: int
    mean: tuple[float, ...]  # of each channel on the [0, 1] scale; () for float features
    std: tuple[float, ...]
    valid_x: Tensor | None = None  # CINIC-10's third split
    valid_y: Tensor | None = None
    measured: bool = False  # mean and std are not published ones, but of these images


class _Facts(NamedTuple):
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_FACTS = {
    "fashion_sample": _Facts(10, (0.286,), (0.353,)),
    "mnist": _Facts(10, (0.1307,), (0.3081,)),
    "fashion_mnist": _Facts(10, (0.286,), (0.353,)),
    "cifar10": _Facts(10, *_CIFAR),
    "cifar100": _Facts(100, *_CIFAR),
    "cinic10": _Facts(10, (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)),
}
DATASETS = tuple(_FACTS)
_SAMPLE = Path(__file__).parent / "assets" / "fashion_mnist_7000.npz"
_TORCHVISION = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}


def read_images(dataset: str, root: str) -> Images:
    """A data set by its name, or from the user's own file.

    Args:
        dataset: One of ``DATASETS``, or a path that ends in ``.npz``, from the current folder or else from ``root``.
            One's own uint8 images have the mean and the standard deviation of the training images.
        root: Folder that holds ``<dataset>.npz``. What is missing there is downloaded (CINIC-10: read from the folder
            ``CINIC-10``) and kept there as that file.
    """
    return _read_npz(fetch(dataset, root), _FACTS.get(dataset))


def fetch(dataset: str, root: str) -> Path:
    """The file of a data set, downloaded (or converted) if it is missing; takes what `load` takes."""
    folder = Path(root).expanduser()
    if dataset.endswith(".npz"):
        own = Path(dataset).expanduser()
        return own if own.is_file() else folder / own
    if dataset not in DATASETS:
        close = difflib.get_close_matches(dataset.lower(), DATASETS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ValueError(f"`dataset` must be one of {', '.join(DATASETS)} or a path to an .npz, got {dataset!r}{hint}")
    path = _SAMPLE if dataset == "fashion_sample" else folder / f"{dataset}.npz"
    if not path.is_file():
        _save_npz(path, _read_cinic10(path) if dataset == "cinic10" else _download(dataset, path))
    return path


def from_datasets(train: Dataset, test: Dataset) -> Images:
    """Two data sets of pairs ``(x, y)``, stacked in memory.

    ``x`` is a PIL image (grey or RGB), a uint8 array ``[H, W]`` or ``[H, W, C]``, a uint8 tensor ``[H, W]`` or
    ``[C, H, W]``, or float32 of any shape; ``y`` is an integer. Each item is read once: a random transform draws once.
    """
    return _images({"train": _stack(train, "train"), "test": _stack(test, "test")}, "the given data sets", None)


def _images(splits: dict[str, tuple[Tensor, np.ndarray]], source: str, facts: _Facts | None) -> Images:
    """The checked data set, training split first; without ``facts``, they are taken from the data."""
    tensors = {}
    for split, (x, y) in splits.items():
        tensors[f"{split}_x"] = x
        name, first = f"`{split}_images` of {source}", tensors["train_x"]
        if not (x.dtype == torch.uint8 and x.ndim == 4) and not (x.dtype == torch.float32 and x.ndim >= 2):
            raise ValueError(f"{name} must be uint8 [N, C, H, W] or float32 [N, ...], got {_kind(x)}.")
        if facts is not None and (x.dtype != torch.uint8 or x.shape[1] != len(facts.mean)):
            raise ValueError(f"{name} must be uint8 with {len(facts.mean)} channel(s), got [N, C, H, W] = {_kind(x)}.")
        if (x.dtype, x.shape[1:]) != (first.dtype, first.shape[1:]):
            raise ValueError(f"{name} must match the training images, {_kind(first)} but for N, got {_kind(x)}.")
        if x.numel() == 0:
            raise ValueError(f"{name} must not be empty, got {_kind(x)}.")
        if x.is_floating_point() and not x.isfinite().all():
            raise ValueError(f"{name} must be finite, got {int((~x.isfinite()).sum())} values that are not.")
        tensors[f"{split}_y"] = _labels(y, len(x), f"`{split}_labels` of {source}", facts)
    measured = facts is None
    if facts is None:
        facts = _Facts(1 + max(int(tensors[f"{split}_y"].max()) for split in splits), *mean_std(tensors["train_x"]))
    return Images(**tensors, **facts._asdict(), measured=measured)


def _labels(y: np.ndarray, num_images: int, name: str, facts: _Facts | None) -> Tensor:
    if not np.issubdtype(y.dtype, np.integer) or y.shape != (num_images,):
        raise ValueError(f"{name} must be integers [{num_images}], one per image, got {_kind(y)}.")
    if y.min() < 0 or (facts is not None and y.max() >= facts.num_classes):
        allowed = "0 or more" if facts is None else f"in [0, {facts.num_classes})"
        raise ValueError(f"{name} must be class indices, {allowed}, got {y.min()} to {y.max()}.")
    return torch.from_numpy(y.astype(np.int64))


def _kind(x: Tensor | np.ndarray) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


def mean_std(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each channel of uint8 images ``[N, C, H, W]`` on the [0, 1] scale; empty for float features."""
    if x.is_floating_point():
        return (), ()
    # How often each of the 256 levels occurs, [C, 256], gives both without a float copy of the images.
    shares = torch.stack([torch.bincount(c.flatten(), minlength=256).double() / c.numel() for c in x.unbind(1)])
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ levels
    std = (shares * (levels - mean[:, None]) ** 2).sum(dim=1).sqrt()
    return tuple(mean.tolist()), tuple(each or 1.0 for each in std.tolist())  # a constant channel becomes 0, not 0 / 0


def _read_npz(path: Path, facts: _Facts | None) -> Images:
    if not path.is_file():
        raise FileNotFoundError(f"`dataset` must name an .npz file in the current folder or in `root`, no file {path}.")
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("not a zip archive")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key.endswith(("_images", "_labels"))}
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} must be an .npz file of plain arrays; reading failed: {error!r}.") from error
    splits = ["train", "test"] + ["valid"] * any(key.startswith("valid_") for key in arrays)
    keys = [f"{split}_{what}" for split in splits for what in ("images", "labels")]
    missing = [key for key in keys if not isinstance(arrays.get(key), np.ndarray)]  # what is no array comes as bytes
    if missing:
        raise ValueError(f"{path} must hold the arrays {', '.join(keys)}; missing: {', '.join(missing)}.")
    images = {split: _channels_first(arrays[f"{split}_images"], f"`{split}_images` of {path}") for split in splits}
    return _images({split: (images[split], arrays[f"{split}_labels"]) for split in splits}, str(path), facts)


def _channels_first(x: np.ndarray, name: str) -> Tensor:
    """uint8 ``[N, H, W]`` or ``[N, H, W, C]`` as ``[N, C, H, W]``; float32 as it is."""
    if x.dtype == np.float32:
        return torch.from_numpy(x)
    # More than 4 channels are most likely [N, C, H, W], which would be read as images of 3 rows.
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] > 4):
        raise ValueError(f"{name} must be uint8 [N, H, W] or [N, H, W, C <= 4], or float32 [N, ...], got {_kind(x)}.")
    return torch.from_numpy(x if x.ndim == 4 else x[..., None]).permute(0, 3, 1, 2).contiguous()


def _save_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Whole or not at all: several processes may read, and write, at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _download(dataset: str, path: Path) -> dict[str, np.ndarray]:
    import torchvision.datasets  # here, because it takes a second and is needed once

    source = getattr(torchvision.datasets, _TORCHVISION[dataset])
    arrays = {}
    try:
        for split in ("train", "test"):
            found = source(path.parent, train=split == "train", download=True)
            arrays |= {f"{split}_images": np.asarray(found.data), f"{split}_labels": np.asarray(found.targets)}
    except (OSError, RuntimeError, HTTPException) as error:
        raise FileNotFoundError(
            f"No file {path}, and the download failed: {error!r}. Put the file there, or point `root` at its folder; "
            "it holds uint8 train_images and test_images, integer train_labels and test_labels."
        ) from error
    return arrays


def _read_cinic10(path: Path) -> dict[str, np.ndarray]:
    from PIL import Image

    folder = path.parent / "CINIC-10"
    files = {split: sorted((folder / split).glob("*/*.png")) for split in ("train", "valid", "test")}
    classes = {split: sorted({png.parent.name for png in pngs}) for split, pngs in files.items()}
    if not all(len(names) == 10 and names == classes["train"] for names in classes.values()):
        raise FileNotFoundError(
            f"No file {path}, and {folder} (https://datashare.ed.ac.uk/handle/10283/3192, unpacked) must hold train, "
            f"valid and test with the same ten folders of .png, got {[len(names) for names in classes.values()]}."
        )
    arrays = {}
    for split, pngs in files.items():
        images = np.empty((len(pngs), 32, 32, 3), dtype=np.uint8)
        for i, png in enumerate(tqdm(pngs, desc=f"CINIC-10 {split}", disable=None)):  # None: on a terminal only
            with Image.open(png) as image:
                if image.size != (32, 32):
                    raise ValueError(f"{png} must be 32 x 32 pixels, got {image.size[0]} x {image.size[1]}.")
                images[i] = image.convert("RGB")
        labels = np.array([classes[split].index(png.parent.name) for png in pngs], dtype=np.uint8)
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    return arrays


def _stack(dataset: Dataset, name: str) -> tuple[Tensor, np.ndarray]:
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        x, y = dataset.tensors
        return x[:, None] if x.dtype == torch.uint8 and x.ndim == 3 else x, y.numpy()
    items = dataset if isinstance(dataset, IterableDataset) else (dataset[i] for i in range(len(dataset)))
    xs, ys = [], []
    for i, item in enumerate(items):
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise ValueError(f"`{name}` must give pairs (x, y), got {type(item).__name__} at item {i}.")
        xs.append(_item(item[0], f"x at item {i} of `{name}`"))
        if (xs[i].dtype, xs[i].shape) != (xs[0].dtype, xs[0].shape):
            raise ValueError(f"x at item {i} of `{name}` must be {_kind(xs[0])} as item 0, got {_kind(xs[i])}.")
        try:
            ys.append(operator.index(item[1]))
        except TypeError:
            raise ValueError(f"y at item {i} of `{name}` must be an integer, got {item[1]!r}.") from None
    if not xs:
        raise ValueError(f"`{name}` must not be empty, got no items.")
    return torch.stack(xs), np.array(ys)


def _item(x: Any, name: str) -> Tensor:
    if isinstance(x, Tensor):
        return x[None] if x.dtype == torch.uint8 and x.ndim == 2 else x
    if getattr(x, "mode", "L") not in ("L", "RGB"):
        raise ValueError(f"{name} must be a grey (L) or RGB image, got mode {x.mode}.")
    return _channels_first(np.array(x)[None], name)[0]
