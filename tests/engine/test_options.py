"""Options live in one place, fixed; and what is said of a stage cannot contradict itself."""

import pytest
from torch.nn.utils import prune
from toys import SGD, fitted, linear, toy_data

from fedlit import FedAvg, Federation, Stage
from fedlit.methods import EarlyStopping


def test_an_option_that_is_set_later_is_refused_by_name():
    federation = Federation(logger=False)
    with pytest.raises(AttributeError, match=r"`seed` is an option and fixed: make another Federation\(seed=99\)"):
        federation.seed = 99
    assert federation.seed == federation.options.seed == 0
    federation.should_stop = True  # what is no option may be set


def test_other_clients_than_those_of_the_fit_are_refused():
    method = FedAvg(linear, SGD)
    federation = fitted(method, toy_data(), num_rounds=1)
    with pytest.raises(ValueError, match=r"`data\.num_clients` is 4, but the federation has been fitted with 3"):
        federation.validate(method, toy_data(num_clients=4))
    assert federation.validate(method, toy_data(batch_size=4))


def test_a_network_that_cannot_be_copied_is_refused():
    method = FedAvg(linear, SGD)
    prune.l1_unstructured(method.network[1], "weight", 0.5)
    with pytest.raises(
        ValueError, match="`model`: FedAvg cannot be copied for clients: Only Tensors created explicitly"
    ):
        fitted(method, num_rounds=1)


DISTIL = Stage("distil", side="server", upload="none", public="inputs")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": "server"}, "a server trains on the public pool and uploads nothing"),
        ({"public": "labels"}, "clients never see the labels of the public pool among their own"),
        ({"samples": "public"}, "`samples: public` needs a `public` of inputs or labels"),
        ({"upload": "none", "followed_by": DISTIL}, "`followed_by` is for clients whose uploads are aggregated"),
        ({"followed_by": Stage("other")}, "`followed_by` must be a stage of the server"),
        ({"upload": "none", "keep_uploads": True}, "`keep_uploads` is for uploads that are aggregated"),
    ],
)
def test_a_stage_that_contradicts_itself_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Stage("stage", **options)


def test_early_stopping_needs_patience():
    with pytest.raises(ValueError, match="`patience` and `check_every` must be at least 1"):
        EarlyStopping(patience=0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("max_epochs", r"^`max_epochs` is not an option of Federation. Did you mean `num_rounds` or `local_epochs`\?$"),
        ("num_round", r"^`num_round` is not an option of Federation. Did you mean `num_rounds`\?$"),
        ("learning_rate", r"Did you mean `model.optimizer.lr`\?$"),
        ("xyz", r"^`xyz` is not an option of Federation.$"),
    ],
)
def test_an_option_of_another_library_is_refused_with_its_name_here(option, message):
    with pytest.raises(TypeError, match=message):
        Federation(**{option: 3})
