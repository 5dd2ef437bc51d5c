import math

import pytest
import torch
from torch.testing import assert_close

from fedlit.augment import (
    Affine,
    Colour,
    Crop,
    Flip,
    Noise,
    PadEdge,
    Pixelate,
    ResizedCrop,
    Standardise,
    rotate_shift,
)

RANDOM = [Crop(4), Flip(0.5), Affine(20, 0.2), ResizedCrop(), Colour(0.2)]
RANDOM += [Colour(0.2, per_channel=True), Colour(0, 0.25, clamp=True), Colour(0, 0, (0.2, 1.8), clamp=True)]
RANDOM += [Noise(0.2)]
IDENTITIES = [Crop(0), Flip(0.0), Affine(0.0, 0.0), ResizedCrop((1.0, 1.0), (1.0, 1.0)), Colour(), PadEdge(0)]
IDENTITIES += [Pixelate(1), Noise(0.0)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int = 6, c: int = 3, h: int = 8, w: int = 8) -> torch.Tensor:
    return torch.rand(n, c, h, w, generator=seeded(99))


def name(augmentation: object) -> str:
    return f"{type(augmentation).__name__}{list(vars(augmentation).values())}"


@pytest.mark.parametrize("augmentation", IDENTITIES, ids=name)
def test_an_augmentation_at_its_extreme_changes_nothing(augmentation):
    assert_close(augmentation(noise(), seeded()), noise(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("augmentation", RANDOM, ids=name)
def test_an_augmentation_away_from_its_extreme_changes_the_images_and_keeps_their_shape_and_range(augmentation):
    before = noise(h=8, w=10)
    after = augmentation(before, seeded())
    assert after.shape == before.shape
    assert after.dtype == before.dtype
    assert not torch.allclose(after, before, atol=1e-3)
    assert after.min() >= 0
    assert after.max() <= 1 + 1e-6
    assert_close(before, noise(h=8, w=10), rtol=0, atol=0)  # the input is left alone


@pytest.mark.parametrize("augmentation", RANDOM, ids=name)
def test_each_image_of_a_batch_has_its_own_draw(augmentation):
    same = noise(n=1, h=16, w=16).expand(8, 3, 16, 16)
    after = augmentation(same, seeded())
    assert any(not torch.allclose(after[0], after[i], atol=1e-3) for i in range(1, 8))


@pytest.mark.parametrize("augmentation", RANDOM, ids=name)
def test_the_generator_alone_decides_the_result(augmentation):
    torch.manual_seed(1)
    first = augmentation(noise(), seeded(3))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert_close(augmentation(noise(), seeded(3)), first, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(augmentation(noise(), seeded(4)), first)


def test_a_flip_reverses_the_columns():
    row = torch.tensor([1.0, 2.0, 3.0]).view(1, 1, 1, 3)
    assert Flip(1.0)(row, seeded()).flatten().tolist() == [3.0, 2.0, 1.0]


@pytest.mark.parametrize("size", [2, 3])
def test_a_quarter_turn_is_exact_and_counter_clockwise(size):
    x = torch.arange(size**2, dtype=torch.float32).view(1, 1, size, size)
    still = torch.zeros(1)
    turned = rotate_shift(x, torch.tensor([math.pi / 2]), still, still)
    assert_close(turned, torch.rot90(x, 1, dims=(2, 3)), rtol=0, atol=1e-5)


def test_a_half_turn_of_an_oblong_image_is_exact_and_a_quarter_turn_does_not_shear_it():
    x, still = noise(n=1, h=3, w=5), torch.zeros(1)
    assert_close(rotate_shift(x, torch.tensor([math.pi]), still, still), x.flip(2, 3), rtol=0, atol=1e-5)
    turned = rotate_shift(x, torch.tensor([math.pi / 2]), still, still)
    assert_close(turned[..., 1:4], torch.rot90(x[..., 1:4], 1, dims=(2, 3)), rtol=0, atol=1e-5)  # the central square


@pytest.mark.parametrize(("fill", "entered"), [("zeros", 0.0), ("border", 1.0)])
def test_a_shift_by_one_pixel_moves_the_columns_and_fills_the_side(fill, entered):
    row = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    moved = rotate_shift(row, torch.zeros(1), torch.tensor([0.25]), torch.zeros(1), fill)
    assert_close(moved.flatten(), torch.tensor([entered, 1.0, 2.0, 3.0]))
    column = row.view(1, 1, 4, 1)
    moved = rotate_shift(column, torch.zeros(1), torch.zeros(1), torch.tensor([0.25]), fill)
    assert_close(moved.flatten(), torch.tensor([entered, 1.0, 2.0, 3.0]))


def test_the_boxes_have_the_distribution_of_torchvision():
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    image, scale, ratio = torch.empty(3, 28, 32), (0.08, 1.0), (0.75, 1.3333)
    theirs = torch.tensor([RandomResizedCrop.get_params(image, scale, ratio) for _ in range(1500)]).double()
    ours = ResizedCrop(scale, ratio).boxes(1500, 28, 32, seeded()).T.double()
    assert_close(ours.mean(0), theirs.mean(0), rtol=0.0, atol=0.5)
    assert_close(ours.std(0), theirs.std(0), rtol=0.0, atol=0.5)
    tails = torch.tensor([0.1, 0.9], dtype=torch.float64)
    assert_close(ours.quantile(tails, 0), theirs.quantile(tails, 0), rtol=0.0, atol=1.0)
    top, left, height, width = ours.unbind(1)
    assert (top + height)[height < 28].max() == 28  # a box may touch the far side
    assert (left + width)[width < 32].max() == 32


def test_a_shift_adds_one_number_to_an_image_and_stops_at_its_range():
    x = torch.tensor([[0.5, 0.2, 0.8], [0.5, 0.4, 0.6]]).view(2, 1, 1, 3).expand(2, 3, 1, 3)
    after = Colour(shift=0.1)(x, seeded())
    added = after[:, 0, 0, 0] - 0.5
    assert added.abs().max() <= 0.1
    assert len(set(added.tolist())) == 2  # an image has a draw of its own
    assert_close(after, after[:, :1].expand_as(x), rtol=0, atol=0)  # all its channels the same
    for image, before, change in zip(after[:, 0, 0], x[:, 0, 0], added, strict=True):
        assert_close(image, (before + change).clamp(before.min(), before.max()))


def test_brightness_adds_one_number_per_image_and_contrast_scales_around_the_mean():
    x = 0.4 + 0.2 * noise()
    added = Colour(brightness=0.2)(x, seeded()) - x
    assert_close(added, added[:, :1, :1, :1].expand_as(x), rtol=0, atol=1e-6)
    assert added.abs().max() <= 0.2
    pair = torch.tensor([0.4, 0.6]).view(1, 1, 1, 2)
    assert_close(Colour(contrast=(1.8, 1.8))(pair, seeded()).flatten(), torch.tensor([0.32, 0.68]))
    assert_close(Colour(contrast=(0.0, 0.0))(pair, seeded()).flatten(), torch.tensor([0.5, 0.5]))


def test_standardise_by_hand_and_on_a_constant_image():
    x = torch.stack([torch.tensor([1.0, 3.0, 1.0, 3.0]), torch.full((4,), 0.7)]).view(2, 1, 2, 2)
    assert_close(Standardise()(x).flatten(1), torch.tensor([[-1.0, 1.0, -1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]))
    faint = torch.tensor([0.1, -0.1, 0.1, -0.1]).view(1, 1, 2, 2)  # std 0.1, below 1 / sqrt(4)
    assert_close(Standardise()(faint).flatten(), torch.tensor([0.2, -0.2, 0.2, -0.2]))


def test_pixelate_gives_every_pixel_the_mean_of_its_block_also_of_one_cut_off_at_the_side():
    x = torch.arange(6.0).view(1, 1, 2, 3)
    expected = torch.tensor([[2.0, 2.0, 3.5], [2.0, 2.0, 3.5]])
    assert_close(Pixelate(2)(x)[0, 0], expected)
    assert_close(Pixelate(9)(x), torch.full_like(x, 2.5))


def test_pad_edge_repeats_the_border_and_makes_28_pixels_32():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 2, 2)
    assert PadEdge(1)(x)[0, 0].tolist() == [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]
    assert PadEdge()(torch.zeros(1, 1, 28, 28)).shape == (1, 1, 32, 32)
    assert PadEdge().output_size(28) == 32


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Crop(-1), "`padding` .* at least 0, got -1"),
        (lambda: PadEdge(-1), "`padding` .* at least 0, got -1"),
        (lambda: Flip(1.5), r"`p` .* \[0, 1\], got 1.5"),
        (lambda: Flip(math.nan), r"`p` .* got nan"),
        (lambda: Affine(degrees=-1), "`degrees` must be at least 0, got -1"),
        (lambda: Affine(shift=2), r"`shift` must lie in \[0, 1\], got 2"),
        (lambda: Affine(fill="mirror"), "`fill` must be one of zeros, border, got 'mirror'"),
        (lambda: ResizedCrop(scale=(0.5, 0.1)), r"`scale` .* got \(0.5, 0.1\)"),
        (lambda: ResizedCrop(scale=(0.0, 1.0)), "`scale` .* 0 < low"),
        (lambda: ResizedCrop(ratio=(0.0, 1.0)), "`ratio` .* 0 < low"),
        (lambda: Colour(shift=-0.1), r"`shift` must lie in \[0, 1\], got -0.1"),
        (lambda: Colour(brightness=63), r"`brightness` must lie in \[0, 1\], got 63"),
        (lambda: Colour(contrast=(1.8, 0.2)), r"`contrast` .* got \(1.8, 0.2\)"),
    ],
)
def test_a_bad_option_is_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("augmentation", [*RANDOM, Standardise(), PadEdge(2), Pixelate(3)], ids=name)
@pytest.mark.parametrize(
    "x", [torch.zeros(2, 5), torch.zeros(2, 1, 4, 4, dtype=torch.uint8)], ids=["features", "uint8"]
)
def test_what_is_no_batch_of_float_images_is_refused(augmentation, x):
    with pytest.raises(ValueError, match=r"needs float images \[N, C, H, W\], got torch"):
        augmentation(x, seeded())


@pytest.mark.parametrize("augmentation", [*RANDOM, Standardise(), PadEdge(2), Pixelate(3)], ids=name)
def test_whether_it_draws_and_its_size_are_stated_truly(augmentation):
    generator = seeded()
    after = augmentation(noise(), generator)
    assert after.shape[-2:] == (augmentation.output_size(8), augmentation.output_size(8))
    assert augmentation.random == (not torch.equal(generator.get_state(), seeded().get_state()))
