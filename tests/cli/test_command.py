"""Subcommands beside those of a federation: each is a module that is imported when it is called."""

import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedlit.cli.command import main
from fedlit.cli.recipes import description

CONFIGS = Path(__file__).parents[2] / "configs"
described = cache(description)  # to read all studies for their titles takes two seconds


@pytest.fixture
def run(monkeypatch, capsys):
    """What `fedlit ...` prints, and with which code it ends."""
    monkeypatch.setattr("fedlit.cli.recipes.description", described)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedlit", *args])
        monkeypatch.setattr(sys, "path", [*sys.path])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_modules_in_the_current_folder_are_found_after_those_installed(run, tmp_path):
    for name in ("colorsys", "a_users_own"):
        Path(f"{name}.py").write_text("")
    run("recipes", "mnist")
    origins = [Path(find_spec(name).origin).parent for name in ("colorsys", "a_users_own")]
    assert origins == [Path(find_spec("gettext").origin).parent, tmp_path]


def test_python_m_fedlit_runs_no_file_of_the_current_folder_by_accident():
    Path("gettext.py").write_text("raise SystemExit('it was run')\n")  # argparse imports it
    done = subprocess.run([sys.executable, "-m", "fedlit", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run([sys.executable, "-c", "import argparse"], capture_output=True, text=True)
    assert "it was run" in done.stderr  # as Python itself would


@pytest.mark.parametrize("args", ["--help", "methods", "recipes", "recipes mnist", "recipes fml_fashion.yaml"])
def test_what_needs_no_torch_does_not_wait_for_it(args):
    script = f"""if True:
        import sys
        from fedlit.cli.command import main
        sys.argv = {["fedlit", *args.split()]}
        main()
        assert not sys.modules.keys() & {{"torch", "lightning", "jsonargparse"}}
    """
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fti"], r"^'fti' is no command. Did you mean fit\?$"),
        (["--config", "run.yaml", "fit"], r"^options come after the command: fedlit fit --config ...$"),
        (["something"], r"^'something' is no command. There are fit, validate, test, predict, adapt, .*recipes"),
        (["recipes", "fml_fashon"], r"^fedlit recipes: none has 'fml_fashon' .* Did you mean fml_fashion.yaml\?$"),
        (["recipes", "a", "b"], r"^fedlit recipes: unrecognized arguments: b.$"),
        (["recipes", "--hepl=3"], r"^`--hepl` is not an option of fedlit recipes. Did you mean help\?$"),
    ],
)
def test_a_slip_is_reported_in_one_line(args, message, run):
    code, out, err = run(*args)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert re.search(message, err.removeprefix("fedlit: error: ").rstrip()), err


def test_recipes_are_listed_with_what_they_say_of_themselves(run):
    _, out, _ = run("recipes")
    described = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines() if ".yaml  " in line)
    assert described.keys() == {path.name for path in CONFIGS.glob("*.yaml")}
    assert described["fml_cifar10.yaml"] == "FML on cifar10."
    assert described["moe_fashion.yaml"].startswith("Mixture of experts on the embedded sample: five clients")


def test_a_word_finds_recipes_by_name_and_description(run):
    names = [line.split()[0] for line in run("recipes", "Pathological")[1].splitlines()]
    assert names == ["fedavg_mnist_shards.yaml"]
    names = [line.split()[0] for line in run("recipes", "papers")[1].splitlines()]
    assert set(names) == {f"papers/{path.name}" for path in (CONFIGS / "papers").glob("*.yaml")}


@pytest.mark.parametrize("name", ["fml_fashion.yaml", "fml_fashion"])
def test_a_recipe_is_printed_as_it_is(name, run):
    assert run("recipes", name)[1] == (CONFIGS / "fml_fashion.yaml").read_text()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (
            "fit --config nothere.yaml",
            "`--config nothere.yaml`: there is no such file here, nor such a recipe; `fedlit",
        ),
        ("validate -c bad.yaml", "`--config bad.yaml` must be YAML, but in line 3"),
        ("partition --trainer.num_rounds 3", "`--trainer.num_rounds` does not affect the partition"),
        ("compare fml_fashion.yaml --seeds 0", "`--seeds` must be at least 1, got 0."),
        ("fit --model.alpha " + "[" * 2000, "`--model.alpha` is nested too deeply."),
        ("train", "'train' is no command."),
    ],
)
def test_what_needs_no_torch_to_be_refused_is_refused_without(typed, words, tmp_path):
    """Its import takes seconds."""
    (tmp_path / "bad.yaml").write_text("model:\n  a: 1\n b: 2\n")
    script = f"""if True:
        import sys
        from fedlit.cli.command import main
        sys.argv = {["fedlit", *typed.split()]}
        try:
            main()
        finally:
            print("torch" in sys.modules)
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == "False\n"
