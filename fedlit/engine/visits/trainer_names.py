"""What has another name in a federation: of Lightning's Trainer, for callbacks, and options of other libraries."""

from collections.abc import Iterable
from difflib import get_close_matches

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

ROUNDS, EPOCHS, STEPS = "trainer.num_rounds", "trainer.local_epochs", "trainer.local_steps"
RATE = "model.optimizer.lr"
SYNONYMS: dict[str, tuple[str, ...]] = {  # options of Lightning, Flower, PFLlib and others, as they are typed here
    **dict.fromkeys(("epochs", "max_epochs", "num_epochs", "n_epochs"), (ROUNDS, EPOCHS)),
    **dict.fromkeys(("rounds", "n_rounds", "max_rounds", "global_rounds", "num_server_rounds"), (ROUNDS,)),
    **dict.fromkeys(("comm_round", "comm_rounds", "communication_rounds"), (ROUNDS,)),
    **dict.fromkeys(("local_epoch", "local_ep", "client_epoch"), (EPOCHS,)),
    "max_steps": (ROUNDS, STEPS),
    **dict.fromkeys(("local_iterations", "local_updates"), (STEPS,)),
    **dict.fromkeys(("clients_per_round", "join_ratio", "fraction_train"), ("trainer.fraction_fit",)),
    **dict.fromkeys(("client_fraction", "sample_fraction", "participation_rate", "frac"), ("trainer.fraction_fit",)),
    **dict.fromkeys(("min_fit_clients", "min_train_nodes", "min_available_clients"), ("trainer.min_clients",)),
    **dict.fromkeys(("eval_gap", "eval_every", "check_val_every_n_epoch"), ("trainer.eval_every_n_rounds",)),
    **dict.fromkeys(("save_gap", "save_every"), ("trainer.save_every_n_rounds",)),
    **dict.fromkeys(("lr", "learning_rate", "local_learning_rate", "local_lr", "client_lr"), (RATE,)),
    **dict.fromkeys(("server_lr", "server_learning_rate"), ("trainer.server_optimizer",)),
    "momentum": ("model.optimizer.momentum",),
    "weight_decay": ("model.optimizer.weight_decay",),
    **dict.fromkeys(("batch_size", "local_batch_size", "local_bs"), ("data.batch_size",)),
    **dict.fromkeys(("num_clients", "n_clients", "num_users", "num_supernodes"), ("data.num_clients",)),
    **dict.fromkeys(("dirichlet_alpha", "dir_alpha"), ("data.partition.alpha",)),
    "partitioner": ("data.partition",),
    **dict.fromkeys(("algorithm", "algo"), ("model",)),
    **dict.fromkeys(("gpus", "num_gpus", "device"), ("trainer.accelerator", "trainer.devices")),
    "num_processes": ("trainer.devices",),
    **dict.fromkeys(("output_dir", "save_dir", "log_dir"), ("trainer.default_root_dir",)),
    **dict.fromkeys(("resume", "resume_from_checkpoint"), ("ckpt_path",)),
}


def no_such_attribute(name: str, known: Iterable[str]) -> AttributeError:
    """What to raise where a federation is asked for what it has not."""
    if name.startswith("_"):  # copying and pickling ask for such
        return AttributeError(f"'Federation' object has no attribute {name!r}")
    if name in CALLED_HERE:
        return NoSuchAttribute(f"`trainer.{name}`: a federation has none; here it is {CALLED_HERE[name]}.")
    public = ", ".join(sorted(other for other in known if not other.startswith("_")))
    return NoSuchAttribute(f"`trainer.{name}`: a federation has none; there are {public}.")


def no_such_option(name: str, options: Iterable[str]) -> TypeError:
    """What to raise where a federation is given an option that it has not, from Python."""
    meant = [option.removeprefix("trainer.") for option in SYNONYMS.get(name, ())]
    meant = meant or get_close_matches(name, list(options), n=1)
    hint = f" Did you mean `{'` or `'.join(meant)}`?" if meant else ""
    return TypeError(f"`{name}` is not an option of Federation.{hint}")
