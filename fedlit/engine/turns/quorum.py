"""A round that has too few usable clients is repeated with others, and at last given up.

Law: where nobody fails there is one attempt, with the clients of a round as ever.
"""

from collections.abc import Callable
from itertools import count

from fedlit.engine.turns.sampling import ClientSampler, fewest_usable
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure, RoundRecord
from fedlit.records.rows import LedgerRow


class TooFewClients(RuntimeError):
    """A round was given up, and all rounds before it are as they were; or none of the new clients could join."""


def whole_round(
    sampler: ClientSampler,
    stage: Stage,
    number: int,
    train: Callable[[list[int]], RoundRecord],
    note: Callable[[int, RoundRecord], None],
) -> RoundRecord:
    """Train clients until enough of them are usable.

    Args:
        sampler: Draws clients, others at every attempt.
        stage: That the round belongs to.
        number: Of the round.
        train: One attempt.
        note: Told of an attempt that has failed: its number, and what it left.
    """
    options = sampler.state.options
    failed: dict[int, Failure] = {}
    ledger: list[LedgerRow] = []
    for attempt in count(1):
        clients = sampler.sample(stage, number, attempt, failed)
        record = train(clients)
        record.attempt = attempt
        record.ledger = [*ledger, *record.ledger]  # what a repeated round sends crosses borders, too
        if record.is_whole:
            break
        note(number, record)
        failed |= record.failures
        ledger = record.ledger
        others = [k for k in sampler.candidates(stage, number) if k not in failed]
        needed = fewest_usable(options, stage, len(clients))
        if attempt > options.max_round_retries or len(others) < needed:
            raise TooFewClients(_told(number, len(clients), needed, record))
    return record


def _told(number: int, num_clients: int, needed: int, record: RoundRecord) -> str:
    """What is said at the end, in a line, and below it in full what the first client died of."""
    usable = num_clients - len(record.failures)
    what = f"Every client of round {number} failed"
    if usable:
        what = f"Only {usable} of the {num_clients} clients of round {number} were usable, {needed} are needed"
    if record.attempt > 1:
        what += f", at attempt {record.attempt}"
    client, failure = next(iter(record.failures.items()))
    return f"{what}; client {client}: {failure.told}\n{failure.details}".rstrip()
