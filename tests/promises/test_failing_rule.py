"""A rule that raises in the middle of a run, by the command: one line, exit code 3, and what is whole is saved."""

import json
from pathlib import Path

from forked_command import run
from toy_recipe import write_recipe

from fedlit.records.checkpoint import load

RULE = """
from fedlit.aggregation import weighted_mean

asked = []

def moody(uploads, current):
    asked.append(1)
    if len(asked) > 1:
        raise KeyError("no such rule")
    return weighted_mean(uploads)
"""


def test_a_rule_that_raises_ends_the_command_in_one_line_with_exit_code_3_and_a_saved_round(tmp_path):
    write_recipe()
    Path("own_rule.py").write_text(RULE)
    args = ("fit", "--config", "run.yaml", "--trainer.aggregator", "own_rule.moody")
    end = run(tmp_path, *args, "--trainer.num_rounds", "3", "--trainer.save_every_n_rounds", "10")
    assert end.code == 3, end.err
    assert end.err.count("\n") == 1
    assert end.err.startswith("fedlit: ")
    assert "moody" in end.err
    assert "no such rule" in end.err
    [checkpoint] = tmp_path.rglob("last.ckpt")
    assert load(checkpoint)["round"] == 1
    [record] = tmp_path.rglob("events.jsonl")
    events = [json.loads(line) for line in record.read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "gave_up"] == [2]
