"""Whatever is typed or lies in a file: it works, or it is refused in one line that names it; never a traceback.

The whole: `python tests/promises/mutated_inputs.py [NUMBER [SEED]]`, which prints a figure.
"""

import pytest
from forked_command import Case, End, run
from junk_files import FILE_CASES, FIT, LONG_RUN
from mutated_inputs import drawn_cases, failures, targets, typed, write_recipes
from odd_tables import table_cases

DRAWN = 364
WELL_CHOSEN = [  # a name in the refusal, or nothing: then it works
    (Case((*FIT, "--data.std=[]"), ("`data.std`",)), 2),
    (Case((*FIT, "--data.val_size=.inf"), ("`data.val_size` must be a finite number, got inf",)), 2),
    (Case((*FIT, "--data.mean=.nan"), ("`data.mean` must be a finite number, got nan",)), 2),
    (Case((*FIT, f"--data.batch_size={10**23}"), ("`data.batch_size` must be at most 1000000000",)), 2),
    (Case((*FIT, "--data.dataset=mnist", "--data.root=old"), ("old/mnist.npz",)), 2),
    (Case((*FIT, "--data.root=\udcff"), ("`--data.root`", "not UTF-8")), 2),
    (Case((*FIT, "--model.optimizer.lr=.nan"), ("`model.optimizer.lr` must be a finite number, got nan",)), 2),
    (Case((*FIT, "--model.optimizer.lr=1e30"), ("`model.optimizer.lr` must be at most 1e+10, got 1e+30",)), 2),
    (Case((*FIT, "--model.optimizer.momentum=.inf"), ("`model.optimizer.momentum` must be a finite number",)), 2),
    (Case((*FIT, "--model.optimizer=SparseAdam"), ("SparseAdam takes sparse gradients",)), 2),
    (Case((*FIT, "--model.optimizer=LBFGS")), 0),
    (Case((*FIT, "--model=fedlit.methods.dlad.Student"), ("Student is a part of DLAD",)), 2),
    (Case(("fit", "--config", "FedProx.yaml", "--model.mu=1e300"), ("`model.mu` must be at most 1e+10",)), 2),
    (Case((*FIT, "--trainer.num_threads=100000"), ("`trainer.num_threads` must be at most 1024, got 100000",)), 2),
    (Case((*FIT, "--config", "loop.yaml"), ("an alias of what it is part of",)), 2),
    (Case((*FIT, "--config", "laughs.yaml"), ("more than 100000 entries",)), 2),
    (Case((*FIT, "--config", "long_class.yaml"), ("a word of 200000 characters",)), 2),
    (Case((*FIT, "--data.dataset=pickled.npz"), ("pickled.npz must be an .npz file of plain arrays",)), 2),
    (Case((*FIT, "--data.dataset=lying_header.npz"), ("lying_header.npz",)), 2),
    (Case((*FIT,), ("FEDLIT_FIT__CONFIG",), {"FEDLIT_FIT__CONFIG": "fifo"}), 2),
]
AGAIN = [  # of a kind that another shows; tried by the slow tests
    "--data.val_size=.inf",
    "--model.optimizer.lr=.nan",
    "--model.optimizer.momentum=.inf",
    "--model.mu=1e300",
    "--trainer.num_threads=100000",
    "laughs.yaml",
    "--data.dataset=pickled.npz",
]


def well_chosen() -> list:
    found = []
    for case, code in WELL_CHOSEN:
        marks = [pytest.mark.slow] if case.args[-1] in AGAIN else []
        found.append(pytest.param(case, code, id=str(case), marks=marks))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recipes of all families, and junk."""
    place = tmp_path_factory.mktemp("mutated")
    write_recipes(place)
    return place


@pytest.mark.parametrize(("case", "code"), well_chosen())
def test_what_cannot_be_right_is_refused_in_one_line_and_what_can_works(case, code, folder):
    end = run(case, folder)
    assert end.faults(case) == [], end.err
    assert end.code == code


@pytest.mark.slow
def test_a_hundred_million_rounds_begin_at_once(folder):
    end = run(LONG_RUN, folder)
    assert end.faults(LONG_RUN) == [], end.err
    assert end.code is None  # it goes on until it is ended


@pytest.mark.parametrize(
    ("end", "fault"),
    [
        (End(1, "", "Traceback (most recent call last):\n", 0.1, frozenset()), "traceback"),
        (End(-11, "", "", 0.1, frozenset()), "ended with -11"),
        (End(None, "", "", 30.0, frozenset()), "took more than"),
        (End(2, "", "fedlit: error: wrong.\n", 0.1, frozenset()), "does not name data.std"),
        (End(2, "", "fedlit: error: `data.std`\nis wrong.\n", 0.1, frozenset()), "2 lines"),
        (End(2, "", f"fedlit: error: `data.std` {'x' * 2000}\n", 0.1, frozenset()), "characters"),
        (End(2, "", "fedlit: error: `data.std`\n", 0.1, frozenset({"pwned"})), "wrote pwned"),
    ],
)
def test_each_fault_would_be_noticed(end, fault):
    assert any(fault in found for found in end.faults(Case((), ("data.std",))))


def test_every_option_of_every_family_is_among_the_targets():
    options = {option for _, option, _ in targets()}
    assert {"data.std", "trainer.num_rounds", "model.mu", "model.lam", "model.temperature"} <= options
    assert {"data.partition.alpha", "data.augmentation.padding", "model.optimizer.lr"} <= options
    assert len(options) > 140


def test_a_typed_case_is_what_a_user_would_type():
    assert typed("FedAvg", "data.std", None, ".nan").args[-1] == "--data.std=.nan"


@pytest.mark.slow
def test_hundreds_of_mutated_options_and_files_are_refused_in_one_line_or_work(folder, capsys):
    cases = [*FILE_CASES, *table_cases(), *drawn_cases(DRAWN, 0, folder)]
    with capsys.disabled():
        found = failures(cases, folder)
    assert len(cases) >= 500
    assert found == []
