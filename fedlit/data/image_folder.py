"""A folder of images: a folder for each class, in `train` and `test` or by themselves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from fedlit.data.own_images import ENDINGS, resized


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
