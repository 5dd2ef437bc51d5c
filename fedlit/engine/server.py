"""A round on the server's side: it trains what it holds on the public pool, with what clients have uploaded."""

from collections.abc import Callable
from typing import Any

from fedlit.aggregation import Upload, defect
from fedlit.data.client import SERVER, Server
from fedlit.engine.optimizers import optimizer_state
from fedlit.engine.plan import Memory, Plan
from fedlit.engine.processes import in_order
from fedlit.engine.state import FederationState
from fedlit.engine.training import train
from fedlit.engine.usage import UsageError
from fedlit.records.round_record import RoundRecord, failure
from fedlit.records.rows import POOLED, Row

DEV_SAMPLES = 64  # a development run trains on so many


def serve(state: FederationState, round: int, plan: Plan, tell: Callable[[int, int], None]) -> RoundRecord:
    """Train the server's own state; the first process does, and tells the others.

    Args:
        state: Of the federation.
        round: Its number, from 1.
        plan: How the server trains.
        tell: Called before it does.
    """
    stage = plan.stage
    if not state.collected:
        raise ValueError(f"Stage {stage.name!r}: no client has uploaded anything for the server to learn from.")

    def work(_: int) -> dict[str, Any]:
        tell(1, 1)
        return _trained(state, round, plan)

    [(_, done)] = in_order(state.fabric, [0], work, dict, dict)
    if problem := defect(Upload(SERVER, done["state"]), state.global_state):
        raise RuntimeError(f"The server's model cannot be used after round {round}: {problem}; is its lr too high?")
    state.end_server_round(done["state"], Memory(optimizer={stage.name: done["momenta"]}))
    logs = done["logs"].items()
    return RoundRecord(rows=[Row(round, stage.name, POOLED, "global", "public", name, value) for name, value in logs])


def _trained(state: FederationState, round: int, plan: Plan) -> dict[str, Any]:
    """The server's state after its epochs, of its optimiser what is kept, and what it logged."""
    state.load_global()
    try:
        trained = train(state.fabric, state.module, _server(state, round), plan, state.server_memory, state.collected)
    except UsageError:
        raise
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(f"The server could not train in round {round}: {failure(error).reason}") from error
    live = state.module.state_dict()
    kept = [] if plan.optimizer_state == "reset" else state.server_names
    momenta = optimizer_state(state.module, trained.optimizers, kept)
    held = {name: live[name].clone() for name in state.server_names}
    return {"state": held, "momenta": momenta, "logs": trained.logs}


def _server(state: FederationState, round: int) -> Server:
    size = len(state.data.public_pool)
    limit = DEV_SAMPLES if state.options.fast_dev_run else None
    return Server(SERVER, state.data.images.num_classes, size, size, round, data=state.data, limit=limit)
