import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import zeros
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedlit.data.datasets import DATASETS, read_images
from fedlit.data.sources import ReadOptions, read_sets


def arrays(**changed: np.ndarray | None) -> dict[str, np.ndarray]:
    """Six training and four test images of 5 x 4 RGB pixels; a key that is changed to None is left out."""
    rng = np.random.default_rng(0)
    plain = {
        "train_images": rng.integers(256, size=(6, 5, 4, 3), dtype=np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8),
        "test_images": rng.integers(256, size=(4, 5, 4, 3), dtype=np.uint8),
        "test_labels": np.array([0, 1, 2, 3]),
    }
    return {key: value for key, value in (plain | changed).items() if value is not None}


def write(path: Path, **changed: np.ndarray | None) -> str:
    np.savez(path, **arrays(**changed))
    return str(path)


class Pairs(Dataset):
    def __init__(self, *items: object) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> object:
        return self.items[i]  # unlike a list, a Dataset need not raise IndexError


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(zeros(3), 0)])


def from_datasets(train: Dataset, test: Dataset):
    return read_sets({"train": train, "test": test}, ReadOptions())


def test_the_embedded_sample_is_balanced_and_needs_no_folder():
    images = read_images("fashion_sample", "/nowhere")
    assert images.train_x.shape == (6000, 1, 28, 28)
    assert images.test_x.shape == (1000, 1, 28, 28)
    assert images.train_x.dtype == torch.uint8
    assert images.train_y.bincount().tolist() == [600] * 10
    assert images.test_y.bincount().tolist() == [100] * 10
    assert (images.num_classes, images.mean, images.std) == (10, (0.286,), (0.353,))
    assert images.valid is None


def test_own_images_are_channels_first_and_bring_their_own_mean_and_std(tmp_path):
    images = read_images(write(tmp_path / "own.npz"), "/nowhere")
    raw = arrays()["train_images"]
    assert images.train_x.shape == (6, 3, 5, 4)
    assert images.train_x.is_contiguous()
    assert images.train_x[2, 1, 4, 3] == raw[2, 4, 3, 1]
    assert images.mean == pytest.approx((raw / 255).mean(axis=(0, 1, 2)))
    assert images.std == pytest.approx((raw / 255).std(axis=(0, 1, 2)))
    assert images.test_y.dtype == torch.int64
    assert images.num_classes == 4  # the largest label is in the test set


def test_grey_images_gain_a_channel_and_float_features_stay_as_they_are(tmp_path):
    grey = arrays()["train_images"][..., 0]
    images = read_images(write(tmp_path / "grey.npz", train_images=grey, test_images=grey[:4]), ".")
    assert torch.equal(images.train_x[:, 0], torch.from_numpy(grey))
    features = np.linspace(-9, 9, 42, dtype=np.float32).reshape(6, 7)
    images = read_images(write(tmp_path / "features.npz", train_images=features, test_images=features[:4]), ".")
    assert torch.equal(images.train_x, torch.from_numpy(features))
    assert (images.mean, images.std) == ((), ())


def test_an_own_file_is_looked_up_in_the_current_folder_then_in_root(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "root").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(FileNotFoundError, match=r"^`data.dataset` own.npz: .* here, nor .* as ../root/own.npz\.$"):
        read_images("own.npz", "../root")
    with pytest.raises(FileNotFoundError, match=r"^`data.dataset` /no/own.npz: there is no such file\.$"):
        read_images("/no/own.npz", "../root")
    write(tmp_path / "root" / "own.npz")
    assert read_images("own.npz", "../root").num_classes == 4
    write(tmp_path / "here" / "own.npz", test_labels=np.array([0, 0, 0, 8]))
    assert read_images("own.npz", "../root").num_classes == 9


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_labels": None}, "must hold the arrays .*; missing: test_labels"),
        ({"valid_images": np.zeros((1, 5, 4, 3), np.uint8)}, "missing: valid_labels"),
        ({"train_labels": np.zeros(5, int)}, r"`train_labels` .* integers \[6\], one per image, got int64 \[5\]"),
        ({"test_labels": np.array(list("abcd"))}, r"`test_labels` .* must be integers .* got <U1"),
        ({"test_labels": np.array([0, 1, -1, 2])}, "`test_labels` .* 0 to 999999, got -1 to 2"),
        ({"train_images": np.zeros((6, 20), np.uint8)}, r"`train_images` .* \[N, H, W\] or .* got uint8 \[6, 20\]"),
        ({"train_images": np.zeros((6, 3, 32, 32), np.uint8)}, r"C <= 4.* got uint8 \[6, 3, 32, 32\]"),
        ({"train_images": np.zeros((6, 5, 4, 3))}, "`train_images` .* uint8 .* or float32 .* got float64"),
        ({"train_images": np.zeros(6, np.float32)}, r"`train_images` .* got float32 \[6\]"),
        ({"test_images": np.zeros((4, 4, 5, 3), np.uint8)}, r"`test_images` .* must match the training images"),
        ({"train_images": np.zeros((0, 5, 4, 3), np.uint8), "train_labels": np.zeros(0, int)}, "must not be empty"),
        ({"train_images": np.full((6, 2), np.nan, np.float32)}, "finite, got nan at .0, 0., the first of 12 "),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_bad_array_is_refused_by_file_and_key(tmp_path, changed, message):
    path = write(tmp_path / "bad.npz", **changed)
    with pytest.raises(ValueError, match=message) as refusal:
        read_images(path, ".")
    assert "bad.npz" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK\x03\x04 and no more"),
        lambda path: np.savez(path, **arrays(test_labels=np.array([{}, [], 1, 2], dtype=object))),
    ],
    ids=["empty", "truncated", "pickle"],
)
def test_a_file_that_is_no_npz_of_plain_arrays_is_refused(tmp_path, spoil):
    spoil(tmp_path / "bad.npz")
    with pytest.raises(ValueError, match=r"bad\.npz must (be an \.npz file of plain arrays|hold the arrays)"):
        read_images("bad.npz", str(tmp_path))


