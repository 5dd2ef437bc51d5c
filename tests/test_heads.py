"""Networks made of networks, and many that answer together."""

import pytest
import torch
from torch import nn
from toys import SmallCNN

from fedlit.heads import Pretrained, Scattered, with_outputs
from fedlit.methods.states import Ensemble


def test_many_teachers_need_one_live_network_per_architecture():
    built = []

    def build(k):
        built.append(k)
        return nn.Linear(2, 3 if k else 4)

    uploads = {k: {f"m.{n}": t for n, t in nn.Linear(2, 3 if k else 4).state_dict().items()} for k in range(30)}
    Ensemble(uploads, "m.", build, lambda k: k > 0, torch.device("cpu"))
    assert built == [0, 1]


def test_a_head_for_some_classes_gives_exact_zeros_for_the_others():
    network = Scattered(nn.Linear(4, 2), [2, 0], num_classes=4)
    x = torch.randn(3, 4)
    p = network(x).softmax(dim=1)
    torch.testing.assert_close(p[:, [2, 0]], network.network(x).softmax(dim=1))
    assert p[:, [1, 3]].eq(0).all()


def test_another_head_leaves_the_rest_as_it_was():
    network = SmallCNN()
    before = [p.clone() for p in network.parameters()][:-2]
    with_outputs(network, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=False))
    assert network[-1].out_features == 1


def test_weights_of_torchvision_come_from_a_file_and_grey_images_are_taken(tmp_path):
    from torchvision.models import resnet18

    trained = resnet18()
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    network = Pretrained("resnet18", str(tmp_path / "weights.pt"), num_classes=4)
    assert torch.equal(network.network.conv1.weight, trained.conv1.weight)
    assert network.eval()(torch.rand(2, 1, 32, 32)).shape == (2, 4)


@pytest.mark.parametrize(
    ("options", "message"), [({"name": "resnet1"}, "`name` must be"), ({"weights": "gone.pt"}, "`weights` 'gone.pt'")]
)
def test_unknown_networks_and_weights_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Pretrained(**options)
