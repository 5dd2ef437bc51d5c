"""Hints for options of other libraries and attributes of Lightning's Trainer that a federation does not have."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import ParamSpec

from fedlit.engine.plan import NoSuchAttribute

Given = ParamSpec("Given")
IN_TRAINING = "`self.trainer` of a method has it, in local training"
CALLED_HERE = {
    "callback_metrics": "`state.scores.last`",
    "checkpoint_callback": "`save_every_n_rounds`, an option",
    "current_epoch": "`state.round`",
    "datamodule": "`state.data`",
    "early_stopping_callback": "fedlit.callbacks.StopAt",
    "estimated_stepping_batches": IN_TRAINING,
    "global_rank": "`fabric.global_rank`",
    "global_step": "`state.round`",
    "lightning_module": "`state.module`",
    "local_rank": "`fabric.local_rank`",
    "logged_metrics": "`state.scores.last`",
    "loggers": "`logger`, an option",
    "max_epochs": "`num_rounds` and `local_epochs`, options",
    "max_steps": "`num_rounds` and `local_steps`, options",
    "model": "`state.module`",
    "num_training_batches": IN_TRAINING,
    "optimizers": IN_TRAINING,
    "progress_bar_callback": "`enable_progress_bar`, an option",
    "save_checkpoint": "`save_every_n_rounds`, an option",
    "train_dataloader": "`state.data`",
    "world_size": "`fabric.world_size`",
}

ROUNDS, EPOCHS, RATE = "trainer.num_rounds", "trainer.local_epochs", "model.optimizer.lr"
SYNONYMS: dict[str, tuple[str, ...]] = {  # options of Lightning, Flower, PFLlib and others, as they are typed here
    word: meant
    for meant, words in {
        (ROUNDS, EPOCHS): "epochs max_epochs num_epochs n_epochs",
        (ROUNDS,): "rounds n_rounds max_rounds global_rounds num_server_rounds comm_round comm_rounds "
        "communication_rounds",
        (EPOCHS,): "local_epoch local_ep client_epoch",
        (ROUNDS, "trainer.local_steps"): "max_steps",
        ("trainer.local_steps",): "local_iterations local_updates",
        ("trainer.fraction_fit",): "clients_per_round join_ratio fraction_train client_fraction sample_fraction "
        "participation_rate frac",
        ("trainer.min_clients",): "min_fit_clients min_train_nodes min_available_clients",
        ("trainer.eval_every_n_rounds",): "eval_gap eval_every check_val_every_n_epoch",
        ("trainer.save_every_n_rounds",): "save_gap save_every",
        ("trainer.server_optimizer",): "server_lr server_learning_rate",
        ("trainer.accelerator", "trainer.devices"): "gpus num_gpus device",
        ("trainer.devices",): "num_processes",
        ("trainer.default_root_dir",): "output_dir save_dir log_dir",
        (RATE,): "lr learning_rate local_learning_rate local_lr client_lr",
        ("model.optimizer.momentum",): "momentum",
        ("model.optimizer.weight_decay",): "weight_decay",
        ("model",): "algorithm algo",
        ("data.batch_size",): "batch_size local_batch_size local_bs",
        ("data.num_clients",): "num_clients n_clients num_users num_supernodes",
        ("data.partition.alpha",): "alpha dirichlet_alpha dir_alpha",
        ("data.partition",): "partitioner",
        ("ckpt_path",): "resume resume_from_checkpoint",
    }.items()
    for word in words.split()
}


def no_such_attribute(name: str, known: Iterable[str]) -> AttributeError:
    """The error for an attribute that a federation does not have."""
    if name.startswith("_"):  # copying and pickling ask for such
        return AttributeError(f"'Federation' object has no attribute {name!r}")
    if name in CALLED_HERE:
        return NoSuchAttribute(f"`trainer.{name}`: a federation has none; here it is {CALLED_HERE[name]}.")
    public = ", ".join(sorted(other for other in known if not other.startswith("_")))
    return NoSuchAttribute(f"`trainer.{name}`: a federation has none; there are {public}.")


def names_options(init: Callable[Given, None]) -> Callable[Given, None]:
    """Have a constructor suggest an option where one is unknown; its signature stays the list of options."""
    known = signature(init).parameters

    @wraps(init)
    def checked(*args: Given.args, **options: Given.kwargs) -> None:
        for name in options:
            if name not in known:
                meant = [option.removeprefix("trainer.") for option in SYNONYMS.get(name, ())]
                meant = meant or get_close_matches(name, list(known), n=1)
                hint = f" Did you mean `{'` or `'.join(meant)}`?" if meant else ""
                raise TypeError(f"`{name}` is not an option of Federation.{hint}")
        init(*args, **options)

    return checked
