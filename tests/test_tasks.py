"""Tasks: their losses and metrics by hand, what they take for a prediction, and what they refuse."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn, tensor
from torch.testing import assert_close

from fedlit.inputs import applied
from fedlit.tasks import (
    Accuracy,
    Classification,
    LanguageModel,
    MultiLabel,
    Regression,
    Segmentation,
    Task,
)


def score(task, *batches):
    """The first metric of a task over some batches."""
    (metric, *_) = task.metrics().values()
    for output, target in batches:
        metric.update(*task.measured(output, target))
    return float(metric.compute())


def test_classification_by_hand():
    z, y = tensor([[0.0, math.log(3)], [math.log(3), 0.0]]), tensor([1, 1])
    assert float(Classification().loss(z, y)) == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    assert score(Classification(), (z, y)) == 0.5
    assert_close(Classification().prediction(z), tensor([[0.25, 0.75], [0.75, 0.25]]))


def test_r2_by_hand():
    y = tensor([1.0, 2.0, 3.0, 6.0])  # mean 3, squares around it 4 + 1 + 0 + 9
    z = tensor([1.0, 2.0, 4.0, 5.0])
    assert float(Regression().loss(z, y)) == 0.5
    assert score(Regression(), (z[:1], y[:1]), (z[1:], y[1:])) == pytest.approx(1 - 2 / 14)
    assert score(Regression(), (torch.full((4,), 3.0), y)) == pytest.approx(0.0)  # the mean explains nothing


@pytest.mark.parametrize(("outputs", "targets"), [((3, 1), (3,)), ((3,), (3, 1)), ((3, 2, 2), (3, 2, 2))])
def test_a_regression_takes_a_column_for_numbers_and_does_not_broadcast(outputs, targets):
    y = torch.arange(math.prod(targets), dtype=torch.float64).view(targets)
    assert float(Regression().loss(y.view(outputs).float() + 2, y)) == 4.0
    assert score(Regression(), (y.view(outputs).float(), y)) == 1.0


def test_f1_by_hand():
    z = tensor([[2.0, -1.0, 3.0], [-2.0, 1.0, -3.0]])  # given: 0 and 2, and 1
    y = tensor([[1, 1, 0], [0, 1, 1]])  # right: 0, 1; wrong: 2; missed: 1 of the first, 2 of the second
    assert score(MultiLabel(), (z[:1], y[:1]), (z[1:], y[1:])) == pytest.approx(2 * 2 / (2 * 2 + 1 + 2))
    losses = [math.log(1 + math.exp(v)) for v in (-2, 1, 3, -2, -1, 3)]
    assert float(MultiLabel().loss(z, y.float())) == pytest.approx(sum(losses) / 6)


def test_perplexity_is_exp_of_the_mean_cross_entropy_of_a_token():
    p = tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]])
    y = tensor([[0, 1]])
    assert score(LanguageModel(), (p.log(), y)) == pytest.approx(math.exp(-(math.log(0.5) + math.log(0.8)) / 2))
    assert float(LanguageModel().loss(p.log(), y)) == pytest.approx(-(math.log(0.5) + math.log(0.8)) / 2)


def test_texts_of_different_lengths_count_by_their_tokens():
    short = (torch.zeros(1, 1, 4), tensor([[2]]))
    long = (tensor([[[math.log(3), 0.0]] * 3]), tensor([[1, 1, 1]]))
    padded = (torch.zeros(1, 3, 4), tensor([[2, 9, 9]]))
    by_tokens = math.exp((math.log(4) + 3 * math.log(4)) / 4)
    assert score(LanguageModel(), short, long) == pytest.approx(by_tokens)
    assert score(LanguageModel(ignore_index=9), padded) == score(LanguageModel(), short)
    assert LanguageModel(ignore_index=9).loss(*padded) == LanguageModel().loss(*short)


def test_a_batch_of_nothing_but_padding_has_no_loss_and_no_gradient():
    z = torch.zeros(1, 2, 4, requires_grad=True)
    loss = LanguageModel().loss(z, tensor([[-100, -100]]))
    loss.backward()
    assert loss == 0.0
    assert not z.grad.any()


def test_iou_by_hand():
    taken_for = tensor([[[0, 0], [1, 1]]])
    z = F.one_hot(taken_for, 2).movedim(-1, 1).float()
    y = tensor([[[0, 1], [1, 1]]])  # 0: 1 of 2; 1: 2 of 3
    assert score(Segmentation(2), (z, y)) == pytest.approx((1 / 2 + 2 / 3) / 2)
    ignored = tensor([[[0, 255], [1, 1]]])
    assert score(Segmentation(2, ignore_index=255), (z, ignored)) == 1.0
    flat = torch.zeros(1, 2, 2, 2)
    assert float(Segmentation(2, ignore_index=255).loss(flat, ignored.to(torch.uint8)[:, None])) == pytest.approx(
        math.log(2)
    )
    assert torch.equal(Segmentation(2).prediction(z), taken_for)


OUTPUTS = {
    "a tensor": lambda z: z,
    "logits of a mapping": lambda z: {"loss": z + 1, "logits": z},
    "out of torchvision's": lambda z: {"out": z, "aux": z + 1},
    "the only tensor": lambda z: {"x": z, "name": "text"},
    "an attribute": lambda z: SimpleNamespace(logits=z, aux_logits=z + 1),
}


@pytest.mark.parametrize("wrapped", OUTPUTS.values(), ids=OUTPUTS)
def test_what_counts_of_a_networks_outputs(wrapped):
    z, y = torch.randn(4, 3), tensor([0, 1, 2, 0])
    assert torch.equal(Task().output(wrapped(z)), z)
    assert torch.equal(Classification().loss(wrapped(z), y), F.cross_entropy(z, y))
    assert score(Classification(), (wrapped(z), y)) == float(Accuracy()(z, y))


@pytest.mark.parametrize("given", [(torch.ones(1), torch.ones(1)), {"a": torch.ones(1), "b": torch.ones(1)}, {}, 3.0])
def test_what_could_be_anything_is_refused(given):
    with pytest.raises(ValueError, match=r"must give one tensor, got a .*; of a mapping `logits` or `out` is taken"):
        Task().output(given)


REFUSED = {
    r"outputs must have the shape of the targets, \[3\], got \[3, 2\]": lambda: Regression().loss(
        torch.ones(3, 2), torch.ones(3)
    ),
    r"outputs must have the shape of the targets, \[3, 4\], got \[3, 2\]": lambda: MultiLabel().loss(
        torch.ones(3, 2), torch.ones(3, 4)
    ),
    r"outputs must be \[\*targets, V\], with targets \[3, 4\], got \[3, 9, 4\]": lambda: LanguageModel().loss(
        torch.ones(3, 9, 4), torch.ones(3, 4).long()
    ),
    r"outputs must be \[1, 2, 4, 4\] for targets \[1, 4, 4\], got \[1, 3, 4, 4\]": lambda: Segmentation(2).loss(
        torch.ones(1, 3, 4, 4), torch.ones(1, 4, 4)
    ),
    r"`model.task.threshold` must lie in \[0, 1\], got 1.5": lambda: MultiLabel(1.5),
    r"`model.task.num_classes` must be at least 2, got 1": lambda: Segmentation(1),
    r"`model.task.ignore_index` must be a whole number, got 'pad'": lambda: LanguageModel("pad"),
}


@pytest.mark.parametrize(("message", "made"), REFUSED.items())
def test_what_does_not_fit_is_refused(message, made):
    with pytest.raises(ValueError, match=message):
        made()


class Named(nn.Module):
    def forward(self, ids, mask=None):
        return "named", ids, mask


class One(nn.Module):
    def forward(self, batch):
        return "one", batch


class Open(nn.Module):
    def forward(self, **inputs):
        return "named", inputs


class Pair(nn.Module):
    def forward(self, left, right, scale=1.0):
        return "pair", left, right


def test_a_dict_is_given_by_names_where_they_are_taken_and_else_as_one():
    assert applied(Named(), {"ids": 1, "mask": 2}) == ("named", 1, 2)
    assert applied(Named(), {"ids": 1}) == ("named", 1, None)
    assert applied(One(), {"ids": 1}) == ("one", {"ids": 1})
    assert applied(Named(), {"ids": 1, "labels": 3}) == ("named", {"ids": 1, "labels": 3}, None)
    assert applied(Open(), {"any": 1}) == ("named", {"any": 1})


def test_a_tuple_is_spread_where_more_than_one_argument_is_needed():
    assert applied(Pair(), (1, 2)) == ("pair", 1, 2)
    assert applied(Pair(), [1, 2]) == ("pair", 1, 2)
    assert applied(One(), (1, 2)) == ("one", (1, 2))
    assert applied(Named(), (1, 2)) == ("named", (1, 2), None)
