"""Callbacks: which are called and when, which are refused, and what a checkpoint remembers of them."""

from functools import partialmethod

import pytest
from lightning.pytorch import Callback, callbacks
from toys import SGD, fitted, linear, toy_data

from fedlit import FedAvg, Federation
from fedlit.callbacks import FederationCallback

UNHEARD = sorted(
    name
    for name in vars(Callback)
    if name.startswith("on_") and ("batch" in name or "epoch" in name or "validation" in name or "backward" in name)
)


class Noting(FederationCallback):
    """Notes each hook, and the stage, round or error that it is given."""

    def __init__(self):
        self.calls = []

    def note(self, hook, *args):
        self.calls.append(" ".join([hook, *(str(arg) for arg in args if isinstance(arg, str | int | Exception))]))


for name in ("setup", "teardown", "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_exception"):
    setattr(Noting, name, partialmethod(Noting.note, name))
Noting.on_round_start = partialmethod(Noting.note, "round")


class Counter(FederationCallback):
    def __init__(self):
        self.rounds = 0

    def on_round_end(self, federation, module, round, rows):
        self.rounds += 1

    def state_dict(self):
        return {"rounds": self.rounds}

    def load_state_dict(self, state_dict):
        self.rounds = state_dict["rounds"]


def test_a_fit_is_called_back_from_set_up_to_tear_down():
    noting = Noting()
    fitted(FedAvg(linear, SGD), num_rounds=2, callbacks=noting)
    rounds = ["on_fit_start", "on_train_start", "round 1", "round 2", "on_train_end", "on_fit_end"]
    assert noting.calls == ["setup fit", *rounds, "teardown fit"]


def test_the_stage_is_the_command():
    for command in ("validate", "test", "predict", "adapt"):
        noting = Noting()
        federation = Federation(callbacks=noting, enable_progress_bar=False, accelerator="cpu")
        getattr(federation, command)(FedAvg(linear, SGD), toy_data(num_clients=4, unseen_clients=1))
        assert noting.calls == [f"setup {command}", f"teardown {command}"]


def test_an_error_in_a_fit_is_passed_on_in_place_of_its_end():
    class Broken(FederationCallback):
        def on_round_start(self, federation, module, round, clients):
            raise RuntimeError("broken")

    noting = Noting()
    with pytest.raises(RuntimeError, match="broken"):
        fitted(FedAvg(linear, SGD), callbacks=[noting, Broken()])
    assert noting.calls == ["setup fit", "on_fit_start", "on_train_start", "round 1", "on_exception broken"]


def test_a_callback_remembers_over_a_resumed_run():
    fitted(FedAvg(linear, SGD), num_rounds=2, callbacks=Counter())
    resumed = Counter()
    fitted(FedAvg(linear, SGD), num_rounds=3, ckpt_path="last", callbacks=resumed)
    assert resumed.rounds == 3


def test_a_lambda_callback_and_a_model_summary_run(caplog):
    calls = []
    callback = callbacks.LambdaCallback(on_train_start=lambda *args: calls.append("start"))
    with caplog.at_level("INFO", logger="lightning.pytorch.callbacks.model_summary"):
        fitted(FedAvg(linear, SGD), num_rounds=1, callbacks=[callback, callbacks.ModelSummary()])
    assert calls == ["start"]
    assert "195" in caplog.text  # weights of a linear network, 64 x 3 and 3


@pytest.mark.parametrize(
    ("callback", "instead"),
    [
        (callbacks.ModelCheckpoint, "`trainer.save_every_n_rounds`"),
        (lambda: callbacks.OnExceptionCheckpoint("."), "last.ckpt"),
        (lambda: callbacks.EarlyStopping("loss"), "fedlit.callbacks.Patience or StopAt"),
        (callbacks.TQDMProgressBar, "`trainer.enable_progress_bar`"),
        (callbacks.LearningRateFinder, "`model.optimizer.lr`"),
        (callbacks.Timer, "`trainer.max_time`"),
    ],
)
def test_what_needs_the_trainers_loops_is_refused_with_what_to_use_instead(callback, instead):
    made = callback()
    with pytest.raises(ValueError, match=f"^`trainer.callbacks`: {type(made).__name__} needs .*{instead}"):
        Federation(callbacks=made, accelerator="cpu")


@pytest.mark.parametrize("base", [Callback, FederationCallback])
def test_a_callback_with_a_hook_that_is_never_called_is_refused(base):
    for hook in UNHEARD:
        deaf = type("Deaf", (base,), {hook: lambda self, *args: None})
        with pytest.raises(ValueError, match=f"^`trainer.callbacks`: Deaf waits for `{hook}`"):
            Federation(callbacks=[deaf()], accelerator="cpu")


def test_what_is_no_callback_of_this_lightning_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"Noting is a class; give a callback, such as Noting\(\)"):
        Federation(callbacks=[Noting], accelerator="cpu")
    base = type("Callback", (), {"__module__": "pytorch_lightning.callbacks.callback"})
    with pytest.raises(ValueError, match=r"Mine is of the package pytorch_lightning, .*import from lightning.pytorch"):
        Federation(callbacks=type("Mine", (base,), {})(), accelerator="cpu")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("max_epochs", "here it is `num_rounds` and `local_epochs`, options"),
        ("callback_metrics", "here it is `state.scores.last`"),
        ("fit_loop", "there are .*fabric, .*should_stop, .*state"),
    ],
)
def test_a_callback_that_asks_for_what_only_the_trainer_has_is_refused_with_what_there_is(name, instead):
    class Asks(FederationCallback):
        def on_train_start(self, trainer, pl_module):
            getattr(trainer, name)

    with pytest.raises(ValueError, match=f"^`trainer.{name}`: a federation has none; {instead}"):
        fitted(FedAvg(linear, SGD), callbacks=[Asks()])
    assert getattr(Federation(accelerator="cpu"), name, None) is None
