"""What holds for every test of the command line."""

import sys

import pytest


@pytest.fixture(autouse=True)
def _command_line(_own_folder, monkeypatch):
    """As the script is called, and the interpreter's own paths back afterwards."""
    monkeypatch.setattr(sys, "argv", ["fedlit"])
    monkeypatch.setattr(sys, "path", [*sys.path])
