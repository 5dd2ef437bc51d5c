"""Labelled images in files: five well-known data sets, a real sample that ships with fedlit, and the user's own.

An ``.npz`` has ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``, and, as CINIC-10 has them,
perhaps ``valid_images`` and ``valid_labels``. Images are uint8, ``[N, H, W]`` or ``[N, H, W, C]`` (not
``[N, C, H, W]``), or float32 features of any shape ``[N, ...]``; labels are integers ``[N]`` that count from 0.
A folder has a folder of images for each class.
"""

import difflib
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm  # type: ignore[import-untyped]  # it has no type hints

from fedlit.data.batches import Batches
from fedlit.data.items import describe
from fedlit.data.splits import Facts, Splits, StackedSamples, is_images, splits_of

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData

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
TORCHVISION = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}
TABLES = (".csv", ".parquet")
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_SAMPLE = Path(__file__).parent / "assets" / "fashion_mnist_7000.npz"


def published_classes(dataset: str) -> int | None:
    """How many classes a data set has, where that is known without reading it.

    Example:
        >>> published_classes("cifar100"), published_classes("own.npz")
        (100, None)
    """
    return _FACTS[dataset].num_classes if dataset in _FACTS else None


def fetch(dataset: str, root: str) -> Path:
    """The file or the folder of a data set; of a well-known one, downloaded (or converted) if it is missing."""
    if dataset == "fashion_sample":
        return _SAMPLE
    if dataset in DATASETS:
        path = Path(root).expanduser() / f"{dataset}.npz"
        if not path.is_file():
            save_npz(path, read_cinic10(path) if dataset == "cinic10" else download(dataset, path))
        return path
    own = Path(dataset).expanduser()
    places = [own, Path(root).expanduser() / own]
    is_file = own.suffix.lower() in (".npz", *TABLES)
    for path in places:
        if path.is_dir() or (is_file and path.is_file()):
            return path
    missing = f"there is no such {'file' if is_file else 'file or folder'}"
    if places[0] != places[1]:  # not a path from the root of all
        missing += f" here, nor in `data.root`, as {places[1]}"
    if is_file:
        raise FileNotFoundError(f"`data.dataset` {dataset}: {missing}.")
    hint = "." if any(path.exists() for path in places) else f"; {missing}."
    for close in difflib.get_close_matches(dataset.lower(), DATASETS, n=1):
        hint = f"; did you mean {close!r}?"
    allowed = f"one of {', '.join(DATASETS)} or the path of an .npz, a table or a folder of images"
    raise ValueError(f"`data.dataset` must be {allowed}, got {dataset!r}{hint}")


def read_images(dataset: str, root: str) -> Splits:
    """A well-known data set by its name, or the user's own ``.npz``, which brings its own mean and deviation.

    Args:
        dataset: One of ``DATASETS``, or a path that ends in ``.npz``, from the current folder or else from ``root``.
        root: Folder that holds ``<dataset>.npz``. What is missing there is downloaded (CINIC-10: read from the folder
            ``CINIC-10``) and kept there as that file.
    """
    path = fetch(dataset, root)
    facts = _FACTS.get(dataset)
    arrays = load_npz(path)
    names = ["train", "test"]
    if any(key.startswith("valid_") for key in arrays):
        names.append("valid")
    keys = [f"{name}_{what}" for name in names for what in ("images", "labels")]
    missing = [key for key in keys if key not in arrays]
    if missing:
        raise ValueError(f"{path} must hold the arrays {', '.join(keys)}; missing: {', '.join(missing)}.")
    whose = str(path) if facts is not None else f"`data.dataset` {path}"
    parts = {}
    calls = {}
    for name in names:
        calls[name] = (f"`{name}_images` of {whose}", f"`{name}_labels` of {whose}")
        x = channels_first(arrays[f"{name}_images"], calls[name][0])
        y = arrays[f"{name}_labels"]
        if y.dtype.kind not in "iu" or y.shape != (len(x),):
            raise ValueError(f"{calls[name][1]} must be integers [{len(x)}], one per image, got {_kind(y)}.")
        parts[name] = StackedSamples(x, torch.from_numpy(y.astype(np.int64)))
    return splits_of(parts, calls, facts)


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz``."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("not a zip archive")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception as error:  # a damaged file raises what it likes, and may claim any size
        raise ValueError(f"{path} must be an .npz file of plain arrays; reading failed: {error!r}.") from error
    return {key: array for key, array in arrays.items() if isinstance(array, np.ndarray)}  # other members are bytes


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


