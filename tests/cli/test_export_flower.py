"""`fedlit export-flower`: what it writes is an app that Flower takes."""

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedlit.cli.command import main

OWN = {
    "exported_methods.py": "from exported_parts.layers import WIDTH\n\nclass Own:\n    width = WIDTH\n",
    "exported_parts/__init__.py": "from . import widths\n",
    "exported_parts/layers.py": "from exported_parts.widths import WIDTH\n",
    "exported_parts/widths.py": "import exported_last\n\nWIDTH = exported_last.WIDTH\n",
    "exported_last.py": "WIDTH = 3\n",
    "exported_by_nobody.py": "",
}


def call(monkeypatch, *args):
    monkeypatch.setattr("sys.argv", ["fedlit", "export-flower", *args])
    monkeypatch.setattr("sys.path", [*sys.path])
    main()


def write(files):
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)


def imported_in(folder, line):
    """Whether a line of Python runs where an app's folder is the only one with modules of a user's."""
    script = f"import sys; sys.path.insert(0, {str(Path(folder).resolve())!r}); {line}"
    return subprocess.run([sys.executable, "-I", "-c", script], capture_output=True).returncode == 0


def test_an_app_is_a_project_a_stub_a_recipe_and_what_the_recipe_names(tmp_path, monkeypatch, capsys):
    Path("exported_alone.py").write_text("class Own:\n    pass\n")
    Path("own.yaml").write_text("model:\n  class_path: exported_alone.Own\n  init_args: {optimizer: torch.optim.SGD}\n")
    call(monkeypatch, "own.yaml", "my-app")
    assert "my-app: exported_alone.py, fedlit_app.py, pyproject.toml, recipe.yaml" in capsys.readouterr().out
    project = tomllib.loads(Path("my-app/pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    assert project["tool"]["flwr"]["app"]["components"]["clientapp"] == "fedlit_app:client"
    assert Path("my-app/recipe.yaml").read_text() == Path("own.yaml").read_text()
    if find_spec("flwr") is not None:
        from flwr.cli.build import build_fab_from_disk

        assert build_fab_from_disk(Path("my-app"))


def test_what_the_users_modules_import_of_theirs_goes_with_them_and_nothing_else(monkeypatch, capsys):
    write({**OWN, "own.yaml": "model:\n  class_path: exported_methods.Own\n"})
    call(monkeypatch, "own.yaml", "my-app")
    assert capsys.readouterr().err == ""
    carried = {path.relative_to("my-app").as_posix() for path in Path("my-app").rglob("*.py")}
    assert carried == {*OWN, "fedlit_app.py"} - {"exported_by_nobody.py"}
    line = "from exported_methods import Own; assert Own.width == 3"
    assert imported_in("my-app", line)
    Path("my-app/exported_last.py").unlink()
    assert not imported_in("my-app", line)


def test_a_module_that_is_nowhere_is_reported(monkeypatch, capsys):
    write({"own.yaml": "model:\n  class_path: exported_nowhere.Own\n"})
    call(monkeypatch, "own.yaml", "my-app")
    assert (
        capsys.readouterr().err == "fedlit: exported_nowhere is neither here nor installed; every host must have it.\n"
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "exported_badly",
            "class Own(:\n",
            "exported_badly.py would go with the app, but is no Python: invalid syntax",
        ),
        ("exported_badly", "\0", "exported_badly.py would go with the app, but is no Python: "),
        ("fedlit_app", "class Own:\n    pass\n", "the app has a fedlit_app.py of its own; give yours another name."),
    ],
)
def test_modules_that_no_host_could_import_are_refused_in_a_line(name, text, message, monkeypatch, capsys):
    write({f"{name}.py": text, "own.yaml": f"model:\n  class_path: {name}.Own\n"})
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, "own.yaml", "my-app")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not Path("my-app").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none.yaml", "my-app"], "none.yaml"),
        (["fml_fashion.yaml", "My App"], "names the app, in lower-case letters"),
        (["fml_fashion.yaml", "taken"], "exists; give a new one"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(args, message, monkeypatch, capsys):
    Path("taken").mkdir()
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, *args)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
