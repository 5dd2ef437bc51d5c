"""What crosses a client's border in a round, counted in bytes: the lines of ledger.csv."""

from collections.abc import Iterator

from fedlit.aggregation import Upload, num_bytes
from fedlit.engine.rounds.downloads import CONSTANT, ONE_WAY, downloads
from fedlit.engine.rounds.encoding import Encoded
from fedlit.engine.states.state import FederationState
from fedlit.methods.stage import Stage
from fedlit.records.rows import LedgerRow


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
        self.common = list(downloads(state, stage, None))

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
        found = self.common if sent is None else downloads(self.state, self.stage, sent)
        for kind, size in found:
            if kind != CONSTANT or k not in self.state.equipped:
                yield self._row(k, "down", kind, size)

    def _row(self, k: int, direction: str, kind: str, size: int) -> LedgerRow:
        return LedgerRow(self.number, k, direction, kind, size)
