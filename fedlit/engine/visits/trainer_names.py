"""What of Lightning's Trainer has another name in a federation, for callbacks that ask for it."""

from collections.abc import Iterable

from fedlit.engine.usage import NoSuchAttribute

IN_A_VISIT = "`self.trainer` of a method has it, in a visit"
CALLED_HERE = {
    "callback_metrics": "`state.scores.last`",
    "checkpoint_callback": "`save_every_n_rounds`, an option",
    "current_epoch": "`state.round`",
    "datamodule": "`state.data`",
    "early_stopping_callback": "fedlit.callbacks.StopAt",
    "estimated_stepping_batches": IN_A_VISIT,
    "global_rank": "`fabric.global_rank`",
    "global_step": "`state.round`",
    "lightning_module": "`state.module`",
    "local_rank": "`fabric.local_rank`",
    "logged_metrics": "`state.scores.last`",
    "loggers": "`logger`, an option",
    "max_epochs": "`num_rounds` and `local_epochs`, options",
    "max_steps": "`num_rounds` and `local_steps`, options",
    "model": "`state.module`",
    "num_training_batches": IN_A_VISIT,
    "optimizers": IN_A_VISIT,
    "progress_bar_callback": "`enable_progress_bar`, an option",
    "save_checkpoint": "`save_every_n_rounds`, an option",
    "train_dataloader": "`state.data`",
    "world_size": "`fabric.world_size`",
}


def no_such_attribute(name: str, known: Iterable[str]) -> AttributeError:
    """What to raise where a federation is asked for what it has not."""
    if name.startswith("_"):  # copying and pickling ask for such
        return AttributeError(f"'Federation' object has no attribute {name!r}")
    if name in CALLED_HERE:
        return NoSuchAttribute(f"`trainer.{name}`: a federation has none; here it is {CALLED_HERE[name]}.")
    public = ", ".join(sorted(other for other in known if not other.startswith("_")))
    return NoSuchAttribute(f"`trainer.{name}`: a federation has none; there are {public}.")
