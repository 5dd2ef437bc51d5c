"""Labelled data sets in memory: five well-known ones, a real sample that ships with fedlit, and the user's own.

Every file is an ``.npz`` with ``train_images``, ``train_labels``, ``test_images`` and
``test_labels``, and, as CINIC-10 has them, perhaps ``valid_images`` and ``valid_labels``. Images
are uint8, ``[N, H, W]`` or ``[N, H, W, C]`` (not ``[N, C, H, W]``), or float32 features of any
shape ``[N, ...]``; labels are integers ``[N]`` that count from 0.
"""

import difflib
import operator
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedlit.data.downloads import download, read_cinic10, save_npz


@dataclass(frozen=True, eq=False)
class Images:
    """A labelled data set in memory: uint8 images (normalised on the fly) or float32 features (taken as they are)."""

    train_x: Tensor  # [N, C, H, W] uint8, or any other dtype and shape [N, ...]
    train_y: Tensor  # [N] int64, in [0, num_classes), or of any kind where there are no classes
    test_x: Tensor
    test_y: Tensor
    num_classes: int  # 0 where targets are no classes
    mean: tuple[float, ...]  # of each channel on the [0, 1] scale; () for float features
    std: tuple[float, ...]
    valid_x: Tensor | None = None  # CINIC-10's third split
    valid_y: Tensor | None = None
    measured: bool = False  # mean and std are not published ones, but of these images

    def labels(self, name: Literal["train", "test"]) -> np.ndarray:
        """What samples are dealt out by, ``[N]``: their classes, or 0 for all where there are none."""
        _, y = self.split(name)
        return y.numpy() if self.num_classes else np.zeros(len(y), np.int64)

    def split(self, name: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """Inputs and labels of one of the two."""
        if name == "train":
            return self.train_x, self.train_y
        return self.test_x, self.test_y


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
MOST_CLASSES = 1_000_000
FEATURES = (torch.float32, torch.float64, torch.int64)  # what is given to networks as it is
_SAMPLE = Path(__file__).parent / "assets" / "fashion_mnist_7000.npz"


def read_images(dataset: str, root: str) -> Images:
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
        own = Path(dataset).expanduser()
        if own.is_file():
            return own
        return folder / own
    if dataset not in DATASETS:
        hint = "."
        for close in difflib.get_close_matches(dataset.lower(), DATASETS, n=1):
            hint = f"; did you mean {close!r}?"
        allowed = f"one of {', '.join(DATASETS)} or a path to an .npz"
        raise ValueError(f"`dataset` must be {allowed}, got {dataset!r}{hint}")
    if dataset == "fashion_sample":
        return _SAMPLE
    path = folder / f"{dataset}.npz"
    if path.is_file():
        return path
    arrays = read_cinic10(path) if dataset == "cinic10" else download(dataset, path)
    save_npz(path, arrays)
    return path


def from_datasets(train: Dataset, test: Dataset) -> Images:
    """Two data sets of pairs ``(x, y)``, stacked in memory.

    ``x`` is a PIL image (grey or RGB), a uint8 array ``[H, W]`` or ``[H, W, C]``, a uint8 tensor
    ``[H, W]`` or ``[C, H, W]``, or float32 of any shape; ``y`` is an integer. Each item is read
    once: a random transform draws once.
    """
    splits = {"train": _stack(train, "train"), "test": _stack(test, "test")}
    return _images(splits, "the given data sets", facts=None)


def _images(splits: dict[str, tuple[Tensor, np.ndarray]], source: str, facts: _Facts | None) -> Images:
    """The checked data set, training split first; without ``facts``, they are taken from the data."""
    train_x, train_y = splits["train"]
    are_classes = np.issubdtype(train_y.dtype, np.integer) and train_y.ndim == 1
    labels: dict[str, Tensor] = {}
    for split, (x, y) in splits.items():
        _check_inputs(x, train_x, f"`{split}_images` of {source}", facts)
        if are_classes or facts is not None:
            labels[split] = _labels(y, len(x), f"`{split}_labels` of {source}", facts)
        else:
            labels[split] = torch.from_numpy(y)
    measured = facts is None
    if facts is None:
        highest = max(int(y.max()) for y in labels.values()) if are_classes else -1
        facts = _Facts(highest + 1, *mean_std(train_x))
    valid_x = None
    if "valid" in splits:
        valid_x = splits["valid"][0]
    return Images(
        train_x=train_x,
        train_y=labels["train"],
        test_x=splits["test"][0],
        test_y=labels["test"],
        num_classes=facts.num_classes,
        mean=facts.mean,
        std=facts.std,
        valid_x=valid_x,
        valid_y=labels.get("valid"),
        measured=measured,
    )


def _check_inputs(x: Tensor, train_x: Tensor, name: str, facts: _Facts | None) -> None:
    are_images = x.dtype == torch.uint8 and x.ndim == 4
    are_features = x.dtype in FEATURES and x.ndim >= 2
    if not are_images and not are_features:
        raise ValueError(f"{name} must be uint8 [N, C, H, W] or float32 [N, ...], got {_kind(x)}.")
    if facts is not None and not (are_images and x.shape[1] == len(facts.mean)):
        raise ValueError(f"{name} must be uint8 with {len(facts.mean)} channel(s), got [N, C, H, W] = {_kind(x)}.")
    if x.dtype != train_x.dtype or x.shape[1:] != train_x.shape[1:]:
        raise ValueError(f"{name} must match the training images, {_kind(train_x)} but for N, got {_kind(x)}.")
    if x.numel() == 0:
        raise ValueError(f"{name} must not be empty, got {_kind(x)}.")
    if x.requires_grad:
        raise ValueError(f"{name} must be plain values, got a tensor that requires grad; give its `detach()`.")
    if are_features and not x.isfinite().all():
        raise ValueError(f"{name} must be finite, got {int((~x.isfinite()).sum())} values that are not.")


def _labels(y: np.ndarray, num_images: int, name: str, facts: _Facts | None) -> Tensor:
    if not np.issubdtype(y.dtype, np.integer) or y.shape != (num_images,):
        raise ValueError(f"{name} must be integers [{num_images}], one per image, got {_kind(y)}.")
    least, most = y.min(), y.max()
    if facts is None and not 0 <= least <= most < MOST_CLASSES:
        raise ValueError(f"{name} must be class indices, 0 to {MOST_CLASSES - 1}, got {least} to {most}.")
    if facts is not None and not 0 <= least <= most < facts.num_classes:
        raise ValueError(f"{name} must be class indices, in [0, {facts.num_classes}), got {least} to {most}.")
    return torch.from_numpy(y.astype(np.int64))


def _kind(x: Tensor | np.ndarray) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


def mean_std(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each channel of uint8 images ``[N, C, H, W]`` on the [0, 1] scale; empty for float features."""
    if x.dtype != torch.uint8:
        return (), ()
    # How often each of the 256 levels occurs, [C, 256], gives both without a float copy of the images.
    counts = [torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)]
    shares = torch.stack(counts).double() / x[:, 0].numel()
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ levels
    std = (shares * (levels - mean[:, None]) ** 2).sum(dim=1).sqrt()
    std[std == 0] = 1.0  # a constant channel becomes 0, not 0 / 0
    return tuple(mean.tolist()), tuple(std.tolist())


def _read_npz(path: Path, facts: _Facts | None) -> Images:
    if not path.is_file():
        raise FileNotFoundError(f"`dataset` must name an .npz file in the current folder or in `root`, no file {path}.")
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
    splits = {}
    for name in names:
        x = channels_first(arrays[f"{name}_images"], f"`{name}_images` of {path}")
        splits[name] = (x, arrays[f"{name}_labels"])
    return _images(splits, str(path), facts)


def channels_first(x: np.ndarray, name: str) -> Tensor:
    """uint8 ``[N, H, W]`` or ``[N, H, W, C]`` as ``[N, C, H, W]``; float32 as it is."""
    if x.dtype == np.float32:
        return torch.from_numpy(x)
    grey = x.ndim == 3
    # More than 4 channels are most likely [N, C, H, W], which would be read as images of 3 rows.
    coloured = x.ndim == 4 and x.shape[3] <= 4
    if x.dtype != np.uint8 or not (grey or coloured):
        raise ValueError(f"{name} must be uint8 [N, H, W] or [N, H, W, C <= 4], or float32 [N, ...], got {_kind(x)}.")
    if grey:
        x = x[..., None]
    return torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()


def _stack(dataset: Dataset, name: str) -> tuple[Tensor, np.ndarray]:
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        x, y = dataset.tensors
        if x.dtype == torch.uint8 and x.ndim == 3:
            x = x[:, None]
        return x, y.numpy()
    xs: list[Tensor] = []
    ys: list[int] = []
    for i, item in enumerate(_items(dataset)):
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise ValueError(f"`{name}` must give pairs (x, y), got {type(item).__name__} at item {i}.")
        xs.append(_item(item[0], f"x at item {i} of `{name}`"))
        if xs[i].dtype != xs[0].dtype or xs[i].shape != xs[0].shape:
            raise ValueError(f"x at item {i} of `{name}` must be {_kind(xs[0])} as item 0, got {_kind(xs[i])}.")
        try:
            ys.append(operator.index(item[1]))
        except TypeError:
            raise ValueError(f"y at item {i} of `{name}` must be an integer, got {item[1]!r}.") from None
    if not xs:
        raise ValueError(f"`{name}` must not be empty, got no items.")
    return torch.stack(xs), np.array(ys)


def _items(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, IterableDataset):
        yield from dataset
    elif not hasattr(dataset, "__getitem__"):
        raise ValueError(f"`data` must be given data sets, with items and a length, got a {type(dataset).__name__}.")
    else:
        for i in range(len(dataset)):  # a data set need not know its end otherwise
            yield dataset[i]


def _item(x: Any, name: str) -> Tensor:
    if isinstance(x, Tensor):
        if x.dtype == torch.uint8 and x.ndim == 2:
            return x[None]
        return x
    if getattr(x, "mode", "L") not in ("L", "RGB"):
        raise ValueError(f"{name} must be a grey (L) or RGB image, got mode {x.mode}.")
    return channels_first(np.array(x)[None], name)[0]
