"""What data may be given: any data set, columns, tables, folders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import zeros
from torch.utils.data import Dataset, TensorDataset

from fedlit import FederatedData
from fedlit.data.items import describe, equal
from fedlit.data.splits import LazySamples, StackedSamples
from fedlit.partition import IID, ByColumn


def ready(train, test=None, **options) -> FederatedData:
    defaults = {"num_clients": 2, "batch_size": 4, "val_size": 0.2, **({} if test is not None else {"test_size": 0.25})}
    data = FederatedData(train_dataset=train, test_dataset=test, **{**defaults, **options})
    data.setup()
    return data


def batch(data: FederatedData):
    return next(iter(data.client(0).train_batches()))


class Made(Dataset):
    def __init__(self, item: Callable[[int], object], size: int = 20) -> None:
        self.item = item
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> object:
        return self.item(index)


@pytest.mark.parametrize(
    ("item", "inputs", "targets"),
    [
        (lambda i: (zeros(3, dtype=torch.float64), 0.5), "float64 [4, 3]", "float32 [4]"),
        (lambda i: (zeros(3), np.float64(i)), "float32 [4, 3]", "float64 [4]"),
        (lambda i: (torch.arange(5), torch.arange(1, 6)), "int64 [4, 5]", "int64 [4, 5]"),
        (lambda i: ([1, 2, i], [0.5, 1.5]), "int64 [4, 3]", "float32 [4, 2]"),
        (lambda i: (np.zeros(3, dtype=bool), torch.tensor([1.0, 0.0])), "bool [4, 3]", "float32 [4, 2]"),
        (lambda i: (Image.new("RGB", (5, 6)), Image.new("L", (5, 6))), "float32 [4, 3, 6, 5]", "int64 [4, 6, 5]"),
        (lambda i: (zeros(2), zeros(3), i % 2), "(float32 [4, 2], float32 [4, 3])", "int64 [4]"),
        (lambda i: ({"a": zeros(2), "b": (i, 0.5)}, i % 2), "{a: float32 [4, 2], b: float32 [4, 2]}", "int64 [4]"),
        (lambda i: {"x": i, "y": {"box": [0.5] * 4, "a": i % 3}}, "int64 [4]", "{box: float32 [4, 4], a: int64 [4]}"),
        (lambda i: {"ids": [i], "old": True, "label": i % 3}, "{ids: int64 [4, 1], old: bool [4]}", "int64 [4]"),
        (lambda i: (np.zeros((3, 5, 5), dtype=np.uint8), i % 2), "float32 [4, 3, 5, 5]", "int64 [4]"),
        (lambda i: (zeros(7, dtype=torch.uint8), i % 2), "uint8 [4, 7]", "int64 [4]"),
        (lambda i: (0.5, i % 2), "float32 [4]", "int64 [4]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("in_memory", ["auto", False])
def test_items_of_any_kind_come_as_tensors_of_their_own_dtype_in_memory_and_read(item, inputs, targets, in_memory):
    data = ready(Made(item), in_memory=in_memory)
    x, y = batch(data)
    assert (describe(x), describe(y)) == (inputs, targets)
    assert isinstance(data.splits.train, StackedSamples if in_memory == "auto" else LazySamples)
    has_classes = targets == "int64 [4]"
    assert bool(data.splits.num_classes) == has_classes
    assert data.client(0).num_classes == data.splits.num_classes


def test_keys_of_a_dict_are_chosen_by_name():
    def item(i):
        return {"a": torch.tensor(float(i)), "b": torch.tensor(-float(i)), "who": i % 2, "price": float(i)}

    data = ready(Made(item), target="price", features=["b"], client="who")
    x, y = batch(data)
    assert torch.equal(x, -y)
    assert data.client_names == ["0", "1"]
    x, _ = batch(ready(Made(item), target="price", client="who"))
    assert sorted(x) == ["a", "b"]


@pytest.mark.parametrize(
    ("item", "options", "message"),
    [
        ({"a": 1.0, "b": 2.0}, {}, "`data.target` must say which of the keys of `data.train_dataset` .*: a, b"),
        ({"a": 1.0, "b": 2.0}, {"target": "c"}, "`data.target` must be one of the keys of .*: a, b; got c"),
        ({"a": 1.0, "y": 2.0}, {"features": ["c"]}, "`data.features` must name inputs among the keys of .*, a, got c"),
        ({"a": 1.0, "y": 2.0}, {"client": "who"}, "`data.client` must be one of the keys of .*: a, y; got who"),
        ((1.0, 2.0), {"target": "y"}, "`data.target` names a key or a column, but .* gives a tuple"),
        ((1.0, 2.0), {"client": "who"}, "`data.client` names a key or a column, but .* gives a tuple"),
        ({"x": {"a": 1.0}, "y": 0}, {"mean": 0.5}, r"`data.mean` is for images or .*, but .*\{a: float32"),
    ],
)
def test_names_that_are_not_there_are_refused(item, options, message):
    with pytest.raises(ValueError, match=message) as refusal:
        ready(Made(lambda i: item), **options)
    assert "\n" not in str(refusal.value)


def test_a_test_set_is_set_apart_of_every_class_by_the_partition_seed():
    whole = TensorDataset(torch.arange(40.0)[:, None], torch.arange(40) % 4)
    data = ready(whole)
    assert torch.bincount(data.splits.test.y).tolist() == [2, 2, 2, 2]
    together = torch.cat([data.splits.train.x, data.splits.test.x]).flatten()
    assert sorted(together.tolist()) == list(range(40))
    assert torch.equal(ready(whole).splits.test.x, data.splits.test.x)
    assert not torch.equal(ready(whole, partition_seed=1).splits.test.x, data.splits.test.x)
    reads = ready(whole, in_memory=False)
    assert equal(list(reads.test_batches()), list(data.test_batches()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_size": None}, "go together: give both, or `data.test_size`, such as 0.2"),
        ({"test_size": 1.0}, r"`data.test_size` is a fraction in \(0, 1\), got 1.0"),
        ({"test_size": 0.001}, "`data.test_size` 0.001 of 20 samples leaves 20 samples to train on and 0 to test"),
        ({"num_workers": -1}, "`data.num_workers` must be at least 0, got -1"),
        ({"in_memory": "never"}, "`data.in_memory` must be one of auto, True, False, got .never."),
        ({"collate_fn": 3}, "`data.collate_fn` must be a function of a list of items, got 3"),
        ({"target": 3}, "`data.target` must be the name of a column or a key, got 3"),
        ({"features": "a"}, "`data.features` must be a list of columns or keys, got 'a'"),
        ({"image_size": 0}, "`data.image_size` must be at least 1, got 0"),
    ],
)
def test_options_of_reading_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        ready(Made(lambda i: (zeros(2), i % 2)), **options)


class Feature:
    num_classes = 7


class Hugging:
    """What fedlit asks of a data set of Hugging Face's."""

    def __init__(self, columns: dict[str, list], features: dict | None = None) -> None:
        self.columns = columns
        self.column_names = list(columns)
        self.features = features or dict.fromkeys(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        assert type(key) is int
        return {name: values[key] for name, values in self.columns.items()}


def test_a_hugging_face_data_set_is_read_by_its_columns():
    images = [Image.new("L", (4, 4), i) for i in range(20)]
    users = [f"u{i % 2}" for i in range(20)]
    given = Hugging({"image": images, "user": users, "label": [i % 3 for i in range(20)]}, {"label": Feature()})
    data = ready(given, client="user")
    assert data.splits.num_classes == 7  # as its feature says, though nobody has the others
    assert data.splits.train.x.shape[1:] == (1, 4, 4)
    assert data.client_names == ["u0", "u1"]
    for k in range(2):
        assert (data.splits.train.x[data.assignment.train[k]][:, 0, 0, 0] % 2 == k).all()


def test_text_classes_are_sorted_over_training_and_test():
    train = Hugging({"ids": [[i, i] for i in range(10)], "label": ["cat", "dog"] * 5})
    test = Hugging({"ids": [[i, i] for i in range(4)], "label": ["ant", "dog"] * 2})
    data = ready(train, test)
    assert data.splits.train.y.tolist() == [1, 2] * 5
    assert data.splits.test.y.tolist() == [0, 2] * 2
    assert data.splits.num_classes == 3


def frame(**more) -> pd.DataFrame:
    rows = np.arange(20)
    columns = {"size": rows * 0.5, "rooms": rows % 4, "old": rows % 2 == 0, "user": [f"u{i % 2}" for i in rows]}
    return pd.DataFrame({**columns, "label": ["b", "a"] * 10, **more})


def test_a_frame_gives_its_numbers_as_features_and_text_as_classes():
    data = ready(frame(), client="user")
    assert data.splits.train.x.dtype == torch.float32
    assert data.splits.train.x.shape == (16, 3)
    assert data.splits.num_classes == 2
    whole = torch.cat([data.splits.train.x, data.splits.test.x])
    labels = torch.cat([data.splits.train.y, data.splits.test.y])
    assert torch.equal(labels, (whole[:, 0] * 2 % 2 == 0).long())  # "a" is class 0, of odd rows
    assert isinstance(data.partition, ByColumn)
    assert isinstance(ready(frame(), client="user", partition=IID()).partition, IID)


def test_floats_of_a_frame_are_values_and_whole_numbers_classes():
    values = ready(frame().drop(columns=["label"]), target="size", client="user")
    assert values.splits.num_classes == 0
    assert values.splits.train.y.dtype == torch.float32
    classes = ready(frame().drop(columns=["label"]), target="rooms", client="user", features=["size"])
    assert classes.splits.num_classes == 4
    assert classes.splits.train.x.shape == (16, 1)


USER = {"client": "user"}


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (frame(), {}, "column `user` of `data.train_dataset` must be numbers .*, got .*: encode or drop it"),
        (frame(size=np.nan), USER, "column `size` of `data.train_dataset` must be finite, got nan in row 0"),
        (frame(label=None), USER, "column `label` of .* must have a value in every row, got none in row 0"),
        (frame(), {"client": "owner"}, "`data.client` must be one of the columns of .*: size, rooms, .*; got owner"),
        (frame(), {"target": "price"}, "`data.target` must be one of the columns of .*: size, .*, label; got price"),
        (frame(), {**USER, "in_memory": False}, "`data.in_memory: false` has no meaning for `data.train_dataset`"),
        (frame(), {**USER, "collate_fn": list}, "`data.collate_fn` has no meaning for `data.train_dataset`, which"),
        (frame()[:0], USER, "`data.train_dataset` must not be empty, got no rows"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_frame_that_cannot_be_learned_from_is_refused_by_its_column(table, options, message):
    with pytest.raises(ValueError, match=message) as refusal:
        ready(table, **options)
    assert "\n" not in str(refusal.value)


def test_a_csv_is_its_frame(tmp_path):
    frame().to_csv(tmp_path / "table.csv", index=False)
    for place in ({"dataset": "table.csv"}, {"dataset": "table.csv", "root": str(tmp_path)}):
        data = FederatedData(**place, num_clients=2, client="user", test_size=0.25)
        data.prepare_data()
        data.setup()
        assert torch.equal(data.splits.train.x, ready(frame(), client="user").splits.train.x)


def test_a_file_that_is_no_table_is_refused(tmp_path, monkeypatch):
    def refusal(dataset: str) -> str:
        with pytest.raises((ValueError, FileNotFoundError)) as error:
            FederatedData(dataset, num_clients=2, test_size=0.25).setup()
        assert "\n" not in str(error.value)
        return str(error.value)

    Path("empty.csv").write_text("")
    Path("table.parquet").write_bytes(b"PAR1")
    assert "`data.dataset` empty.csv cannot be read as a table: No columns" in refusal("empty.csv")
    assert "`data.dataset` gone.csv: there is no such file" in refusal("gone.csv")

    def without_engine(*_: object) -> None:
        raise ImportError("Unable to find a usable engine;\ntried using: 'pyarrow', 'fastparquet'.")

    monkeypatch.setattr(pd, "read_parquet", without_engine)
    assert refusal("table.parquet").endswith("needs what pandas reads parquet by: pip install pyarrow.")
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    assert refusal("empty.csv").endswith("needs pandas: pip install 'fedlit[report]'.")


def write_images(folder: Path, mode: str = "RGB", size: int = 5, per_class: int = 4) -> None:
    for label, name in enumerate(("ant", "bee")):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            shade = 10 * label + i
            image = Image.new(mode, (size, size), shade if mode == "L" else (shade,) * 3)
            image.save(folder / name / f"{i}.png")


def of_folder(folder: str, **options) -> FederatedData:
    data = FederatedData(folder, num_clients=2, **options)
    data.prepare_data()
    data.setup()
    return data


def test_a_folder_has_a_class_in_each_folder_in_train_and_test(tmp_path):
    write_images(tmp_path / "photos/train")
    write_images(tmp_path / "photos/test", per_class=1)
    data = of_folder("photos/")
    assert data.splits.train.x.shape == (8, 3, 5, 5)
    assert data.splits.train.y.tolist() == [0] * 4 + [1] * 4
    assert data.splits.test.x[:, 0, 0, 0].tolist() == [0, 10]
    assert torch.equal(of_folder("photos", root=str(tmp_path)).splits.train.x, data.splits.train.x)
    assert equal(list(of_folder("photos", in_memory=False).test_batches()), list(data.test_batches()))


def test_a_folder_without_train_and_test_is_split_and_grey_stays_grey(tmp_path):
    write_images(tmp_path / "photos", mode="L")
    data = of_folder("photos", test_size=0.25)
    assert data.splits.train.x.shape == (6, 1, 5, 5)
    with pytest.raises(ValueError, match=r"`data.dataset` has no test set: set `data.test_size`"):
        of_folder("photos")


def test_images_of_different_sizes_are_resized_or_refused(tmp_path):
    write_images(tmp_path / "photos")
    Image.new("RGB", (9, 4)).save(tmp_path / "photos/ant/wide.png")
    with pytest.raises(ValueError, match=r"`data.dataset` gives samples of different shapes .*uint8 \[3, 4, 9\]"):
        of_folder("photos", test_size=0.25)
    assert of_folder("photos", test_size=0.25, image_size=6).splits.train.x.shape[1:] == (3, 6, 6)


def test_options_that_have_no_meaning_are_refused(tmp_path):
    write_images(tmp_path / "photos/train")
    write_images(tmp_path / "photos/test")
    for options in ({"dataset": "photos", "test_size": 0.2}, {"test_size": 0.2}):
        with pytest.raises(ValueError, match=r"`data.test_size` is for data without a test set, but these have one"):
            of_folder(options.pop("dataset", "fashion_sample"), **options)
    with pytest.raises(ValueError, match=r"`data.image_size` is for a folder .* but `data.dataset` is fashion_sample"):
        of_folder("fashion_sample", image_size=8)
    with pytest.raises(ValueError, match=r"`data.image_size` is for a folder .* but `data.train_dataset` is given"):
        FederatedData(train_dataset=frame(), test_size=0.2, image_size=8)


def test_a_folder_without_images_or_with_a_broken_one_is_refused(tmp_path):
    (tmp_path / "photos/ant").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"`data.dataset` photos must hold a folder of images for each class"):
        of_folder("photos", test_size=0.25)
    (tmp_path / "photos/ant/a.png").write_text("no image")
    with pytest.raises(ValueError, match=r"photos/ant/a.png cannot be read as an image"):
        of_folder("photos", test_size=0.25)


@pytest.mark.parametrize("name", ["partition", "test_dataset"])
def test_an_option_that_is_set_after_setup_is_refused(name):
    data = FederatedData(train_dataset=frame(), client="user", num_clients=2, test_size=0.25)
    setattr(data, name, getattr(data, name))  # before, it may be
    data.setup()
    with pytest.raises(AttributeError, match=rf"`data.{name}` is fixed .*: make another FederatedData\({name}="):
        setattr(data, name, getattr(data, name))
