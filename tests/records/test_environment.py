import json
import platform
from pathlib import Path

import torch
from toys import SGD, SmallCNN, fitted

from fedlit import FedAvg


def test_a_run_says_what_it_was_made_with_and_how_many_rounds_it_has():
    federation = fitted(FedAvg(SmallCNN, SGD), num_rounds=2)
    first = Path(federation.log_dir, "events.jsonl").read_text().splitlines()[0]
    event = json.loads(first)
    assert event["rounds"] == 2
    assert event["torch"] == torch.__version__.partition("+")[0] or event["torch"] == torch.__version__
    assert event["python"] == platform.python_version()
    assert event["threads"] == 1
    assert event["cpu"]
