"""Every tutorial runs as printed, from its first block to its last."""

import sys
from pathlib import Path

import pytest
from printed import ROOT, follow

FOLDER = "docs/tutorials"
SLOW = {"compare", "cluster", "elsewhere"}  # they start processes, or trace a network
PAGES = sorted(path.stem for path in (ROOT / FOLDER).glob("*.md") if path.stem != "index")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in PAGES])
def test_a_tutorial_runs_as_printed(name, monkeypatch):
    monkeypatch.setenv("FEDLIT_FIT__TRAINER__REPORT", "false")  # pictures and pages have tests of their own
    for own in ("cautious", "test_cautious", "my_networks", "serve"):
        monkeypatch.delitem(sys.modules, own, raising=False)
    assert len(follow(f"{FOLDER}/{name}.md", monkeypatch, apart=name in SLOW)) >= 3


def test_there_is_one_for_every_step_of_the_way():
    contents = Path(ROOT / FOLDER / "index.md").read_text().split("\n\n")[-1].split("\n")
    assert sorted(line for line in contents if line and line != "```") == PAGES
    assert len(PAGES) == 8
