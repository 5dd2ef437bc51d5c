"""The server trains what it holds on the public pool, with what clients uploaded: in rounds of its own, or theirs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedlit.aggregation import State, Upload, defect
from fedlit.data.client import SERVER, Server
from fedlit.engine.client_store import gather_collected
from fedlit.engine.cluster.processes import in_order
from fedlit.engine.lightning_hooks import warn_of_no_loss
from fedlit.engine.live_module import restored_requires_grad
from fedlit.engine.local_training import train
from fedlit.engine.plan import ClientState, Plan, UsageError
from fedlit.engine.state import FederationState
from fedlit.records.round_record import RoundRecord, failure
from fedlit.records.rows import POOLED, Row
from fedlit.rng import preserved

DEV_SAMPLES = 64  # a development run trains on so many


class ServerResult(NamedTuple):
    """What the server holds after it has trained, of its optimiser what is kept, and what it logged.

    `overflowed` is as in `RoundRecord`.
    """

    state: State
    memory: ClientState
    rows: list[Row]
    overflowed: dict[int, int]


def serve(state: FederationState, round: int, plan: Plan, tell: Callable[[int, int], None]) -> RoundRecord:
    """A round of the server's own: it trains what it holds, with what it has collected.

    Args:
        state: Of the federation.
        round: Its number, from 1.
        plan: How the server trains.
        tell: Called before it does.
    """
    if not state.collected:
        raise ValueError(f"Stage {plan.stage.name!r}: no client has uploaded anything for the server to learn from.")
    served = trained_by_server(state, round, plan, state.global_state, gather_collected(state), tell)
    state.end_server_round(served.state, served.memory)
    return RoundRecord(rows=served.rows, overflowed=served.overflowed)


def trained_by_server(
    state: FederationState,
    round: int,
    plan: Plan,
    held: State,
    uploads: Mapping[int, State],
    tell: Callable[[int, int], None],
) -> ServerResult:
    """Let the first process train what the server holds, and tell the others; the federation's state stays as it is.

    Args:
        state: Of the federation.
        round: Its number, from 1.
        plan: How the server trains.
        held: What it starts from.
        uploads: What clients have uploaded, by client id.
        tell: Called before it does.
    """
    name = plan.stage.name

    def work(_: int) -> dict[str, Any]:
        tell(1, 1)
        with state.options.profiler.profile("server"):
            with state.attributes.serving():
                done = _trained(state, round, plan, held, uploads)
            return done | {"attributes": state.attributes.changes()}

    [(_, done)] = in_order(state.fabric, [0], work, dict, dict)
    if not state.fabric.is_global_zero:  # it was not there
        state.attributes.put(done["attributes"], "The server's training")
    if problem := defect(Upload(SERVER, done["state"]), held):
        raise RuntimeError(f"The server's model cannot be used after round {round}: {problem}; is its lr too high?")
    rows = [Row(round, name, POOLED, "global", "public", metric, value) for metric, value in done["logs"].items()]
    overflowed = {SERVER: done["overflowed"]} if done["overflowed"] else {}
    return ServerResult(done["state"], ClientState(optimizer={name: done["momenta"]}), rows, overflowed)


def _trained(
    state: FederationState, round: int, plan: Plan, held: State, uploads: Mapping[int, State]
) -> dict[str, Any]:
    """The server's state after its epochs, of its optimiser what is kept, and what it logged."""
    state.live.reset_modes()
    state.live.put(held)
    try:
        with preserved(), restored_requires_grad(state.module):
            trained = train(state.fabric, state.module, _server(state, round), plan, state.server_memory, uploads)
    except UsageError:
        raise
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(f"The server could not train in round {round}: {failure(error).reason}") from error
    if trained.skipped:
        warn_of_no_loss(plan.stage.module or state.module, SERVER, trained.skipped)
    live = state.module.state_dict()
    momenta = {} if plan.optimizer_state == "reset" else trained.optimizer_state(state.module, state.server_names)
    after = {name: live[name].clone() for name in state.server_names}
    return {"state": after, "momenta": momenta, "logs": trained.logs, "overflowed": trained.overflowed}


def _server(state: FederationState, round: int) -> Server:
    size = len(state.data.public_pool)
    limit = DEV_SAMPLES if state.options.fast_dev_run else None
    return Server(SERVER, state.data.splits.num_classes, size, size, round, data=state.data, limit=limit)
