"""`fedlit export-flower`: what it writes is an app that Flower takes."""

import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedlit.cli.command import main
from fedlit.cli.export_flower import own_modules


def call(monkeypatch, *args):
    monkeypatch.setattr("sys.argv", ["fedlit", "export-flower", *args])
    main()


def test_an_app_is_a_project_a_stub_a_recipe_and_what_the_recipe_names(tmp_path, monkeypatch, capsys):
    Path("my_methods.py").write_text("class Own:\n    pass\n")
    Path("own.yaml").write_text("model:\n  class_path: my_methods.Own\n  init_args: {optimizer: torch.optim.SGD}\n")
    call(monkeypatch, "own.yaml", "my-app")
    assert "my-app: fedlit_app.py, my_methods.py, pyproject.toml, recipe.yaml" in capsys.readouterr().out
    project = tomllib.loads(Path("my-app/pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    assert project["tool"]["flwr"]["app"]["components"]["clientapp"] == "fedlit_app:client"
    assert Path("my-app/recipe.yaml").read_text() == Path("own.yaml").read_text()
    assert own_modules(Path("own.yaml")) == [Path("my_methods.py")]
    if find_spec("flwr") is not None:
        from flwr.cli.build import build_fab_from_disk

        assert build_fab_from_disk(Path("my-app"))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["none.yaml", "my-app"], "none.yaml"),
        (["fml_fashion.yaml", "My App"], "names the app, in lower-case letters"),
        (["fml_fashion.yaml", "taken"], "exists; give a new one"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(args, told, monkeypatch, capsys):
    Path("taken").mkdir()
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, *args)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
