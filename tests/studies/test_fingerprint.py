"""A run is not taken for another whose code or data were different."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from fedlit.own_modules import own_files
from fedlit.studies.runs import plan_runs
from fedlit.studies.study import build_study

NETS = "from layers_of_mine import WIDTH\n\nclass Net:\n    width = WIDTH\n"


@pytest.fixture(autouse=True)
def stand(tmp_path, monkeypatch):
    """In a folder with modules of one's own, as `fedlit compare` imports them, and a data set."""
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("nets_of_mine.py").write_text(NETS)
    Path("layers_of_mine.py").write_text("import json\nimport torch\n\nWIDTH = 3\n\ndef wide():\n    return WIDTH\n")
    Path("others_of_mine.py").write_text("DEPTH = 1\n")
    Path("data").mkdir()
    np.savez("data/signals.npz", x=np.arange(3))
    for name in ("nets_of_mine", "layers_of_mine", "others_of_mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module(name)


def config(**data) -> dict:
    network = {"class_path": "nets_of_mine.Net", "init_args": {"hidden": [8]}}
    return {
        "model": {"class_path": "fedlit.methods.FedAvg", "init_args": {"network": network}},
        "data": {"class_path": "fedlit.data.FederatedData", "init_args": {"root": "data", **data}},
        "trainer": {},
    }


def run_of(output: Path, **data):
    study = build_study({"recipe": "r", "rows": {"a": {}}, "seeds": 1})
    ((run,),) = plan_runs(study, output, lambda cell: config(**data)).values()
    return run


def change_code(name: str, old: str, new: str) -> None:
    path = Path(f"{name}.py")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_own_code_and_data_are_found_and_nobody_elses():
    assert set(own_files(config(dataset="signals.npz"))) == {"nets_of_mine", "layers_of_mine", "signals.npz"}
    assert set(own_files(config(dataset="signals"))) == {"nets_of_mine", "layers_of_mine", "signals"}
    assert set(own_files(config(dataset="fashion_sample"))) == {"nets_of_mine", "layers_of_mine"}
    assert set(own_files({"model": {"class_path": "torch.nn.Linear"}, "data": {}})) == set()


def test_a_run_of_other_code_is_refused_and_a_comment_is_no_other_code(tmp_path):
    run_of(tmp_path).write_config()
    change_code("nets_of_mine", "class Net:", "# why not\nclass Net:")
    run_of(tmp_path).check_config()
    change_code("others_of_mine", "1", "2")
    run_of(tmp_path).check_config()  # nobody uses it
    change_code("nets_of_mine", "width = WIDTH", "width = 2 * WIDTH")
    with pytest.raises(ValueError, match=r"a/seed_1 was run with another nets_of_mine: it has changed since; give"):
        run_of(tmp_path).check_config()


def test_a_run_of_other_data_is_refused(tmp_path):
    run_of(tmp_path, dataset="signals.npz").write_config()
    run_of(tmp_path, dataset="signals.npz").check_config()
    np.savez("data/signals.npz", x=np.arange(4))
    with pytest.raises(ValueError, match=r"was run with another signals\.npz"):
        run_of(tmp_path, dataset="signals.npz").check_config()


def test_what_changes_while_a_study_runs_is_not_begun_with(tmp_path):
    run = run_of(tmp_path)
    change_code("nets_of_mine", "width = WIDTH", "width = 5")
    with pytest.raises(ValueError, match="nets_of_mine has changed since the study was read"):
        run.write_config()
