"""A network that is taken out of a federation says what `predict` says."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from every_method import Normalised
from torch import nn
from torch.utils.data import TensorDataset
from toys import SGD, fitted, linear

from fedlit import FedAvg, FederatedData, Federation, LocalOnly
from fedlit.augment import Flip, PadEdge, Standardise
from fedlit.methods import APFL, DLAD, FML, FedBN, FedFusion, MixtureOfExperts
from fedlit.partition import IID, PermutedPixels


class Averaged(FedAvg):
    """Its `forward` is the work of no single part."""

    shared = ("network.",)

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.personal = network()

    def forward(self, x):
        return (self.network(x) + self.personal(x)) / 2


def images(public: float = 0.0, **options) -> FederatedData:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 3
    noise = torch.randint(0, 100, (90, 8, 8), generator=draw)
    x = (noise + 70 * y[:, None, None]).to(torch.uint8)
    train, test = TensorDataset(x[:60], y[:60]), TensorDataset(x[60:], y[60:])
    given = {"num_clients": 3, "batch_size": 8, "eval_batch_size": 16, "public": public, **options}
    return FederatedData(train_dataset=train, test_dataset=test, **given)


METHODS = {
    "FedAvg": lambda: FedAvg(Normalised, SGD),
    "FML": lambda: FML(Normalised, linear, SGD),
    "FedFusion": lambda: FedFusion(Normalised, SGD, operator="multi"),
    "MixtureOfExperts": lambda: MixtureOfExperts(Normalised, SGD, epochs=1),
    "DLAD": lambda: DLAD(linear, SGD, client_epochs=1, density_epochs=1, distil_epochs=1),
    "LocalOnly": lambda: LocalOnly(Normalised, SGD),
    "FedBN": lambda: FedBN(Normalised, SGD),
    "APFL": lambda: APFL(Normalised, SGD),
    "Averaged": lambda: Averaged(Normalised, SGD),
}


def said(network: nn.Module, batches) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([network(x) for x, _ in batches]).softmax(dim=1)


@pytest.mark.parametrize("name", METHODS)
def test_it_says_what_predict_says_and_with_preprocessing_takes_images_as_they_are(name):
    data = images(public=0.3 if name == "DLAD" else 0.0)
    method = METHODS[name]()
    federation = fitted(method, data, num_rounds=1)
    raw = [(x, None) for x in data.images.test_x.split(data.eval_batch_size)]
    assert raw[0][0].dtype == torch.uint8
    for client in [0, 2] if name in ("LocalOnly", "FedBN") else [None, 0, 2]:
        network = federation.network(client)
        predicted = federation.predict(method, data, client=client)
        assert torch.equal(said(network, data.test_batches(client)), predicted)
        assert torch.equal(said(federation.network(client, with_preprocessing=True), raw), predicted)
        assert not network.training


def test_steps_that_are_not_random_are_part_of_the_preprocessing():
    steps = [Flip(1.0), PadEdge(1), Standardise()]
    data = images(augmentation=steps)
    method = FedAvg(lambda: nn.Sequential(nn.Flatten(), nn.Linear(100, 3)), SGD)
    federation = fitted(method, data, num_rounds=1)
    network = federation.network(with_preprocessing=True)
    batches = [(x, None) for x in data.images.test_x.split(data.eval_batch_size)]
    assert torch.equal(said(network, batches), federation.predict(method, data))


@pytest.mark.parametrize(("partition", "differ"), [(PermutedPixels(), True), (IID(), False)])
def test_a_clients_permutation_of_pixels_is_part_of_the_preprocessing(partition, differ):
    data = images(partition=partition)
    federation = fitted(FedAvg(linear, SGD), data, num_rounds=1)
    x = data.images.test_x[:5]
    said_by = [federation.network(client, with_preprocessing=True)(x) for client in (0, 2)]
    expected = [federation.network(client)(data.inputs.ready(x, client)) for client in (0, 2)]
    assert all(map(torch.equal, said_by, expected))
    assert differ != torch.equal(*said_by)


class InAMapping(nn.Module):
    """As networks of Hugging Face give them."""

    def __init__(self):
        super().__init__()
        self.network = linear()

    def forward(self, x):
        return {"logits": self.network(x)}


def test_a_network_that_gives_a_mapping_is_taken_out_as_it_is():
    data = images()
    federation = fitted(FedAvg(InAMapping, SGD), data, num_rounds=1)
    x = data.images.test_x[:5] / 255
    for client in (None, 1):
        network = federation.network(client)
        assert isinstance(network, InAMapping)
        assert torch.equal(network(x)["logits"], federation.state.module.network(x)["logits"])


MINE = """
import torch
from torch import nn

class Mine(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3))
"""
UNPICKLED = """
import pickle, sys
network = pickle.load(open("network.pkl", "rb"))
assert type(network).__name__ == "Mine"
assert not any(name.split(".")[0] in ("fedlit", "lightning") for name in sys.modules)
"""


def test_a_network_of_ones_own_class_is_unpickled_without_fedlit(monkeypatch):
    Path("mine_alone.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    from mine_alone import Mine

    federation = fitted(FML(Mine, linear, SGD), images(), num_rounds=1)
    Path("network.pkl").write_bytes(pickle.dumps(federation.network(client=1)))
    subprocess.run([sys.executable, "-c", UNPICKLED], check=True)


def test_a_checkpoint_is_taken_up_without_being_evaluated(tmp_path, capsys):
    data = images()
    torch.manual_seed(0)
    before = fitted(FML(Normalised, linear, SGD), data, num_rounds=1, default_root_dir=str(tmp_path))
    files = sorted(tmp_path.rglob("*"))
    federation = Federation(accelerator="cpu", default_root_dir=str(tmp_path))
    federation.load(FML(Normalised, linear, SGD), images(), ckpt_path="last")
    batches = list(data.test_batches())
    assert torch.equal(said(federation.network(1), batches), said(before.network(1), batches))
    assert sorted(tmp_path.rglob("*")) == files
    assert capsys.readouterr().out == ""


def test_what_there_is_not_is_refused():
    with pytest.raises(RuntimeError, match="no state before its first"):
        Federation(accelerator="cpu").network()
    federation = fitted(LocalOnly(linear, SGD), images(), num_rounds=1)
    with pytest.raises(ValueError, match="LocalOnly has no global model; name one of its clients"):
        federation.network()
    for client, said in ((3, "3"), (-1, "-1"), ("1", "'1'"), (1.0, "1.0")):
        with pytest.raises(ValueError, match=rf"must be 0 to 2, got {said}; in Python it is `client=`"):
            federation.network(client=client)
