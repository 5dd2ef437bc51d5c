"""Nobody has to read what a command says: `| head -1`, a closed stdout or stderr and a full disk behind them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy_recipe import write_recipe

FEDLIT = f"{Path(sys.executable).with_name('fedlit')}"
ROWS = 35  # of metrics.csv after two rounds of three clients, with its header


def shell(line: str) -> tuple[int, str]:
    """Exit code of the command before the pipe, and what was said beside."""
    script = f"set -o pipefail; {{ {line}; }} 2>&3"
    with open("said.txt", "w+") as said:
        passed = {"pass_fds": (said.fileno(),), "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
        script = script.replace("2>&3", f"2>&{said.fileno()}")
        code = subprocess.run(["bash", "-c", script], stdout=subprocess.DEVNULL, **passed).returncode
        said.seek(0)
        return code, said.read()


@pytest.mark.parametrize("end", ["| true", "| head -1", ">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_list_that_nobody_reads_to_its_end_is_no_error(end):
    assert shell(f"{FEDLIT} recipes {end}") == (0, "")


def test_a_list_that_could_not_be_written_is_an_error():
    code, said = shell(f"{FEDLIT} recipes > /dev/full")
    assert (code, said) == (2, "fedlit: error: standard output is incomplete: No space left on device.\n")


def test_a_refusal_keeps_its_code_where_nobody_hears_it():
    assert shell(f"{FEDLIT} fti 2>&-") == (2, "")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["| head -1", ">&-", "2>&-", ">&- 2>&- <&-", "> /dev/full", "2>&1 | true"])
def test_a_run_goes_on_to_its_end_where_nobody_listens(end):
    write_recipe("run.yaml", ("enable_progress_bar: false, ", ""))
    assert shell(f"{FEDLIT} fit --config run.yaml {end}") == (0, "")
    rows = Path("lightning_logs/version_0/metrics.csv").read_text().splitlines()
    assert len(rows) == ROWS
    assert Path("lightning_logs/version_0/checkpoints/last.ckpt").is_file()
    files = [path for path in Path("lightning_logs").rglob("*") if path.is_file() and path.suffix in (".csv", ".jsonl")]
    assert not any("round 1/2" in path.read_text() for path in files)  # no record took the place of standard output


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_for_a_person_is_written_at_once_also_to_a_file(unbuffered, tmp_path):
    says = "import os, sys; from fedlit.cli.command import keep_streams; keep_streams()"
    says += "; print('left out', file=sys.stderr); os._exit(0)"  # without a last flush
    errors = tmp_path / "stderr.txt"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with errors.open("w") as file:
        subprocess.run([sys.executable, "-c", says], stderr=file, env=environment, check=True)
    assert errors.read_text() == "left out\n"