def _kind(x: np.ndarray) -> str:
    return f"{x.dtype} {list(x.shape)}"


def save_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Whole or not at all: several processes may read, and write, at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        np.savez(temporary, **arrays)  # type: ignore[arg-type]  # numpy's stub takes an array for `allow_pickle`
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def download(dataset: str, path: Path) -> dict[str, np.ndarray]:
    """The arrays of a data set that torchvision knows."""
    import torchvision.datasets  # type: ignore[import-untyped]  # it has no type hints; slow, and needed once

    source = getattr(torchvision.datasets, TORCHVISION[dataset])
    arrays: dict[str, np.ndarray] = {}
    try:
        for split in ("train", "test"):
            found = source(path.parent, train=split == "train", download=True)
            arrays[f"{split}_images"] = np.asarray(found.data)
            arrays[f"{split}_labels"] = np.asarray(found.targets)
    except Exception as error:  # what lies there from an earlier download may be anything
        why = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
        raise FileNotFoundError(
            f"No file {path}, and the download failed: {why}. Put the file there, or point `root` at "
            "its folder; it holds uint8 train_images and test_images, integer train_labels and test_labels. Recipes "
            "that end in `_fashion.yaml` need no download: `fedlit fit --config fml_fashion.yaml`."
        ) from error
    return arrays


def read_cinic10(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the unpacked folder CINIC-10, beside which their file is to stand."""
    folder = path.parent / "CINIC-10"
    classes = {part: class_folders(folder / part) for part in ("train", "valid", "test")}
    if not all(len(names) == 10 and names == classes["train"] for names in classes.values()):
        raise FileNotFoundError(
            f"No file {path}, and {folder} (https://datashare.ed.ac.uk/handle/10283/3192, unpacked) must hold train, "
            f"valid and test with the same ten folders of .png, got {[len(names) for names in classes.values()]}."
        )
    arrays: dict[str, np.ndarray] = {}
    for part, names in classes.items():
        images = ImageFiles(folder / part, sorted(names))
        progress = tqdm(images, desc=f"CINIC-10 {part}", total=len(images), disable=None)  # None: on a terminal only
        arrays[f"{part}_images"] = np.stack([pixels for pixels, _ in progress])
        arrays[f"{part}_labels"] = np.array(images.targets, dtype=np.uint8)
    return arrays


class ImageFiles(Dataset):
    """Images in files, read when they are asked for; grey ones if the first of every class is grey, else RGB.

    Args:
        folder: Holds a folder of image files for each class.
        classes: Names of these folders, in the order of the classes.
        size: Pixels of a side that they are resized to; None leaves them as they are.

    Attributes:
        targets: The class of each.
    """

    def __init__(self, folder: Path, classes: Sequence[str], size: int | None = None) -> None:
        self.files: list[Path] = []
        self.targets: list[int] = []
        modes = set()
        for label, name in enumerate(classes):
            found = image_files(folder / name)
            self.files += found
            self.targets += [label] * len(found)
            modes |= {_mode(path) for path in found[:1]}
        if not self.files:
            endings = ", ".join(ENDINGS)
            raise ValueError(f"`data.dataset` {folder} must hold a folder of images for each class ({endings}).")
        self.mode = "L" if modes == {"L"} else "RGB"
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return read_image(self.files[index], self.mode, self.size), self.targets[index]


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, by name."""
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in ENDINGS)


def class_folders(folder: Path) -> set[str]:
    """The names of the folders in a folder."""
    return {path.name for path in folder.glob("*") if path.is_dir() and not path.name.startswith(".")}


