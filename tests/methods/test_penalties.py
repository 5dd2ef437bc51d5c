"""Penalties on parameters: their gradients are those of their formulas, to the bit."""

from functools import partial

import pytest
import torch
from torch import Tensor, tensor
from toys import SGD, fitted, linear, seeded

from fedlit.losses import add_to_gradients, mmd, proximal_gradient, proximal_penalty
from fedlit.methods import FedDyn, FedProx, PFedMe

SHAPES = [(7, 5), (7,), (3, 2, 2)]


def drawn() -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(1)
    parameters = [torch.randn(shape, generator=draw, requires_grad=True) for shape in SHAPES]
    return parameters, [torch.randn(shape, generator=draw) for shape in SHAPES]


def by_formula(w: list[Tensor], anchors: list[Tensor], mu: float) -> Tensor:
    return mu / 2 * sum((w - anchor).square().sum() for w, anchor in zip(w, anchors, strict=True))


@pytest.mark.parametrize("scale", [1.0, -1.0, 0.3])
def test_gradients_are_those_of_the_formulas(scale):
    w, constants = drawn()
    proximal = torch.autograd.grad(scale * proximal_penalty(w, constants, mu=0.3), w)
    for found, wanted in zip(proximal, torch.autograd.grad(scale * by_formula(w, constants, 0.3), w), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-7, atol=0)
        assert scale != 1 or torch.equal(found, wanted)


def test_a_known_gradient_added_is_that_of_the_term_in_the_loss():
    found = []
    for adds in (True, False):
        w, anchors = drawn()
        loss = sum(w.pow(3).sum() for w in w)
        if adds:
            loss.backward()
            add_to_gradients(w, proximal_gradient(w, anchors, mu=0.3))
        else:
            (loss + proximal_penalty(w, anchors, mu=0.3)).backward()
        found.append([w.grad for w in w])
    assert all(map(torch.equal, *found))
    assert not torch.equal(found[0][0], 3 * drawn()[0][0].detach() ** 2)  # without the term


def test_without_a_gradient_there_is_no_step_and_nothing_is_added():
    w, directions = drawn()
    add_to_gradients(w, directions)
    assert [w.grad for w in w] == [None, None, None]
    w[0].sum().backward()
    add_to_gradients(w, directions)
    assert torch.equal(w[0].grad, 1 + directions[0])
    assert torch.equal(w[1].grad, directions[1])  # which the loss does not reach


def test_another_strength_has_another_gradient():
    w, anchors = drawn()
    found = torch.autograd.grad(proximal_penalty(w, anchors, mu=0.3), w)
    other = torch.autograd.grad(by_formula(w, anchors, 0.31), w)
    assert not torch.allclose(found[0], other[0])


def test_values_by_hand():
    w = [tensor([3.0, 1.0], requires_grad=True), tensor(2.0, requires_grad=True)]
    constants = [tensor([1.0, 0.0]), tensor(5.0)]
    assert float(proximal_penalty(w, constants, mu=0.4).detach()) == pytest.approx(0.2 * (4 + 1 + 9))
    assert proximal_penalty([], [], mu=1.0) == 0
    assert [g.tolist() for g in proximal_gradient(w, constants, mu=0.5)] == [[1.0, 0.5], -1.5]
    assert proximal_gradient([], [], mu=1.0) == []


def test_other_shapes_are_refused():
    w, anchors = drawn()
    others = [anchors[0][:1], *anchors[1:]]
    for refused in (lambda: proximal_penalty(w, others, mu=1.0), lambda: add_to_gradients(w, others)):
        with pytest.raises(ValueError, match="shapes"):
            refused()


def test_mmd_is_differentiated_once_or_refused():
    a, b = torch.randn(3, 2, requires_grad=True), torch.randn(4, 2)
    assert torch.autograd.grad(mmd(a, b), a)[0].abs().sum() > 0
    with pytest.raises(RuntimeError, match="`mmd` can be differentiated once"):
        torch.autograd.grad(mmd(a, b), a, create_graph=True)


@pytest.mark.parametrize("method", [FedProx, FedDyn, PFedMe])
def test_a_line_search_is_refused_where_the_loss_lacks_the_penalty(method):
    searching = partial(torch.optim.LBFGS, line_search_fn="strong_wolfe")
    with pytest.raises(ValueError, match=r"^`model.optimizer`: a line search compares losses"):
        fitted(method(linear, searching), num_rounds=1)
    fitted(method(linear, torch.optim.LBFGS), num_rounds=1)


class Embedded(torch.nn.Module):
    """A layer with sparse gradients."""

    def __init__(self, sparse):
        super().__init__()
        self.words = torch.nn.Embedding(16, 2, sparse=sparse)
        self.out = torch.nn.Linear(128, 3)

    def forward(self, x):
        return self.out(self.words((15 * x.flatten(1).clamp(0, 1)).long()).flatten(1))


def test_a_penalty_takes_sparse_gradients():
    sparse, dense = (fitted(seeded(FedProx, partial(Embedded, sparse), SGD, mu=0.5)) for sparse in (True, False))
    torch.testing.assert_close(sparse.global_state, dense.global_state)
