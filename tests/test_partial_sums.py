"""The mean from partial sums: the loop's bits, however uploads are split and parts are joined."""

import random

import pytest
import torch
from toys import equal

from fedlit.aggregation import Upload, weighted_mean
from fedlit.aggregation.partial_sums import PartialSum, is_summable, settled


def same_bits(a, b):
    """Of zeros, too, which have signs."""
    views = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16}
    views[torch.bfloat16] = torch.int16

    def bits(tensor):
        return tensor.view(views[tensor.dtype]) if tensor.dtype in views and tensor.dim() else tensor

    return equal({name: bits(t) for name, t in a.items()}, {name: bits(t) for name, t in b.items()})


def in_parts(uploads, draw, num_parts, asked=None):
    """The mean by partial sums of a random split, joined along a random tree."""
    like = uploads[0].state
    parts = [PartialSum.of_nothing(like) for _ in range(num_parts)]
    for upload in draw.sample(uploads, len(uploads)):
        draw.choice(parts).add(upload, uploads[0].weight)
    while len(parts) > 1:
        part = parts.pop(draw.randrange(len(parts)))
        draw.choice(parts).join(part)
    found = settled(parts[0], [upload.weight for upload in uploads], num_parts)
    if asked is not None:
        asked.append(len(found.open))
    return found.completed(map(found.asked_for, uploads))


def plain(uploads, num_parts):
    """What adding up parts would give, without more."""
    total = sum(upload.weight for upload in uploads)
    parts = [uploads[i::num_parts] for i in range(num_parts)]
    sums = [sum(upload.weight * upload.state["w"].double() for upload in part) for part in parts]
    return {"w": (sum(sums) / total).float()}


def drawn(seed, num_clients, values, weights=lambda draw: 1.0):
    torch.manual_seed(seed)
    draw = random.Random(seed)
    return [Upload(k, {"w": values(k)}, weights(draw)) for k in range(num_clients)]


def counts(draw):
    return draw.randint(1, 4)


KINDS = {
    "alike": lambda k: 1 + 0.01 * torch.randn(400),
    "around zero": lambda k: torch.randn(400),
    "of all magnitudes": lambda k: torch.randn(400) * 2.0 ** torch.randint(-60, 60, (400,)),
    "ties": lambda k: 1 + torch.randint(0, 9, (400,)) * 2.0**-23,
    "far apart": lambda k: torch.full([9], [2.0**34, 1 + 2.0**-23, -(2.0**34)][k % 3]),
    "zeros of both signs": lambda k: torch.randint(-1, 1, (400,)) * 0.0,
    "cancelling": lambda k: (-1.0) ** k * torch.full([400], 1.5) + 1e-8 * torch.randn(400),
    "denormal": lambda k: torch.randint(-5, 5, (400,)) * 1e-44,
    "the largest": lambda k: torch.randn(400).sign() * 1.8e19,
    "half": lambda k: torch.randn(400).half(),
    "half and tiny": lambda k: (1e-6 * torch.randn(400)).half(),
    "brain": lambda k: torch.randn(400).bfloat16(),
    "double": lambda k: torch.randn(40).double(),
    "counters": lambda k: torch.randint(0, 99, (5,)),
    "switches": lambda k: torch.rand(5) < 0.3,
}
WEIGHTS = {
    "equal": lambda draw: 60,
    "small": counts,
    "samples": lambda draw: draw.randint(500, 700),
    "extreme": lambda draw: 10 ** draw.uniform(-8, 9),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_split_and_any_tree_give_the_bits_of_the_loop(kind, weights):
    draw = random.Random(kind + weights)
    for num_clients in (1, 2, 3, 8, 21):
        uploads = drawn(num_clients, num_clients, KINDS[kind], WEIGHTS[weights])
        loop = weighted_mean(uploads)
        for num_parts in (1, 2, 3, 5, 8):
            assert same_bits(in_parts(uploads, draw, num_parts), loop)


def test_a_state_of_many_dtypes_keeps_names_shapes_and_order():
    torch.manual_seed(0)

    def state():
        floating = {f"{dtype}": torch.randn(2, 3).to(dtype) for dtype in (torch.float64, torch.float16, torch.float32)}
        return {"n": torch.tensor(random.randrange(9)), **floating, "scalar": torch.randn(()), "none": torch.zeros(0)}

    uploads = [Upload(k, state(), 1 + k) for k in range(5)]
    uploads[3] = Upload(3, dict(reversed(uploads[3].state.items())), 4)  # names say what is what
    loop = weighted_mean(uploads)
    found = in_parts(uploads, random.Random(0), 3)
    assert [*found] == [*loop]
    assert same_bits(found, loop)
    assert is_summable(loop)
    assert not is_summable({"z": torch.zeros(2, dtype=torch.complex64)})


def test_sums_that_were_only_added_up_would_differ():
    """The sibling. 2^60 + 1 - 2^60 + 0 is 0 or 1 in float64, which no rounding hides."""
    values = [2.0**60, 1.0, -(2.0**60), 0.0]
    uploads = [Upload(k, {"w": torch.tensor([value])}) for k, value in enumerate(values)]
    assert float(plain(uploads, 1)["w"]) == float(weighted_mean(uploads)["w"]) == 0.0
    assert float(plain(uploads, 2)["w"]) == 0.25
    assert float(in_parts(uploads, random.Random(0), 2)["w"]) == 0.0


def test_zeros_have_the_sign_of_the_loop():
    """-1 + 3/3 is 0, or just below where a product is not rounded before it is added: in halves, a matter of sign."""
    uploads = [Upload(k, {"w": torch.tensor([v]).half()}, a) for k, v, a in [(0, -1.0, 3), (1, 3.0, 1)]]
    for seed in range(4):
        assert same_bits(in_parts(uploads, random.Random(seed), 2), weighted_mean(uploads))


def test_almost_nothing_is_asked_for():
    asked = []
    for weights in (WEIGHTS["equal"], WEIGHTS["samples"]):
        uploads = drawn(1, 10, lambda k: torch.randn(100_000), weights)
        in_parts(uploads, random.Random(0), 4, asked)
    assert asked[0] == 0  # ties, too, are broken as in the loop
    assert asked[1] < 100


def test_an_entry_is_added_in_the_same_way_wherever_it_stands():
    """What is open is added up among others than in the loop."""
    torch.manual_seed(0)
    for size in (1, 3, 7, 8, 17, 33, 100):
        whole = drawn(size, 9, lambda k: torch.randn(size, dtype=torch.float64), WEIGHTS["samples"])  # noqa: B023
        means = weighted_mean(whole)["w"]
        for i in range(size):
            alone = [Upload(upload.client, {"w": upload.state["w"][[i]]}, upload.weight) for upload in whole]
            assert torch.equal(weighted_mean(alone)["w"], means[[i]])
