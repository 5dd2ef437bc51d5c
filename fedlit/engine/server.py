"""A round on the server's side: it trains what it holds on the public pool, with what clients have uploaded."""

from collections.abc import Callable

from fedlit.aggregation import Upload, defect
from fedlit.data.client import SERVER, Server
from fedlit.engine.failure import failure
from fedlit.engine.processes import in_order
from fedlit.engine.run import Round, Run
from fedlit.engine.usage import UsageError
from fedlit.engine.visit import Memory, Plan, optimizer_state, train
from fedlit.records.recorder import POOLED, Row

DEV_SAMPLES = 64  # a development run trains on so many


def serve(run: Run, round: int, plan_for: Callable[[int], Plan], tell: Callable[[int, int], None]) -> Round:
    """Train the server's own state; the first process does, and tells the others.

    Args:
        run: Its states and live module.
        round: Its number, from 1.
        plan_for: How it trains.
        tell: Called before it does.
    """
    plan = plan_for(SERVER)
    if not run.collected:
        raise ValueError(f"Stage {plan.stage.name!r}: no client has uploaded anything for the server to learn from.")
    size, limit = len(run.data.public_pool), DEV_SAMPLES if run.fast_dev_run else None
    server = Server(SERVER, run.data.images.num_classes, size, size, round, data=run.data, limit=limit)

    def work(_: int) -> dict:
        tell(1, 1)
        run.load_global()
        try:
            optimizers, logs = train(run.fabric, run.module, server, plan, run.server_memory, run.collected)
        except UsageError:
            raise
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(f"The server could not train in round {round}: {failure(error).reason}") from error
        live = run.module.state_dict()
        kept = [] if plan.optimizer_state == "reset" else run.server
        momenta = optimizer_state(run.module, optimizers, kept)
        return {"state": {name: live[name].clone() for name in run.server}, "momenta": momenta, "logs": logs}

    [(_, done)] = in_order(run.fabric, [0], work, dict, dict)
    if problem := defect(Upload(SERVER, done["state"]), run.global_state):
        raise RuntimeError(f"The server's model cannot be used after round {round}: {problem}; is its lr too high?")
    run.global_state, run.server_memory = done["state"], Memory(optimizer={plan.stage.name: done["momenta"]})
    rows = [Row(round, plan.stage.name, POOLED, "global", "public", n, v) for n, v in done["logs"].items()]
    return Round(rows=rows)
