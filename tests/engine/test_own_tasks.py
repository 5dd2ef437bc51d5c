"""Tasks other than classification, from the data to the records: they learn, and are measured by what they are."""

from functools import partial

import pytest
import torch
from toys import fitted, rows

from fedlit import FedAvg, FederatedData, Federation
from fedlit.data.toy import Blocks, ToyMultiLabel, ToyRegression, ToyText
from fedlit.networks import MLP, TextGRU
from fedlit.tasks import LanguageModel, MultiLabel, Regression

FEATURES = partial(MLP, in_channels=8, image_size=1, num_classes=1, hidden=(64,))
CASES = {
    "r2": (ToyRegression, FEATURES, 0.05, Regression()),
    "f1": (ToyMultiLabel, partial(MLP, in_channels=16, image_size=1, num_classes=5, hidden=(64,)), 0.1, MultiLabel()),
    "perplexity": (ToyText, partial(TextGRU, 12), 1.0, LanguageModel()),
}


def toy(kind):
    train, test = kind(True, 160, 4), kind(False, 40, 4)
    options = {"num_clients": 4, "partition": Blocks(), "val_size": 0.2, "batch_size": 10}
    return FederatedData(train_dataset=train, test_dataset=test, **options)


@pytest.mark.parametrize("metric", CASES)
def test_a_task_learns_and_is_measured_by_its_own_metric(metric, tmp_path):
    kind, network, lr, task = CASES[metric]
    torch.manual_seed(1)
    method = FedAvg(network, partial(torch.optim.SGD, lr=lr), task=task)
    federation = fitted(method, toy(kind), local_epochs=2, default_root_dir=str(tmp_path))
    found = {name: [] for name in (metric, "loss")}
    for row in rows(federation):
        if row["data"] == "pooled":
            found[row["metric"]].append(float(row["value"]))
    first, *_, last = found[metric]
    assert last < first - 1 if metric == "perplexity" else last > first + 0.1
    assert found["loss"][-1] < found["loss"][0]
    assert federation.state.measures.first == metric


def test_a_checkpoint_alone_is_enough_to_use_its_network(tmp_path):
    method = FedAvg(FEATURES, partial(torch.optim.SGD, lr=0.05), task=Regression())
    data = toy(ToyRegression)
    federation = fitted(method, data, num_rounds=1, default_root_dir=str(tmp_path))
    alone = Federation(accelerator="cpu", logger=False)
    other = FedAvg(FEATURES, partial(torch.optim.SGD, lr=0.05), task=Regression())
    alone.load(other, ckpt_path=f"{federation.log_dir}/checkpoints/last.ckpt")
    x = data.images.test_x
    assert alone.state.data.is_placeholder
    assert torch.equal(alone.network()(x), federation.network()(x))


def test_a_loss_that_is_not_one_number_is_refused_in_one_line():
    class Squares(FedAvg):
        def loss(self, output, target):
            return (output - target) ** 2

    with pytest.raises(ValueError, match=r"`loss` of Squares .* must give one number, .*: a Tensor with 2 elements"):
        fitted(Squares(FEATURES, partial(torch.optim.SGD, lr=0.1)), toy(ToyRegression))
