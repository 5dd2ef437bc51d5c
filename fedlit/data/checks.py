"""What is wrong with the options of the data, said before any sample is read."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData


EMBEDDED = "fashion_sample"  # what there is if nothing else is asked for


def check_options(data: "FederatedData") -> None:
    """Numbers in their ranges, and clients that exist; what depends on the samples is told by `setup`."""
    positive = {
        "num_clients": data.num_clients,
        "batch_size": data.batch_size,
        "eval_batch_size": data.eval_batch_size,
    }
    positive |= {f"client_batch_sizes[{k}]": size for k, size in data.client_batch_sizes.items()}
    for name, value in positive.items():
        if value < 1:
            raise ValueError(f"`data.{name}` must be at least 1, got {value}.")
    for name, share in (("opt_out", data.opt_out), ("opt_out_samples", data.opt_out_samples)):
        if not isinstance(share, list) and not 0 <= share <= 1:
            raise ValueError(f"`data.{name}` is a fraction in [0, 1], got {share}.")
    if data.public != "valid" and not 0 <= data.public < 1:
        raise ValueError(f"`data.public` must lie in [0, 1) or be `valid`, got {data.public}.")
    if data.own_test and data.validation == "test":
        raise ValueError(
            "`data.own_test` is what no choice looks at, but `data.validation: test` uses the test set; "
            "set it to train or reserve."
        )
    if not 0 <= data.unseen_clients < data.num_clients:
        raise ValueError(
            f"`data.unseen_clients` must leave a client to train: 0 to {data.num_clients - 1}, "
            f"got {data.unseen_clients}."
        )
    _check_ids(data, "client_batch_sizes", data.client_batch_sizes)
    if isinstance(data.opt_out, list):
        _check_ids(data, "opt_out", data.opt_out)
    if (data.train_dataset is None) != (data.test_dataset is None):
        raise ValueError("`data.train_dataset` and `data.test_dataset` go together: give both or neither.")
    if data.train_dataset is not None and data.dataset != EMBEDDED:
        raise ValueError(
            f"`data.train_dataset` stands in place of `data.dataset`: give one of them, got {data.dataset} beside it."
        )


def _check_ids(data: "FederatedData", name: str, ids: Iterable[int]) -> None:
    for k in ids:
        if not 0 <= k < data.num_clients:
            raise ValueError(
                f"`data.{name}` names client {k}, but the clients are 0 to {data.num_clients - 1} "
                f"(`data.num_clients` is {data.num_clients})."
            )
