"""A stack of perceptrons is autograd's steps, but for rounding, whoever stands beside whom."""

from itertools import chain, pairwise

import pytest
import torch
import torch.nn.functional as F

from fedlit.data.batches import Batches
from fedlit.engine.plan import Interrupted
from fedlit.fast.stack import Kind, Member, Stack


def member(seed, size, batch_size, features=30):
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(size, features, generator=draw), torch.randint(0, 3, (size,), generator=draw)
    return Member(None, Batches(x, y, batch_size, draw), 0.1)


def perceptron(features, widths):
    torch.manual_seed(1)
    sizes = (features, *widths, 3)
    return [torch.randn(o, i) / 5 for i, o in pairwise(sizes)], [torch.randn(o) for o in sizes[1:]]


def trained(members, widths=(8, 5), spoil=lambda stack: None):
    stack = Stack(*perceptron(members[0].x.shape[1], widths), members)
    spoil(stack)
    stack.train(Kind(len(members[0].x), members[0].batches.batch_size, epochs=2, steps=None), bool)
    return [stack.trained(place) for place in range(len(members))]


def by_autograd(member, widths=(8, 5)):
    weights, biases = perceptron(member.x.shape[1], widths)
    parameters = [tensor.requires_grad_() for pair in zip(weights, biases, strict=True) for tensor in pair]
    optimizer = torch.optim.SGD(parameters, lr=member.rate)
    for x, y in chain(member.batches, member.batches):
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = F.linear(x.relu() if i else x, weight, bias)
        optimizer.zero_grad()
        F.cross_entropy(x, y).backward()
        optimizer.step()
    return [tensor.detach() for tensor in parameters]


def close(ours, theirs):
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


def test_two_steps_by_hand():
    # One sample x = 2 of class 0, W = b = 0: z = (0, 0), p = (1/2, 1/2), delta = (-1/2, 1/2). Then W x + b is
    # (1/2, -1/2) (2 * 2 + 1) = (5/2, -5/2) and p_1 = 1 / (1 + e^5) = 0.0066929: delta = (-0.0066929, 0.0066929).
    one = Member(None, Batches(torch.tensor([[2.0]]), torch.tensor([0]), 1), 1.0)
    stack = Stack([torch.zeros(2, 1)], [torch.zeros(2)], [one])
    stack.train(Kind(1, 1, 2, None), bool)
    (weight, bias), loss = stack.trained(0)
    assert weight.tolist() == [pytest.approx([1 + 2 * 0.0066929]), pytest.approx([-1 - 2 * 0.0066929])]
    assert bias.tolist() == pytest.approx([0.5066929, -0.5066929])
    assert loss == pytest.approx((0.6931472 + 0.0067153) / 2)  # -log(1/2), -log(1 - p_1)


@pytest.mark.parametrize("widths", [(), (8,), (8, 5)])
def test_a_stack_is_autograd_but_for_rounding(widths):
    for seed, (layers, _) in enumerate(trained([member(seed, 6, 4) for seed in range(5)], widths)):
        assert close(layers, by_autograd(member(seed, 6, 4), widths))
        assert not close(layers, by_autograd(member(seed + 1, 6, 4), widths))


def test_without_the_bias_in_the_products_it_would_be_wrong():
    layers, _ = trained([member(0, 6, 4), member(1, 6, 4)], spoil=lambda stack: stack.products.sub_(1))[0]
    assert not close(layers, by_autograd(member(0, 6, 4)))


SHAPES = [(6, 4, (8, 5)), (13, 4, (200,)), (5, 1, (64, 64)), (9, 9, (1, 40)), (60, 10, (200, 200)), (7, 3, ())]


@pytest.mark.parametrize(("size", "batch_size", "widths"), SHAPES)
def test_a_client_s_bits_do_not_depend_on_who_stands_beside_it(size, batch_size, widths):
    def some(*seeds):
        return trained([member(seed, size, batch_size, features=100) for seed in seeds], widths)

    together = some(*range(17))
    for beside in (1, 2, 5, 16):
        apart = [each for i in range(0, 17, beside) for each in some(*range(17)[i : i + beside])]
        for (ours, loss), (theirs, same_loss) in zip(together, apart, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
            assert loss == same_loss


def single_products_rounded_otherwise(monkeypatch):
    """A BLAS to which a batch of one matrix is another case than a batch of many, as it is to some."""

    def rounded(original):
        def product(*matrices, **options):
            result = original(*matrices, **options)
            return result * (1 + 1e-6) if len(result) == 1 else result

        return product

    for name in ("bmm", "baddbmm"):
        monkeypatch.setattr(torch, name, rounded(getattr(torch, name)))


def unpadded(stack):
    for name in ("outputs", "products", "targets", "rates", "starts", "added", "loss"):
        setattr(stack, name, getattr(stack, name).chunk(2)[0])
    stack.weights = [weight[:1] for weight in stack.weights]
    stack.biases = [bias[:1] for bias in stack.biases]
    stack.size, stack.copies = 1, 1


@pytest.mark.parametrize(("spoil", "is_equal"), [(lambda stack: None, True), (unpadded, False)])
def test_who_stands_alone_stands_beside_itself(spoil, is_equal, monkeypatch):
    single_products_rounded_otherwise(monkeypatch)
    together = trained([member(0, 13, 4), member(1, 13, 4)], (200,))[0][0]
    alone = trained([member(0, 13, 4)], (200,), spoil)[0][0]
    assert close(alone, together)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True)) is is_equal


def test_what_a_stack_is_worth_by_hand(monkeypatch):
    # 10 samples of 20 features, width 5, each seen twice. Products: 10 * 20 * (2 * 5 + 10) + 20 * 10 * 5 = 5,000;
    # as itself: 2 * 20 * 20 * 5 = 4,000.
    kind = Kind(10, 4, 2, None)
    assert kind.num_bytes(20, 5) == 4 * 10 * (20 + 10 + 2 * 5)
    for faster, spared, worth in ((1, 0, False), (1, 1000, True), (1, 999, False), (1.25, 0, True), (1.2, 0, False)):
        monkeypatch.setattr("fedlit.fast.stack.FASTER", faster)
        monkeypatch.setattr("fedlit.fast.stack.SPARED", spared)
        assert kind.fits(20, 5) is worth
        assert Kind(10, 2, 0, 10).fits(20, 5) is worth  # ten steps of two samples
        monkeypatch.setattr("fedlit.fast.stack.SMALL", 3)
        assert kind.fits(20, 5) is (spared == 1000)
        monkeypatch.setattr("fedlit.fast.stack.SMALL", 64)
    monkeypatch.setattr("fedlit.fast.stack.ROOM", 1600)
    monkeypatch.setattr("fedlit.fast.stack.SPARED", 1000)
    assert kind.fits(20, 5)
    monkeypatch.setattr("fedlit.fast.stack.ROOM", 1599)
    assert not kind.fits(20, 5)
    assert not Kind(10, 4, 0, None).fits(20, 5)


def test_an_upload_is_no_view_of_the_stack():
    for layers, _ in trained([member(seed, 6, 4) for seed in range(3)]):
        assert all(layer.untyped_storage().nbytes() == layer.numel() * 4 for layer in layers)


def test_a_stack_stops_when_asked():
    stack = Stack(*perceptron(30, ()), [member(0, 6, 4)])
    with pytest.raises(Interrupted):
        stack.train(Kind(6, 4, 2, None), lambda: stack.steps == 1)
    assert stack.steps == 1