@pytest.mark.parametrize(("typed", "meant"), [("CIFAR-10", "cifar10"), ("minst", "mnist")])
def test_a_misspelt_name_is_answered_with_the_near_one_and_all_allowed(typed, meant):
    with pytest.raises(ValueError, match=rf"must be one of {', '.join(DATASETS)} .* did you mean '{meant}'\?"):
        read_images(typed, ".")


def test_a_known_data_set_is_read_from_root_with_its_published_mean_and_number_of_classes(tmp_path):
    write(tmp_path / "cifar100.npz")
    images = read_images("cifar100", str(tmp_path))
    assert images.num_classes == 100
    assert images.mean == (0.4914, 0.4822, 0.4465)
    write(tmp_path / "cifar10.npz", test_labels=np.array([0, 1, 2, 10]))
    with pytest.raises(ValueError, match=r"`test_labels` .* in \[0, 10\), got 0 to 10"):
        read_images("cifar10", str(tmp_path))
    write(tmp_path / "mnist.npz")
    with pytest.raises(ValueError, match=r"must be uint8 with 1 channel\(s\), got .* \[6, 3, 5, 4\]"):
        read_images("mnist", str(tmp_path))


class Downloaded:
    """Stands in for torchvision's class; CIFAR's labels are a list there."""

    def __init__(self, root: Path, train: bool, download: bool) -> None:
        assert download
        split = "train" if train else "test"
        self.data, self.targets = arrays()[f"{split}_images"], arrays()[f"{split}_labels"].tolist()


def test_a_download_is_kept_as_npz_and_not_repeated(tmp_path, monkeypatch):
    import torchvision

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Downloaded)
    first = read_images("cifar10", str(tmp_path / "new"))
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["cifar10.npz"]  # and no temporary file
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", None)
    again = read_images("cifar10", str(tmp_path / "new"))
    assert torch.equal(again.train_x, first.train_x)
    assert torch.equal(again.test_y, torch.tensor([0, 1, 2, 3]))


@pytest.mark.parametrize("error", [RuntimeError("Error downloading:\nTried a mirror"), ConnectionError("no network")])
def test_a_download_that_fails_says_where_the_file_belongs(tmp_path, monkeypatch, error):
    import torchvision

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torchvision.datasets, "MNIST", fail)
    with pytest.raises(FileNotFoundError, match=r"No file .*/mnist\.npz, and the download failed.* `root`") as refusal:
        read_images("mnist", str(tmp_path))
    assert "\n" not in str(refusal.value)
    assert "need no download: `fedlit fit --config fml_fashion.yaml`." in str(refusal.value)
    assert not list(tmp_path.iterdir())


def write_cinic10(root: Path) -> None:
    for shade, split in enumerate(("train", "valid", "test")):
        for label in range(10):
            folder = root / "CINIC-10" / split / f"class_{label}"
            folder.mkdir(parents=True)
            mode, colour = ("L", label) if label == 9 else ("RGB", (label, shade, 0))  # CINIC-10 has grey files, too
            Image.new(mode, (32, 32), colour).save(folder / "a.png")


def test_cinic10_is_read_from_its_folders_with_its_third_split_and_kept(tmp_path):
    write_cinic10(tmp_path)
    first = read_images("cinic10", str(tmp_path))
    (tmp_path / "CINIC-10").rename(tmp_path / "gone")
    again = read_images("cinic10", str(tmp_path))
    for images in (first, again):
        assert images.valid.y.tolist() == list(range(10))
        assert images.train_x.shape == (10, 3, 32, 32)
        assert images.valid.x[:9, :, 0, 0].tolist() == [[label, 1, 0] for label in range(9)]
        assert images.valid.x[9, :, 0, 0].tolist() == [9, 9, 9]
        assert images.std == (0.24205776, 0.23828046, 0.25874835)


