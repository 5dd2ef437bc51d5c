"""Our networks in the forms that others take them in: scripted, traced by torch.fx, exported."""

import pytest
import torch
from torch.testing import assert_close

from fedlit.networks import CNN1, CNN2, MLP, LeNet5, MoEExpert


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("form", [torch.jit.script, torch.fx.symbolic_trace], ids=["script", "fx"])
@pytest.mark.parametrize("kind", [MLP, LeNet5, MoEExpert, CNN1, CNN2])
def test_a_network_can_be_scripted_and_traced(kind, form):
    network = kind(in_channels=1, image_size=28).eval()
    x = torch.randn(2, 1, 28, 28)
    assert_close(form(network)(x), network(x))