def read_image(path: Path, mode: str, size: int | None) -> np.ndarray:
    """Pixels ``[H, W]`` (mode L) or ``[H, W, 3]`` (RGB); `size` resizes both sides."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = file.convert(mode)
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}.") from error
    return np.array(image if size is None else image.resize((size, size)))


def _mode(path: Path) -> str:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.mode
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}.") from error


def read_folder(folder: Path, size: int | None) -> dict[str, ImageFiles]:
    """The data sets of a folder: `train` and `test` if it has them, else all as `train`."""
    splits = {name: folder / name for name in ("train", "test") if (folder / name).is_dir()}
    if len(splits) < 2:
        splits = {"train": folder}
    classes = sorted(set().union(*map(class_folders, splits.values())))
    return {name: ImageFiles(path, classes, size) for name, path in splits.items()}


@dataclass(frozen=True)
class OwnImages:
    """Images without labels, to be predicted.

    Attributes:
        name: Of the file or folder, for the file of predictions.
        x: As the data set holds its own, ``[N, C, H, W]``.
        files: Their names, if they came from a folder.
    """

    name: str
    x: Tensor
    files: list[str] | None = None

    def batches(self, data: "FederatedData", client: int | None) -> Batches:
        """Prepared as the test set is; every target is -1."""
        y = torch.full((len(self.x),), -1)
        return Batches(StackedSamples(self.x, y), data.eval_batch_size, transform=data.inputs.transform(client))


def read_own_images(images: str, data: "FederatedData") -> OwnImages:
    """Images of the shape that the data have.

    Args:
        images: An .npz with an array `images`, uint8 ``[N, H, W]`` or ``[N, H, W, C]`` (or float32, where the data
            are), or a folder of image files.
        data: Set up.
    """
    path = Path(images).expanduser()
    like = data.splits.train.example[0]
    kind = describe(like, of_many=True)
    if not isinstance(like, Tensor):
        raise ValueError(f"`--images` is for data whose inputs are images, these are {kind}.")
    if path.is_dir():
        own = _own_folder(path, like, data.image_size)
    elif path.is_file():
        arrays = load_npz(path)
        if "images" not in arrays:
            raise ValueError(f"`--images` {path} must hold an array `images`, got {', '.join(arrays) or 'nothing'}.")
        own = OwnImages(path.stem, channels_first(arrays["images"], f"`images` of {path}"))
    else:
        raise ValueError(f"`--images` must be an .npz or a folder of images, got {images}, and there is no such file.")
    if own.x.dtype != like.dtype or own.x.shape[1:] != like.shape[1:]:
        raise ValueError(f"`--images` {images} holds {describe(own.x, of_many=True)}, but the data are {kind}.")
    if len(own.x) == 0:
        raise ValueError(f"`--images` {images} holds no image.")
    return own


def _own_folder(folder: Path, like: Tensor, size: int | None) -> OwnImages:
    """Every image file in the folder, by name; grey or RGB as the data are, and resized as they were."""
    files = image_files(folder)
    if not files:
        raise ValueError(f"`--images` {folder} holds no image file ({', '.join(ENDINGS)}).")
    if not is_images(like) or like.shape[1] not in (1, 3):
        kind = describe(like, of_many=True)
        raise ValueError(f"`--images` {folder}: a folder of images is for grey or RGB data, these are {kind}.")
    arrays = [read_image(path, "L" if like.shape[1] == 1 else "RGB", size) for path in files]
    for path, array in zip(files, arrays, strict=True):
        if array.shape[:2] != tuple(like.shape[2:]):
            height, width = array.shape[:2]
            wanted = f"{like.shape[2]} x {like.shape[3]}"
            raise ValueError(f"`--images`: {path} is {height} x {width} pixels, but the data are {wanted}.")
    x = channels_first(np.stack(arrays), f"images of {folder}")
    return OwnImages(folder.resolve().name, x, [path.name for path in files])
