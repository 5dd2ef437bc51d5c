"""`trainer.upload_encoder`: encodes what leaves a client and decodes it before it is validated.

Shared parameters that train are encoded; buffers, counters and `upload_only` entries are sent as they are. With
`error_feedback`, what was lost stays with the client (`ClientState.residual`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fedlit.aggregation import State
from fedlit.encoders import Encoder, check_sendable
from fedlit.engine.live_module import client_failure, trained_names
from fedlit.engine.plan import LocalResult
from fedlit.engine.state import FederationState
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure
from fedlit.rng import derive, isolated


class Encoded(NamedTuple):
    """An encoded upload: the encoder's output, and the entries that are not encoded."""

    content: Any
    plain: State


class Encoding:
    """Encodes and decodes the uploads of one round.

    Args:
        encoder: Of `trainer.upload_encoder`.
        before: What clients were sent of what is encoded.
        order: Names of an upload, in the order in which they are added up.
        seed: Of the run, the stage and the round.
    """

    def __init__(self, encoder: Encoder, before: State, order: Sequence[str], seed: int) -> None:
        self.encoder = encoder
        self.before = before
        self.order = order
        self.seed = seed

    def send(self, outcome: LocalResult) -> tuple[Encoded | None, Failure | None]:
        """Encode an upload and decode it; the encoded upload, and why it cannot be used.

        The outcome's upload becomes the decoded one, and its residual what was lost.
        """
        upload = outcome.upload
        assert upload is not None  # the stage aggregates
        outcome.upload = None
        encoded = None
        try:
            residual = outcome.client_state.residual
            target = {name: upload.state[name] for name in self.before}
            target |= {name: target[name] + residual[name] for name in target.keys() & residual.keys()}
            seed = derive(self.seed, "encode", upload.client)
            with isolated(seed), torch.no_grad():
                draw = torch.Generator().manual_seed(seed)
                content = self.encoder.encode(_copied(target), _copied(self.before), draw)
            check_sendable(content)
            plain = {name: tensor for name, tensor in upload.state.items() if name not in self.before}
            encoded = Encoded(content, plain)
            outcome.upload = replace(upload, state=plain)  # what it is counted by, if it cannot be decoded
            decoded_state = self.decoded(upload.client, encoded)
            outcome.upload = replace(upload, state=decoded_state)
            outcome.client_state.residual = {}
            if self.encoder.error_feedback:
                lost = {name: tensor - decoded_state[name] for name, tensor in target.items()}
                outcome.client_state.residual = {name: tensor for name, tensor in lost.items() if tensor.any()}
        except Exception as error:  # an encoder may raise anything
            found = client_failure(error)
            return encoded, replace(found, reason=f"unusable upload: {found.reason}")
        return encoded, None

    def decoded(self, client: int, encoded: Encoded) -> State:
        """The state of an upload as the server has it."""
        with isolated(derive(self.seed, "decode", client)), torch.no_grad():
            decoded_state = self.encoder.decode(encoded.content, _copied(self.before))
        found = {**encoded.plain, **decoded_state}
        return {name: found[name] for name in self.order if name in found} | found


def _copied(state: State) -> State:
    """A copy, which an encoder may write into."""
    return {name: tensor.clone() for name, tensor in state.items()}


def encoding_of(state: FederationState, stage: Stage, number: int) -> Encoding | None:
    """How uploads of a round are encoded; None if they are not."""
    encoder = state.options.upload_encoder
    if encoder is None or stage.upload != "aggregate":
        return None
    names = encoded_names(state.module, state.shared)
    before = {name: state.global_state[name] for name in names}
    order = [*state.shared, *state.upload_only]
    return Encoding(encoder, before, order, derive(state.options.seed, stage.name, number))


def encoded_names(module: FederatedModule, shared: Sequence[str]) -> list[str]:
    """Names of shared parameters that train and are not empty; one with two names is encoded under each."""
    state = module.state_dict()
    return [name for name in trained_names(module, shared) if state[name].numel()]
