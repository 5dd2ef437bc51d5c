"""A recipe that takes a moment, with its data, for the tests of the command line."""

from pathlib import Path

import numpy as np

RECIPE = """\
data:
  class_path: fedlit.data.FederatedData
  init_args: {dataset: toy.npz, num_clients: 3, batch_size: 8}
model:
  class_path: fedlit.methods.FedAvg
  init_args:
    network: {class_path: fedlit.networks.MLP, init_args: {image_size: 8, num_classes: 3, hidden: [8]}}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
trainer: {num_rounds: 2, accelerator: cpu, enable_progress_bar: false, logger: false, report: false}
"""


def write_npz(path: str, shape: tuple[int, ...] = (8, 8), **changed: np.ndarray | None) -> None:
    """Sixty images to train on and thirty to test on; None leaves an array out."""
    draw = np.random.default_rng(0)
    arrays = {}
    for split, size in (("train", 60), ("test", 30)):
        arrays[f"{split}_images"] = draw.integers(0, 256, (size, *shape), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(size) % 3
    np.savez(path, **{key: value for key, value in (arrays | changed).items() if value is not None})


def write_recipe(name: str = "run.yaml", *changes: tuple[str, str]) -> None:
    """The recipe with some of its text replaced, and its data."""
    text = RECIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path(name).write_text(text)
    write_npz("toy.npz")
