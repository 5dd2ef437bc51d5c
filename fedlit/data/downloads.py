"""Well-known data sets from where their makers keep them, as arrays, and as the one file that is read from then on."""

import os
import uuid
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm  # type: ignore[import-untyped]  # it has no type hints

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
