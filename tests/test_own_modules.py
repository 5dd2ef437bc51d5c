"""The user's own modules are found by their names and their texts, and are not run for it."""

from importlib import import_module
from pathlib import Path

import pytest

from fedlit.own_modules import own_modules


@pytest.fixture(autouse=True)
def stand(tmp_path, monkeypatch):
    """In a folder with a module, a package, and a folder that is none."""
    written = {
        "found_alone.py": "import torch\nimport found_package.layers\n\nraise SystemExit('it was run')\n",
        "found_package/__init__.py": "raise SystemExit('it was run')\n",
        "found_package/layers.py": "from .deep.widths import WIDTH\n",
        "found_package/deep/__init__.py": "",
        "found_package/deep/widths.py": "from .. import nets\n",
        "found_package/nets.py": "import json\n",
        "found_package/unused.py": "",
        "found_folder/inner/nets.py": "",
    }
    for name, text in written.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "found_alone.Net",
            "found_alone found_package found_package.layers found_package.deep found_package.deep.widths "
            "found_package.nets",
        ),
        ("found_package.nets.Net", "found_package found_package.nets"),
        ("found_package.nets.Net.build", "found_package found_package.nets"),
        ("found_folder.inner.nets.Net", "found_folder.inner.nets"),
        ("found_alone", ""),  # a word, such as `mean`
        ("found_folder/inner.nets", ""),
        ("torch.optim.SGD", ""),
        ("json.decoder.JSONDecoder", ""),
        ("fedlit.networks.MLP", ""),
        ("found_package." + "x" * 5000 + ".Net", "found_package"),
    ],
)
def test_modules_are_found_with_the_packages_around_them(text, names):
    assert set(own_modules({"model": [{"class_path": text}]})) == set(names.split())


def test_a_module_that_is_found_is_not_run():
    assert own_modules(["found_alone.Net"])["found_alone"] == Path("found_alone.py").resolve()
    with pytest.raises(SystemExit, match="it was run"):
        import_module("found_alone")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_what_was_installed_is_nobodys_own_wherever_that_is(folder, monkeypatch):
    place = Path(folder).resolve()
    place.mkdir()
    (place / "found_installed.py").write_text("")
    monkeypatch.syspath_prepend(str(place))
    assert own_modules(["found_installed.Net"]) == {}