def test_cinic10_without_its_folders_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cinic10\.npz, and .*/CINIC-10 .* ten folders .* got \[0, 0, 0\]"):
        read_images("cinic10", str(tmp_path))


def test_every_kind_of_image_gives_the_same_tensor():
    pixels = arrays()["train_images"]
    expected = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    labels = [0, 1, 2, 0, 1, 2]
    kinds = {
        "array": Pairs(*zip(pixels, labels, strict=True)),
        "PIL": Pairs(*((Image.fromarray(x), np.int32(y)) for x, y in zip(pixels, labels, strict=True))),
        "tensor": Pairs(*zip(expected, torch.tensor(labels), strict=True)),
        "TensorDataset": TensorDataset(expected, torch.tensor(labels, dtype=torch.int32)),
    }
    for kind, dataset in kinds.items():
        images = from_datasets(dataset, dataset)
        assert torch.equal(images.train_x, expected), kind
        assert torch.equal(images.test_y, torch.tensor(labels)), kind
        assert images.mean == pytest.approx((pixels / 255).mean(axis=(0, 1, 2))), kind
        assert images.num_classes == 3


GOOD = Pairs((zeros(3), 0))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (Pairs(), "`train` must not be empty"),
        (Pairs(zeros(2)), r"`train` must give pairs \(x, y\), or dicts with a `data.target`, got Tensor"),
        (Pairs((zeros(3), 0), (zeros(4), 0)), r"different shapes .* \(float32 \[3\], .* at item 1: .*collate_fn"),
        (Pairs((zeros(3), 0), (zeros(3), 0.5)), r"int64 \[\]\) at item 0 and .*float32 \[\]\) at item 1"),
        (Pairs((zeros(3), -2)), "targets of `train` .*, got -2 to -2; what is no class must be a float"),
        (Pairs((zeros(3), 0.5)), "targets of `test` must be of the kind of targets of `train`, got float32"),
        (Pairs((zeros(4), 0)), "inputs of `test` must match the training images"),
        (Pairs((torch.full((3,), torch.nan), 0)), "inputs of `train` .* finite, got nan at .0, 0., the first of 3 "),
        (Pairs((zeros(3, requires_grad=True), 0)), "must be plain values, got a tensor that requires grad"),
        (Pairs((Image.new("P", (2, 2)), 0)), r"x at item 0 .* grey \(L\) or RGB image, got mode P"),
        (Pairs(("a path", 0)), "x at item 0 of `train` must be numbers, a tensor, .* got str; .* `data.collate_fn`"),
        (Pairs(({"text": "words"}, 0)), r"x at item 0 of `train`\['text'\] must be numbers"),
        (Stream(), "`train` must be a data set, with items and a length, got a Stream"),
        (object(), "`train` must be a data set, with items and a length, got a object"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_data_set_that_gives_something_else_is_refused(train, message):
    with pytest.raises(ValueError, match=message) as refusal:
        from_datasets(train, GOOD)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.skipif("FEDLIT_DATA" not in os.environ, reason="FEDLIT_DATA names no folder of full data sets")
@pytest.mark.parametrize(
    ("dataset", "train", "channels"), [("mnist", 60000, 1), ("fashion_mnist", 60000, 1), ("cifar10", 50000, 3)]
)
def test_the_full_data_sets_have_their_published_size_and_mean(dataset, train, channels):
    images = read_images(dataset, os.environ["FEDLIT_DATA"])
    assert (len(images.train_x), len(images.test_x)) == (train, 10000)
    means = images.train_x.float().mean(dim=(0, 2, 3)) / 255
    assert means.tolist() == pytest.approx(images.mean, abs=5e-4)
    assert len(images.std) == channels


def test_grey_items_gain_a_channel_and_float_items_stay_as_they_are():
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for x in (grey, Image.fromarray(grey), torch.from_numpy(grey)):
        assert from_datasets(Pairs((x, 0)), Pairs((x, 1))).train_x.tolist() == [[grey.tolist()]]
    stacked = TensorDataset(torch.from_numpy(grey)[None], torch.tensor([0]))
    assert from_datasets(stacked, stacked).train_x.shape == (1, 1, 2, 3)
    for x in (torch.full((2, 3), 7.5), np.full((2, 3), 7.5, dtype=np.float32)):
        images = from_datasets(Pairs((x, 0)), Pairs((x, 1)))
        assert torch.equal(images.train_x, torch.full((1, 2, 3), 7.5))
        assert images.mean == ()
