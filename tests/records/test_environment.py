import json
import platform
from pathlib import Path

import torch
from toys import SGD, SmallCNN, fitted

import fedlit
from fedlit import FedAvg
from fedlit.records.environment import environment, processor


def test_a_run_says_what_it_was_made_with_and_how_many_rounds_it_has():
    federation = fitted(FedAvg(SmallCNN, SGD), num_rounds=2)
    first = Path(federation.log_dir, "events.jsonl").read_text().splitlines()[0]
    event = json.loads(first)
    assert event["rounds"] == 2
    assert event["torch"] == torch.__version__.partition("+")[0] or event["torch"] == torch.__version__
    assert event["python"] == platform.python_version()
    assert event["threads"] == 1
    assert event["cpu"]


def test_the_version_is_that_of_the_package():
    assert environment()["fedlit"] in (fedlit.__version__, "unknown")


def test_a_processor_has_the_name_that_linux_gives_it(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nmodel name\t: another\n")
    assert processor(path) == "Some CPU @ 2.00GHz"


def test_a_processor_without_a_name_has_its_kind(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert processor(path) == (platform.processor() or platform.machine())
    assert processor(tmp_path / "none") == processor(path)
