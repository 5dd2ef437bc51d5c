"""A user's own images are predicted as the same images of the test set are."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from toy_recipe import write_npz
from toys import SGD, linear

from fedlit import FederatedData, Federation, LocalOnly
from fedlit.data.datasets import read_own_images


def written(name: str) -> list[dict[str, str]]:
    with open(name) as file:
        return list(csv.DictReader(file))


@pytest.fixture
def data() -> FederatedData:
    write_npz("toy.npz")
    found = FederatedData("toy.npz", num_clients=3)
    found.setup()
    return found


def test_images_of_the_test_set_are_predicted_as_the_test_set(data):
    federation = Federation(accelerator="cpu")
    method = LocalOnly(linear, SGD)
    expected = federation.predict(method, data, client=1)
    np.savez("mine.npz", images=data.images.test_x[:, 0].numpy())
    assert torch.equal(federation.predict(method, data, client=1, images="mine.npz"), expected)
    rows = written("predictions_client_1_mine.csv")
    assert list(rows[0]) == ["index", "predicted", "probability"]
    assert [int(row["predicted"]) for row in rows] == expected.argmax(dim=1).tolist()
    assert list(written("predictions_client_1.csv")[0])[-1] == "label"  # those of the test set are left alone


def test_a_folder_is_predicted_by_name(data):
    Path("photos").mkdir()
    for i, name in enumerate(("b.png", "a.PNG")):
        Image.fromarray(data.images.test_x[i, 0].numpy()).save(f"photos/{name}", format="PNG")
    Path("photos/notes.txt").write_text("not an image")
    federation = Federation(accelerator="cpu")
    method = LocalOnly(linear, SGD)
    expected = federation.predict(method, data, client=0)[:2]
    found = federation.predict(method, data, client=0, images="photos")
    torch.testing.assert_close(found, expected.flip(0))
    rows = written("predictions_client_0_photos.csv")
    assert [row["file"] for row in rows] == ["a.PNG", "b.png"]


def test_a_folder_is_resized_as_the_data_were():
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            folder = Path("pets", split, label)
            folder.mkdir(parents=True)
            for i in range(3):
                Image.fromarray(np.full((6 + i, 9), 40 * i, np.uint8)).save(folder / f"{i}.png")
    with pytest.raises(ValueError, match=r"different shapes .* \(a folder of images by `data.image_size`\)"):
        FederatedData("pets", num_clients=2).setup()
    data = FederatedData("pets", num_clients=2, image_size=8)
    data.setup()
    own = read_own_images("pets/test/cat", data)
    assert own.x.equal(data.splits.test.x[:3])


def write_bad_ones() -> None:
    np.savez("size.npz", images=np.zeros((2, 9, 9), np.uint8))
    np.savez("double.npz", images=np.zeros((2, 8, 8)))
    np.savez("none.npz", images=np.zeros((0, 8, 8), np.uint8))
    np.savez("key.npz", pictures=np.zeros((2, 8, 8), np.uint8))
    Path("text.npz").write_text("images")
    for folder in ("empty", "large", "broken"):
        Path(folder).mkdir()
    Image.fromarray(np.zeros((10, 8), np.uint8)).save("large/a.png")
    Path("broken/a.png").write_text("no image")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ("nowhere", r"must be an .npz or a folder of images, got nowhere, and there is no such file\.$"),
        ("size.npz", r"size.npz holds uint8 \[N, 1, 9, 9\], but the data are uint8 \[N, 1, 8, 8\]"),
        ("double.npz", r"`images` of double.npz must be uint8 .*, got float64 \[2, 8, 8\]"),
        ("none.npz", r"none.npz holds no image"),
        ("key.npz", r"key.npz must hold an array `images`, got pictures"),
        ("text.npz", r"text.npz must be an .npz file of plain arrays; reading failed"),
        ("empty", r"empty holds no image file \(.png, "),
        ("large", r"large/a.png is 10 x 8 pixels, but the data are 8 x 8"),
        ("broken", r"broken/a.png cannot be read as an image"),
    ],
)
def test_what_does_not_fit_is_refused(images, message, data):
    write_bad_ones()
    with pytest.raises(ValueError, match=message) as refused:
        read_own_images(images, data)
    assert "\n" not in str(refused.value)


def test_features_have_no_folder_of_images(data):
    floats = {f"{split}_images": np.random.rand(60, 1, 8, 8).astype(np.float32) for split in ("train", "test")}
    write_npz("features.npz", **floats, test_labels=np.arange(60) % 3)
    features = FederatedData("features.npz", num_clients=3)
    features.setup()
    Path("photos").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("photos/a.png")
    message = r"a folder of images is for grey or RGB data, these are float32 \[N, 1, 8, 8\]"
    with pytest.raises(ValueError, match=message):
        read_own_images("photos", features)
    np.savez("mine.npz", images=floats["test_images"][:2])
    assert read_own_images("mine.npz", features).x.shape == (2, 1, 8, 8)
