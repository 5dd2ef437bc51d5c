"""Classes count from 0: labels that begin at 1 get a notice, and are refused where a network has no output for them."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toys import SGD, fitted

from fedlit import FedAvg, FederatedData
from fedlit.data import JointData
from fedlit.data.remote import restrict_to_client
from fedlit.notices import Notice
from fedlit.tasks import Regression

ONE_TO_FIVE = r"^labels of `data.train_dataset` are 1 to 5"


def labelled(train: torch.Tensor, test: torch.Tensor, **options) -> FederatedData:
    sets = [TensorDataset(torch.randn(len(y), 4), y) for y in (train, test)]
    return FederatedData(train_dataset=sets[0], test_dataset=sets[1], num_clients=2, **options)


def from_one(**options) -> FederatedData:
    return labelled(torch.arange(40) % 5 + 1, torch.arange(10) % 5 + 1, **options)


def fit(data: FederatedData, outputs: int) -> None:
    fitted(FedAvg(lambda: nn.Linear(4, outputs), SGD), data, num_rounds=1)


def test_labels_that_count_from_1_are_refused_and_what_to_subtract_is_said():
    with pytest.raises(ValueError, match=ONE_TO_FIVE + r", but must be 0 to C - 1 for C classes: subtract 1\. If "):
        fit(from_one(), outputs=5)


def test_an_output_for_class_0_without_samples_gives_a_notice():
    with pytest.warns(Notice, match=ONE_TO_FIVE + r", so that no sample is of class 0; if .* from 1, subtract 1\.$"):
        fit(from_one(), outputs=6)
    with pytest.warns(Notice, match=ONE_TO_FIVE):  # labels of the pool are hidden, not absent
        fit(from_one(public=0.5), outputs=6)


def test_whole_numbers_that_are_values_may_begin_anywhere():
    data = labelled(torch.arange(40) + 20, torch.arange(10) + 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        fitted(FedAvg(lambda: nn.Linear(4, 1), SGD, task=Regression()), data, num_rounds=1)


def test_a_client_on_a_host_of_its_own_need_not_have_class_0():
    data = from_one()
    restrict_to_client(data, client=1)
    assert data.splits.lowest_class == 0
    whole = from_one()
    whole.setup()
    assert whole.splits.lowest_class == 1


# --- how many there are


def test_the_highest_classes_need_no_samples_where_the_user_says_how_many_there_are():
    labels = torch.arange(40) % 4, torch.arange(12) % 4
    data = labelled(*labels, num_classes=6)
    fit(data, outputs=6)
    assert [data.client(k).num_classes for k in range(2)] == [6, 6]
    assert data.class_counts().sum(axis=0)[4:].tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"must give 4 outputs, .*, or `data.num_classes: 6` if no sample "):
        fit(labelled(*labels), outputs=6)
    with pytest.raises(ValueError, match=r"must give 6 outputs, one per class of the data, got shape \[4\]"):
        fit(labelled(*labels, num_classes=6), outputs=4)


@pytest.mark.parametrize(
    ("labels", "num_classes", "message"),
    [
        (torch.arange(40) % 5, 3, r"`data.num_classes` must be at least 5, since labels go up to 4, got 3\."),
        (torch.arange(40.0), 3, r"`data.num_classes` has no meaning for these data: their targets are no classes"),
        (torch.arange(40) % 5, 0, r"`data.num_classes` must be at least 1, got 0"),
        (torch.arange(40) % 5, 2.5, r"`data.num_classes` must be a whole number, got 2.5"),
    ],
)
def test_classes_that_cannot_be_are_refused(labels, num_classes, message):
    with pytest.raises(ValueError, match=message):
        labelled(labels, labels, num_classes=num_classes).setup()


def test_one_of_several_data_sets_that_counts_from_1_gives_a_notice():
    data = JointData([labelled(torch.arange(40) % 6, torch.arange(12) % 6), from_one()])
    with pytest.warns(Notice, match=r"^labels of one of `data.parts` are 1 to 5"):
        fit(data, outputs=6)
