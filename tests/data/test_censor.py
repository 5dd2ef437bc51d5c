"""Censored copies of opted-out samples take part in the federation, the originals stay with their client."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from toys import SGD, equal, fitted, linear, part, seeded, toy_data

from fedlit import FederatedData
from fedlit.augment import Augmentation, Flip, Noise, PadEdge, Pixelate
from fedlit.data import JointData
from fedlit.data.remote import restrict_to_client
from fedlit.methods import MixtureOfExperts

MEAN_ALONE = Pixelate(8)  # of the toy images' 8 x 8 pixels


class Black(Augmentation):
    random = False

    def __call__(self, x, generator=None):
        return torch.zeros_like(x)


def pictures(censor: list[Augmentation], changed: bool = False, **options) -> FederatedData:
    """Images whose opted-out samples can be changed: their pixels upside down, which leaves the mean as it is."""

    def data(x: torch.Tensor) -> FederatedData:
        train, test = TensorDataset(x, torch.arange(60) % 3), TensorDataset(x[:30], torch.arange(30) % 3)
        given = {"num_clients": 3, "val_size": 0.1, "batch_size": 8, "opt_out_samples": 0.5, **options}
        found = FederatedData(train_dataset=train, test_dataset=test, censor=censor, **given)
        found.setup()
        return found

    x = torch.randint(0, 256, (60, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    plain = data(x.clone())
    if not changed:
        return plain
    for own, opted_in in zip(plain.assignment.train, plain.assignment.opted_in, strict=True):
        x[own[~opted_in]] = x[own[~opted_in]].flip(2)
    return data(x)


@pytest.mark.parametrize("options", [{}, {"opt_out_samples": 1.0}])
@pytest.mark.parametrize(("censor", "hides"), [(Black(), True), (MEAN_ALONE, True), (Pixelate(4), False)])
def test_uploads_depend_on_withheld_samples_by_their_copies_alone_and_local_experts_on_the_originals(
    censor, hides, options
):
    states = []
    for changed in (False, True):
        data = pictures([censor], changed, **options)
        moe = seeded(MixtureOfExperts, linear, SGD, epochs=2, baselines=False)
        states.append(fitted(moe, data, num_rounds=2))
    assert equal(states[0].global_state, states[1].global_state) == hides
    for k in range(3):
        experts = [part(one.personal_states[k], "local.") for one in states]
        assert not equal(*experts)


def test_a_client_shares_its_copies_and_trains_by_itself_on_the_originals():
    data = toy_data(opt_out_samples=0.5, censor=[Black()])
    data.setup()
    client = data.client(0)
    own, opted_in = data.assignment.train[0], data.assignment.opted_in[0]
    assert 0 < opted_in.sum() < len(own)
    assert client.num_opted_in == client.num_samples == len(own)
    shared = client.train_batches(samples="opted_in")
    assert torch.equal(shared.x[: opted_in.sum()], data.images.train_x[own[opted_in]])
    assert not shared.x[opted_in.sum() :].any()
    assert torch.equal(shared.y, data.images.train_y[np.concatenate([own[opted_in], own[~opted_in]])])
    assert torch.equal(client.train_batches(samples="all").x, data.images.train_x[own])
    assert sorted(client.labels().tolist()) == sorted(client.labels("all").tolist())


def test_a_client_that_opts_out_shares_no_copy():
    data = toy_data(opt_out=[1], opt_out_samples=0.5, censor=[Black()])
    data.setup()
    assert [data.client(k).num_opted_in for k in range(3)] == [18, 0, 18]


def test_parts_of_joint_data_share_their_copies():
    parts = [toy_data(opt_out_samples=1.0, censor=[Black()]) for _ in range(2)]
    data = JointData(parts)
    data.setup()
    for k in (0, 4):
        client = data.client(k)
        assert client.num_opted_in == client.num_samples == 18
        assert not client.train_batches(samples="opted_in").x.any()
        assert torch.equal(client.labels("opted_in"), client.labels("all"))


def test_a_host_with_data_of_its_own_censors_them_itself():
    with pytest.raises(ValueError, match=r"`data.censor` is for a simulation"):
        restrict_to_client(toy_data(censor=[Black()]), 0)


def test_what_is_random_in_a_copy_is_drawn_once():
    copies = []
    for _ in range(2):
        batches = pictures([Noise(0.3)]).client(0).train_batches(samples="opted_in")
        copies += [torch.cat([x for x, _ in batches]) for _ in range(2)]
    assert all(torch.equal(copy, copies[0]) for copy in copies)
    assert not torch.equal(copies[0], torch.cat([x for x, _ in pictures([Black()]).client(0).train_batches()]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"censor": [PadEdge(2)]}, r"`data.censor` must keep the kind of inputs, float32 .*8, 8\], got .*12, 12\]"),
        ({"censor": [Flip]}, r"`data.censor` must hold augmentations, such as Flip\(\), got <class"),
        ({"censor": [Black()], "in_memory": False}, r"`data.censor` is for inputs in one tensor and in memory"),
    ],
)
def test_a_censor_that_cannot_be_applied_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        toy_data(**options).setup()
