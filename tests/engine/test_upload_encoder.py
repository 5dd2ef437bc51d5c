"""`trainer.upload_encoder`: what leaves a client is encoded, and decoded before anybody looks at it."""

import json
import os
import re
import signal
from functools import partial
from pathlib import Path

import printed
import pytest
import torch
from forked import exit_codes, forked
from test_agreement import AVERAGING
from test_server_optimizer import KillAt
from torch import nn
from torch.testing import assert_close
from toys import SGD, Diary, SmallCNN, equal, fitted, linear, rows, toy_data

from fedlit import FedAvg, LocalOnly, Stage
from fedlit.aggregation import Median, Upload
from fedlit.encoders import Encoder, Float16, Int8, TopK
from fedlit.engine.client_runner import ClientResult, pack, unpack
from fedlit.engine.client_store import bring
from fedlit.engine.encoding import Encoding, encoding_of
from fedlit.engine.plan import ClientState, LocalResult
from fedlit.methods import DLAD, SCAFFOLD, FedDF, FedProto
from fedlit.privacy import ClientLevelDP

PLAIN = partial(torch.optim.SGD, lr=0.1)
FEW = TopK(0.1)
AT_RANDOM = Int8(stochastic=True, error_feedback=True)


class Same(Encoder):
    """Of a user's own: it loses nothing."""

    def encode(self, state, before, draw):
        return state

    def decode(self, encoded, before):
        return encoded


class Sign(Encoder):
    """Of a user's own, in ten lines; it writes into what it is lent, and draws by itself."""

    error_feedback = True

    def encode(self, state, before, draw):
        for name, tensor in state.items():
            tensor.sub_(before[name])
        scale = [update.abs().mean() * (1 + 0.1 * torch.rand(())) for update in state.values()]
        return {"signs": [update.sign().to(torch.int8) for update in state.values()], "scale": scale}

    def decode(self, encoded, before):
        for tensor, signs, scale in zip(before.values(), encoded["signs"], encoded["scale"], strict=True):
            tensor.add_(signs * scale)
        return before


def run(method=lambda: FedAvg(SmallCNN, SGD), **options):
    torch.manual_seed(7)
    return fitted(method(), **options)


def residuals(federation):
    bring(federation.state, sorted(federation.state.owner_ranks))
    return {k: memory.residual for k, memory in federation.state.memories.items()}


