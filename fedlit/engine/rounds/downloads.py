"""What a client is sent in a round, as the ledger counts it."""

from collections.abc import Iterator

from fedlit.aggregation import num_bytes
from fedlit.engine.states.state import FederationState
from fedlit.methods.stage import Stage

CONSTANT = "constant"  # in the ledger: what is frozen and the same for all
ONE_WAY = "one-way"  # in the ledger: what goes down only, or up only


def is_sent(state: FederationState, stage: Stage) -> bool:
    """Whether clients of a stage are sent anything in the next round; at home they have the last one."""
    return stage.upload == "aggregate" or state.stage is None or state.stage.upload == "aggregate"


def downloads(state: FederationState, stage: Stage, sent: int | None) -> Iterator[tuple[str, int]]:
    """Kinds and bytes of what a client is sent; what is constant only once.

    Args:
        state: Before the round.
        stage: That the round belongs to.
        sent: Bytes of what it was sent apart from others; None if all are sent the same.
    """
    if sent is not None:
        yield "model", sent
    elif is_sent(state, stage):
        if state.shared:
            yield "model", num_bytes(state.shared_state)
        if state.download_only:
            yield ONE_WAY, num_bytes(state.sent_state)
    if state.constant:
        yield CONSTANT, num_bytes(state.constant_state)
    if stage.public != "no":
        yield "public pool", state.data.public_pool.num_bytes
