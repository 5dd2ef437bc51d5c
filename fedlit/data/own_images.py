"""Images in files of a user's own: a data set in a folder for each class, or images to be predicted."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedlit.data.batches import Batches
from fedlit.data.datasets import channels_first
from fedlit.data.trees import describe

if TYPE_CHECKING:
    from PIL.Image import Image

    from fedlit.data.federated import FederatedData


ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class OwnImages:
    """Images without labels.

    Attributes:
        name: Of the file or folder, for the file of predictions.
        x: As the data set holds its own, ``[N, C, H, W]``.
        files: Their names, if they came from a folder.
    """

    name: str
    x: Tensor
    files: list[str] | None = None

    def batches(self, data: "FederatedData", client: int | None) -> Batches:
        """Made ready as the test set is; every target is -1."""
        y = torch.full((len(self.x),), -1)
        return Batches(self.x, y, data.eval_batch_size, transform=data.inputs.transform(client))


def read_own_images(images: str, data: "FederatedData") -> OwnImages:
    """Images of the shape that the data have.

    Args:
        images: An .npz with an array `images`, uint8 ``[N, H, W]`` or ``[N, H, W, C]`` (or float32, where the data
            are), or a folder of image files.
        data: Set up.
    """
    path = Path(images).expanduser()
    like = data.splits.train.example[0]
    if not isinstance(like, Tensor):
        raise ValueError(f"`--images` is for data whose inputs are images, these are {describe(like, of_many=True)}.")
    if path.is_dir():
        own = _read_folder(path, like, data.image_size)
    elif path.is_file():
        own = OwnImages(path.stem, _read_npz(path))
    else:
        raise ValueError(f"`--images` must be an .npz or a folder of images, got {images}, and there is no such file.")
    if own.x.dtype != like.dtype or own.x.shape[1:] != like.shape[1:]:
        kind = describe(own.x, of_many=True)
        raise ValueError(f"`--images` {images} holds {kind}, but the data are {describe(like, of_many=True)}.")
    if len(own.x) == 0:
        raise ValueError(f"`--images` {images} holds no image.")
    return own


def resized(image: "Image", size: int | None) -> "Image":
    """So many pixels a side; None leaves it as it is."""
    return image if size is None else image.resize((size, size))


def _read_npz(path: Path) -> Tensor:
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("not a zip archive")
        with np.load(path, allow_pickle=False) as file:
            names = list(file.files)
            array = file["images"] if "images" in names else None
    except Exception as error:  # a damaged file raises what it likes, and may claim any size
        raise ValueError(
            f"`--images` {path} must be an .npz file of plain arrays; reading failed: {error!r}."
        ) from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"`--images` {path} must hold an array `images`, got {', '.join(names) or 'nothing'}.")
    return channels_first(array, f"`images` of {path}")


def _read_folder(folder: Path, like: Tensor, size: int | None) -> OwnImages:
    """Every image file in the folder, by name; grey or RGB as the data are, and resized as they were."""
    from PIL import Image, UnidentifiedImageError

    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
    if not files:
        raise ValueError(f"`--images` {folder} holds no image file ({', '.join(ENDINGS)}).")
    mode = {1: "L", 3: "RGB"}.get(like.shape[1]) if like.dtype == torch.uint8 else None
    if mode is None:
        kind = describe(like, of_many=True)
        raise ValueError(f"`--images` {folder}: a folder of images is for grey or RGB data, these are {kind}.")
    arrays = []
    for path in files:
        try:
            with Image.open(path) as image:
                arrays.append(np.array(resized(image.convert(mode), size)))
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise ValueError(f"`--images`: {path} cannot be read as an image: {error}.") from error
        if arrays[-1].shape[:2] != tuple(like.shape[2:]):
            height, width = arrays[-1].shape[:2]
            wanted = f"{like.shape[2]} x {like.shape[3]}"
            raise ValueError(f"`--images`: {path} is {height} x {width} pixels, but the data are {wanted}.")
    x = channels_first(np.stack(arrays), f"images of {folder}")
    return OwnImages(folder.resolve().name, x, [path.name for path in files])


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
        firsts: list[Path] = []
        for label, name in enumerate(classes):
            found = sorted(path for path in (folder / name).glob("*") if path.suffix.lower() in ENDINGS)
            self.files += found
            self.targets += [label] * len(found)
            firsts += found[:1]
        if not self.files:
            endings = ", ".join(ENDINGS)
            raise ValueError(f"`data.dataset` {folder} must hold a folder of images for each class ({endings}).")
        self.mode = "L" if all(_mode(path) == "L" for path in firsts) else "RGB"
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        from PIL import Image

        with Image.open(self.files[index]) as file:
            image = file.convert(self.mode)
        return np.array(resized(image, self.size)), self.targets[index]


def _mode(path: Path) -> str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.mode
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"`data.dataset`: {path} cannot be read as an image: {error}.") from error


def read_folder(folder: Path, size: int | None) -> dict[str, Any]:
    """The data sets of a folder: `train` and `test` if it has them, else all as `train`."""
    splits = {name: folder / name for name in ("train", "test") if (folder / name).is_dir()}
    if len(splits) < 2:
        splits = {"train": folder}
    inside = {name: _classes(path) for name, path in splits.items()}
    classes = sorted(set().union(*inside.values()))
    return {name: ImageFiles(path, classes, size) for name, path in splits.items()}


def _classes(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
