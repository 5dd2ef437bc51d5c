"""`trainer.upload_encoder`: what leaves a client is encoded, and decoded before anybody looks at it."""

from functools import partial

import printed
import pytest
import torch
from test_agreement import AVERAGING
from test_server_optimizer import run
from torch.testing import assert_close
from toys import SGD, Diary, SmallCNN, equal, fitted, linear, rows

from fedlit import FedAvg, LocalOnly
from fedlit.aggregation import Median
from fedlit.encoders import Encoder, Float16, Int8, TopK
from fedlit.methods import SCAFFOLD
from fedlit.privacy import ClientLevelDP

PLAIN = partial(torch.optim.SGD, lr=0.1)
FEW = TopK(0.1)
AT_RANDOM = Int8(stochastic=True, error_feedback=True)


def sent_up(federation):
    return [int(row["bytes"]) for row in rows(federation, "ledger.csv") if row["direction"] == "up"]


@pytest.mark.parametrize("method", ["FML", "SCAFFOLD"])
def test_an_encoder_that_loses_nothing_has_the_bits_of_none(method):
    build = {**AVERAGING, "SCAFFOLD": lambda: SCAFFOLD(linear, PLAIN)}[method]
    plain = run(build, num_rounds=1).global_state
    assert equal(run(build, num_rounds=1, upload_encoder=TopK(1.0)).global_state, plain)
    assert not equal(run(build, num_rounds=1, upload_encoder=TopK(0.9)).global_state, plain)


def test_the_encoder_in_the_docs_runs_as_printed():
    [text] = [block for block in printed.blocks("docs/exchange.md", "python") if block.startswith("from torch")]
    found = {}
    printed.run(text, "docs/exchange.md", found)
    federation = run(lambda: FedAvg(linear, SGD), num_rounds=1, upload_encoder=found["Sign"]())
    assert set(sent_up(federation)) == {192 + 4 + 3 + 4}


class Noting(FedAvg):
    learned = Diary(dict)
    arrived = Diary(dict)

    def on_client_start(self, client):
        self.start = self.network[1].weight.detach().clone()

    def on_client_end(self, client):
        self.learned[client.id] = self.learned.get(client.id, 0) + self.network[1].weight.detach() - self.start

    def aggregate(self, uploads, current):
        held = list(uploads)
        for upload in held:
            change = upload.state["network.1.weight"] - current["network.1.weight"]
            self.arrived[upload.client] = self.arrived.get(upload.client, 0) + change
        return super().aggregate(held, current)


@pytest.mark.parametrize("encoder", [FEW, AT_RANDOM])
def test_what_arrived_and_what_is_left_over_is_what_was_learned(encoder):
    method = Noting(linear, SGD)
    federation = fitted(method, upload_encoder=encoder)
    for k, memory in federation.state.client_states.items():
        lost = memory.residual["network.1.weight"]
        assert lost.abs().max() > 1e-6
        assert_close(method.arrived[k] + lost, method.learned[k], rtol=0, atol=1e-6)
        assert not torch.allclose(method.arrived[k], method.learned[k], rtol=0, atol=1e-6)


def test_half_precision_halves_the_bytes_of_parameters_and_buffers_go_as_they_are():
    network = SmallCNN()
    parameters = sum(4 * p.numel() for p in network.parameters())
    buffers = sum(b.numel() * b.element_size() for b in network.buffers())
    assert sent_up(run(num_rounds=1))[0] == parameters + buffers
    assert sent_up(run(num_rounds=1, upload_encoder=Float16()))[0] == parameters / 2 + buffers
    local = run(num_rounds=1, upload_encoder=Float16(), batch_norm="local")
    assert sent_up(local)[0] == (parameters - 4 * 8) / 2


@pytest.mark.parametrize(
    "options",
    [
        {"aggregator": Median()},
        {"server_optimizer": partial(torch.optim.SGD, lr=0.5)},
        {"privacy": ClientLevelDP(noise_multiplier=0.0, delta=0.1)},
    ],
)
def test_other_options_see_what_was_decoded(options):
    build = partial(FedAvg, linear, SGD, weighting="uniform")
    without = run(build, num_rounds=1, **options).global_state
    assert equal(run(build, num_rounds=1, upload_encoder=TopK(1.0), **options).global_state, without)
    assert not equal(run(build, num_rounds=1, upload_encoder=FEW, **options).global_state, without)


class Short(Encoder):
    def encode(self, state, before, draw):
        return state

    def decode(self, encoded, before):
        return dict(list(encoded.items())[1:])


class SendsNumbers(Short):
    def encode(self, state, before, draw):
        return {"mean": 0.5}


@pytest.mark.parametrize(
    ("method", "encoder", "message"),
    [
        (LocalOnly, FEW, r"^`trainer.upload_encoder` would never be asked: LocalOnly averages nothing that trains"),
        (FedAvg, "TopK", r"^`trainer.upload_encoder` must be an Encoder, such as TopK\(\), got 'TopK'"),
    ],
)
def test_what_is_no_encoder_or_would_never_be_asked_is_refused_before_the_first_round(method, encoder, message):
    with pytest.raises(ValueError, match=message):
        fitted(method(linear, SGD), upload_encoder=encoder)


@pytest.mark.parametrize(
    ("encoder", "reason"),
    [(Short(), "missing 'network.1.weight'"), (SendsNumbers(), "may send dense tensors .*, got float")],
)
def test_an_encoder_that_fails_for_every_client_ends_the_run_in_its_first_round(encoder, reason):
    with pytest.raises(RuntimeError, match=rf"^Every client of round 1 failed.*: unusable \w+: .*{reason}"):
        fitted(FedAvg(linear, SGD), upload_encoder=encoder)
