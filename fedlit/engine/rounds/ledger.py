"""What crosses a client's border in a round, counted in bytes: the lines of ledger.csv."""

from collections.abc import Iterator

from fedlit.aggregation import Upload, num_bytes
from fedlit.engine.rounds.encoding import Encoded
from fedlit.engine.rounds.visiting import is_sent
from fedlit.engine.states.state import FederationState
from fedlit.methods.stage import Stage
from fedlit.records.rows import LedgerRow

ONE_WAY = "one-way"  # what goes down only, or up only


class Ledger:
    """The ledger of one round.

    Args:
        state: Of the federation before it.
        stage: Of the round.
        number: Of the round.
    """

    def __init__(self, state: FederationState, stage: Stage, number: int) -> None:
        self.state = state
        self.stage = stage
        self.number = number

    def up(self, k: int, upload: Upload, encoded: Encoded | None) -> Iterator[LedgerRow]:
        """What a client has sent: of what is encoded, that; what goes up only stands apart from the model."""
        names = self.state.upload_only if self.stage.upload == "aggregate" else []
        sent = Encoded([], upload.state) if encoded is None else encoded
        one_way = num_bytes({name: sent.plain[name] for name in names if name in sent.plain})
        both_ways = num_bytes(sent) - one_way
        if both_ways or not one_way:
            yield self._row(k, "up", "model", both_ways)
        if one_way:
            yield self._row(k, "up", ONE_WAY, one_way)

    def down(self, k: int, sent: int | None) -> Iterator[LedgerRow]:
        """What a client was sent; `sent` is how much where clients are not all sent the same."""
        state = self.state
        if sent is not None:
            yield self._row(k, "down", "model", sent)
        elif is_sent(state, self.stage):
            if state.shared:
                yield self._row(k, "down", "model", num_bytes(state.shared_state))
            if state.download_only:
                yield self._row(k, "down", ONE_WAY, num_bytes(state.sent_state))
        if state.constant and k not in state.equipped:
            yield self._row(k, "down", "constant", num_bytes(state.constant_state))
        if self.stage.public != "no":
            yield self._row(k, "down", "public pool", state.data.public_pool.num_bytes)

    def _row(self, k: int, direction: str, kind: str, size: int) -> LedgerRow:
        return LedgerRow(self.number, k, direction, kind, size)