def sent_up(federation, kind="model"):
    found = [row for row in rows(federation, "ledger.csv") if row["direction"] == "up" and row["kind"] == kind]
    return [int(row["bytes"]) for row in found]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Two rounds without an encoder."""
    return run(num_rounds=2, default_root_dir=str(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def at_random(tmp_path_factory):
    """Three rounds with one that draws, and remembers what it lost."""
    return run(upload_encoder=AT_RANDOM, default_root_dir=str(tmp_path_factory.mktemp("at_random")))


# --- nothing lost, nothing changed


@pytest.mark.parametrize("method", ["FedMMD", "FML", "FineTuned", "SCAFFOLD"])
def test_an_encoder_that_loses_nothing_has_the_bits_of_none(method):
    build = {**AVERAGING, "SCAFFOLD": lambda: SCAFFOLD(linear, PLAIN)}[method]
    plain = run(build, num_rounds=1).global_state
    assert equal(run(build, num_rounds=1, upload_encoder=TopK(1.0)).global_state, plain)


def test_one_that_loses_something_has_other_bits(plain):
    assert equal(run(num_rounds=2, upload_encoder=TopK(1.0)).global_state, plain.global_state)
    assert not equal(run(num_rounds=2, upload_encoder=TopK(0.99)).global_state, plain.global_state)


def test_an_own_encoder_that_loses_nothing_has_the_bits_and_the_bytes_of_none(plain):
    same = run(num_rounds=2, upload_encoder=Same())
    assert equal(same.global_state, plain.global_state)
    assert sent_up(same) == sent_up(plain)
    assert residuals(same) == {}


def test_the_encoder_in_the_docs_runs_as_printed():
    [text] = [block for block in printed.blocks("docs/exchange.md", "python") if block.startswith("from torch")]
    found = {}
    printed.run(text, "docs/exchange.md", found)
    federation = run(lambda: FedAvg(linear, SGD), num_rounds=1, upload_encoder=found["Sign"]())
    assert set(sent_up(federation)) == {192 + 4 + 3 + 4}


# --- error feedback


class Told(FedAvg):
    """Notes what clients have learned, and what the server was told."""

    learned = Diary(dict)
    arrived = Diary(dict)

    def on_client_start(self, client):
        self.start = self.network[1].weight.detach().clone()

    def on_client_end(self, client):
        self.learned[client.id] = self.learned.get(client.id, 0) + self.network[1].weight.detach() - self.start

    def aggregate(self, uploads, current):
        held = list(uploads)
        for upload in held:
            told = upload.state["network.1.weight"] - current["network.1.weight"]
            self.arrived[upload.client] = self.arrived.get(upload.client, 0) + told
        return super().aggregate(held, current)


@pytest.mark.parametrize("encoder", [FEW, AT_RANDOM, Sign()])
def test_what_arrived_and_what_is_left_over_is_what_was_learned(encoder):
    method = Told(linear, SGD)
    federation = fitted(method, upload_encoder=encoder)
    for k, residual in residuals(federation).items():
        lost = residual["network.1.weight"]
        assert lost.abs().max() > 1e-6
        assert_close(method.arrived[k] + lost, method.learned[k], rtol=0, atol=1e-6)
        assert not torch.allclose(method.arrived[k], method.learned[k], rtol=0, atol=1e-6)


def test_without_error_feedback_nothing_is_left_over_and_less_has_arrived():
    method = Told(linear, SGD)
    federation = fitted(method, upload_encoder=TopK(0.1, error_feedback=False))
    assert residuals(federation) == {}
    assert not torch.allclose(method.arrived[0], method.learned[0], rtol=0, atol=1e-3)


def test_what_is_left_over_by_hand():
    """Of 192 + 3 weights one each is sent; what it is moved by is gone from what is left over, the rest is there."""
    federation = run(lambda: FedAvg(linear, PLAIN), num_rounds=1, upload_encoder=TopK(0.001))
    for residual in residuals(federation).values():
        assert int((residual["network.1.weight"] == 0).sum()) == 1
        assert int((residual["network.1.bias"] == 0).sum()) == 1
    assert set(sent_up(federation)) == {2 * (4 + 4)}


class FailsAtFirst(FedAvg):
    """Client 1, in the second round, after it has trained."""

    def on_client_end(self, client):
        if (client.id, client.round) == (1, 2):
            raise ValueError("no")


def test_what_is_left_over_stays_as_it_is_while_a_client_is_left_out():
    build = partial(FailsAtFirst, linear, SGD)
    before = residuals(run(build, num_rounds=1, upload_encoder=FEW))
    after = residuals(run(build, num_rounds=2, upload_encoder=FEW))
    assert equal(after[1], before[1])
    assert not equal(after[0], before[0])


def test_a_stage_at_home_keeps_what_is_left_over():
    federation = run(AVERAGING["FineTuned"], num_rounds=2, upload_encoder=FEW)
    assert [row["stage"] for row in rows(federation)][-1] != "federate"
    assert all(residual for residual in residuals(federation).values())


# --- wherever a client is visited, the same bits


def test_two_processes_end_in_the_same_bits_and_pass_on_what_was_sent(at_random, tmp_path):
    def work(rank):
        federation = run(devices=2, upload_encoder=AT_RANDOM)
        torch.save([federation.global_state, residuals(federation)], tmp_path / f"state_{rank}.pt")

    assert exit_codes(forked(work, tmp_path)) == [0, 0], (tmp_path / "rank_0.txt").read_text()
    for rank in range(2):
        state, lost = torch.load(tmp_path / f"state_{rank}.pt")
        assert equal(state, at_random.global_state)
        assert all(equal(lost[k], residual) for k, residual in residuals(at_random).items())


def test_between_processes_goes_what_was_sent_and_no_more():
    federation = run(num_rounds=1, upload_encoder=FEW)
    encoding = encoding_of(federation.state, Stage("federate"), 2)
    upload = Upload(0, federation.state.expected_upload(0), 1.0)
    outcome = LocalResult(upload, ClientState(), {})
    encoded, _ = encoding.send(outcome)
    packed = pack(ClientResult(outcome, {}, encoded=encoded))
    assert packed["upload"]["state"] == {}
    found = unpack(packed, encoding.decoded)
    assert equal(found.outcome.upload.state, outcome.upload.state)
    assert list(found.outcome.upload.state) == list(upload.state)


def test_a_process_of_a_clients_own_makes_no_difference():
    build = partial(FedAvg, linear, SGD)
    here = run(build, upload_encoder=Sign(), num_rounds=2)
    own = run(build, upload_encoder=Sign(), num_rounds=2, client_timeout=60.0)
    assert equal(own.global_state, here.global_state)
    assert sent_up(own) == sent_up(here)


def test_a_killed_run_goes_on_with_what_is_left_over_to_the_same_bits(at_random, tmp_path):
    options = {"upload_encoder": AT_RANDOM, "default_root_dir": str(tmp_path)}
    child = os.fork()
    if child == 0:
        run(**options, callbacks=KillAt(3))
        os._exit(0)
    assert exit_codes([child]) == [-signal.SIGKILL]
    resumed = run(**options, ckpt_path="last")
    assert equal(resumed.global_state, at_random.global_state)
    assert all(equal(residuals(resumed)[k], residual) for k, residual in residuals(at_random).items())


def test_a_run_that_forgot_what_is_left_over_would_come_to_others(at_random, monkeypatch):
    meant = Encoding._meant
    monkeypatch.setattr("fedlit.engine.encoding.Encoding._meant", lambda self, upload, _: meant(self, upload, {}))
    assert not equal(run(upload_encoder=AT_RANDOM).global_state, at_random.global_state)


def test_what_goes_to_files_comes_back(at_random):
    assert equal(run(upload_encoder=AT_RANDOM, personal_memory=0.0).global_state, at_random.global_state)


# --- bytes


def test_half_precision_halves_the_bytes_of_parameters_and_buffers_go_as_they_are(plain):
    network = SmallCNN()
    parameters = sum(4 * p.numel() for p in network.parameters())
    buffers = sum(b.numel() * b.element_size() for b in network.buffers())
    assert sent_up(plain)[0] == parameters + buffers
    assert sent_up(run(num_rounds=1, upload_encoder=Float16()))[0] == parameters / 2 + buffers
    local = run(num_rounds=1, upload_encoder=Float16(), batch_norm="local")
    assert sent_up(local)[0] == (parameters - 4 * 8) / 2


def test_what_goes_up_only_is_counted_apart_and_goes_as_it_is():
    plain = run(lambda: SCAFFOLD(linear, PLAIN), num_rounds=1)
    half = run(lambda: SCAFFOLD(linear, PLAIN), num_rounds=1, upload_encoder=Float16())
    assert sent_up(half, "one-way") == sent_up(plain, "one-way") != []
    assert sent_up(half) == [size / 2 for size in sent_up(plain)]


def test_what_is_constant_is_neither_sent_nor_encoded():
    def frozen():
        method = FedAvg(linear, SGD)
        method.network[1].bias.requires_grad_(False)
        return method

    assert set(sent_up(run(frozen, num_rounds=1, upload_encoder=Float16()))) == {2 * 192}


# --- beside other options


@pytest.mark.parametrize(
    "options",
    [
        {"aggregator": Median()},
        {"server_optimizer": partial(torch.optim.SGD, lr=0.5)},
        {"max_norm_ratio": 100.0},
        {"privacy": ClientLevelDP(noise_multiplier=0.0, delta=0.1)},
    ],
)
def test_other_options_see_what_was_decoded(options):
    build = partial(FedAvg, linear, SGD, weighting="uniform")
    without = run(build, num_rounds=1, **options).global_state
    assert equal(run(build, num_rounds=1, upload_encoder=TopK(1.0), **options).global_state, without)
    assert not equal(run(build, num_rounds=1, upload_encoder=FEW, **options).global_state, without)


# --- what is damaged on its way


class Damaged(Encoder):
    """Spoils what client 1 sends; a client is known by the weights that it has come to."""

    def __init__(self, inner, spoil):
        self.inner, self.spoil = inner, spoil
        self.number = -1

    def encode(self, state, before, draw):
        self.number += 1
        content = self.inner.encode(state, before, draw)
        if self.number == 3:  # two trials before the first round, and client 0
            return self.spoil(content["network.1.weight"], content) or content
        return content

    def decode(self, encoded, before):
        return self.inner.decode(encoded, before)


def spoilt(key, value):
    return lambda part, content: part.__setitem__(key, value)


@pytest.mark.parametrize(
    ("encoder", "spoil", "told"),
    [
        (FEW, spoilt("places", torch.arange(190, 209)), "places of 'network.1.weight' must rise within 0 and 191"),
        (FEW, spoilt("values", torch.zeros(4)), "what is sent of 'network.1.weight' must be"),
        (FEW, spoilt("values", torch.full((19,), torch.nan)), "'network.1.weight' is not finite"),
        (Int8(), spoilt("scale", torch.tensor(torch.nan)), "scale of 'network.1.weight' is not finite .is the lr"),
        (Int8(), spoilt("scale", torch.tensor(3e38)), "'network.1.weight' is not finite|square overflows"),
        (Int8(), lambda part, content: {"b": None}, "may send dense tensors in dicts, lists and tuples, got NoneType"),
        (Int8(), lambda part, content: [torch.zeros(1)], "unusable upload: TypeError"),
    ],
)
def test_a_damaged_upload_leaves_its_client_out_and_no_other(encoder, spoil, told):
    build = partial(FedAvg, linear, SGD)
    federation = run(build, num_rounds=1, upload_encoder=Damaged(encoder, spoil))
    lines = Path(federation.log_dir, "events.jsonl").read_text().splitlines()
    left = [event for event in map(json.loads, lines) if event["event"] == "left_out"]
    assert [event["client"] for event in left] == [1]
    assert re.search(told, left[0]["reason"])
    others = run(build, data=toy_data(opt_out=[1]), num_rounds=1, upload_encoder=encoder)
    assert equal(federation.global_state, others.global_state)


# --- refusals


class Divides(Same):
    def encode(self, state, before, draw):
        return {name: (tensor - before[name]) / (tensor - before[name]).norm() for name, tensor in state.items()}


class Short(Same):
    def decode(self, encoded, before):
        return dict(list(encoded.items())[1:])


class SendsNumbers(Same):
    def encode(self, state, before, draw):
        return {"mean": 0.5}


@pytest.mark.parametrize(
    ("method", "encoder", "told"),
    [
        (LocalOnly, FEW, r"^`trainer.upload_encoder` would never be asked: LocalOnly averages nothing that trains"),
        (FedProto, FEW, r"^`trainer.upload_encoder` would never be asked: FedProto averages nothing that trains"),
        (FedAvg, Divides(), r"^`trainer.upload_encoder` Divides, tried on an update that moves nothing: .*not finite"),
        (FedAvg, Short(), r"^`trainer.upload_encoder` Short, tried on .*: missing 'network.1.weight'"),
        (FedAvg, SendsNumbers(), r"^`trainer.upload_encoder` SendsNumbers, tried .*: .*dense tensors .*, got float"),
        (FedAvg, "TopK", r"^`trainer.upload_encoder` must be an Encoder, such as TopK\(\), got 'TopK'"),
        (FedAvg, TopK, r"^`trainer.upload_encoder` must be an Encoder, such as TopK\(\), got <class"),
    ],
)
def test_what_cannot_encode_or_would_never_be_asked_is_refused_before_the_first_round(method, encoder, told):
    with pytest.raises(ValueError, match=told):
        fitted(method(linear, SGD), upload_encoder=encoder)


@pytest.mark.parametrize("method", [DLAD, FedDF])
def test_who_collects_or_sends_clients_something_else_is_refused_by_name(method):
    told = {"DLAD": "would never be asked: DLAD averages", "FedDF": "`download` of FedDF sends each something else"}
    with pytest.raises(ValueError, match=told[method.__name__]):
        fitted(method(linear, SGD), toy_data(public=0.5), upload_encoder=FEW)


class WithNothing(nn.Sequential):
    """A parameter without values."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 3))
        self.nothing = nn.Parameter(torch.zeros(0))


def test_a_parameter_without_values_goes_as_it_is():
    assert run(lambda: FedAvg(WithNothing, SGD), num_rounds=1, upload_encoder=Int8()).state.round == 1
