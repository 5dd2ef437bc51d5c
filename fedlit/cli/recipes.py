"""Recipes on the command line: looked up in the current folder, then among fedlit's own, and checked at once.

`fedlit recipes` lists them, or prints one.
"""

import difflib
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

import fedlit
from fedlit.cli.refusal import OneLineParser, nearest, refuse
from fedlit.cli.values import PREFIX, check_values, environment_options, typed_values
from fedlit.notices import Notice
from fedlit.records.run_folder import RUNS, last_checkpoint
from fedlit.strict_yaml import read_yaml

CONFIG = ("-c", "--config")
COMMANDS = ("FIT", "VALIDATE", "TEST", "PREDICT", "ADAPT")  # that have options in the environment
CKPT_PATH = ("--ckpt_path",)
EXAMPLES = """\
examples:
  fedlit recipes                                   one line each
  fedlit recipes mnist                             those that have the word in their name or description
  fedlit recipes fml_fashion.yaml > my.yaml        a copy, to change
"""


def with_recipes_found(args: list[str]) -> list[str]:
    """The arguments with every `--config NAME` replaced by its file; `last` and `best` are of the config's own run.

    What the environment says follows the recipes and comes before what is typed: the last one counts.
    """
    check_values(args)
    check_environment()
    found = with_values(with_environment(recipes_first(args)), CONFIG, lambda name: checked_recipe(find_recipe(name)))
    return with_values(found, CKPT_PATH, lambda ckpt_path: of_own_run(ckpt_path, found) or "null")


def note_configs(args: list[str]) -> None:
    """Note the configs that a command other than `fit` has built from; a fit saves its own.

    Args:
        args: Of the command line, with recipes found.
    """
    files = recipe_files(args)
    if files and args[0] != "fit":
        warnings.warn(f"Built from the config {', '.join(files)}.", Notice, stacklevel=2)


def with_environment(args: list[str]) -> list[str]:
    """The arguments, recipes first, with those of the environment: its recipe before others, its options after them."""
    if not args or args[0].startswith("-"):
        return args
    variables = environment_options(args[0])
    recipe = [f"--config={variable.value}" for variable in variables if variable.option == "config"]
    options = [f"--{variable.option}={variable.value}" for variable in variables if variable.option != "config"]
    end = 1
    while end < len(args) and (args[end - 1] in CONFIG or args[end].partition("=")[0] in CONFIG):
        end += 1
    return [args[0], *recipe, *args[1:end], *options, *args[end:]]


def recipes_first(args: list[str]) -> list[str]:
    """The arguments with recipes ahead of all options: what is typed wins, wherever it stands.

    Example:
        >>> recipes_first(["fit", "--a", "1", "-c", "x", "--b=2", "--config=y"])
        ['fit', '-c', 'x', '--config=y', '--a', '1', '--b=2']
    """
    command = [arg for arg in args[:1] if not arg.startswith("-")]
    recipes: list[str] = []
    rest: list[str] = []
    before = ""
    for arg in args[len(command) :]:
        is_of_recipe = before in CONFIG or arg.partition("=")[0] in CONFIG
        (recipes if is_of_recipe else rest).append(arg)
        before = arg
    return [*command, *recipes, *rest]


def of_own_run(ckpt_path: str, args: list[str]) -> str | None:
    """The checkpoint that is meant: where a config is that of a run, `last`, `best` and `auto` are of that run.

    Args:
        ckpt_path: As it was given: typed, in a recipe or by the environment.
        args: Of the command line, with recipes found.
    """
    checkpoints = _checkpoints_of(recipe_files(args))
    names_another = any(option == "trainer.run_name" for option, _ in typed_values(args))
    if checkpoints is None or names_another:
        return ckpt_path
    if ckpt_path in ("last", "best"):
        return str(checkpoints / f"{ckpt_path}.ckpt")
    if ckpt_path == "auto" and args[0] == "fit":
        last = last_checkpoint(checkpoints)
        return None if last is None else str(last)
    return ckpt_path


def _checkpoints_of(files: list[str]) -> Path | None:
    """Of the run whose config is among these, if one is; the last of them counts."""
    for file in reversed(files):
        folder = Path(file).parent
        checkpoints = folder / "checkpoints"
        if checkpoints.is_dir() or folder.resolve().parent.name == RUNS:
            return checkpoints
    return None


def check_environment() -> None:
    """Refuse a variable that looks like an option but is of no command, and a recipe that is no file."""
    for name, value in os.environ.items():
        command, is_option, option = name.removeprefix(PREFIX).partition("__")
        if not name.startswith(PREFIX) or not (is_option or command in ("CONFIG", "SUBCOMMAND")):
            continue
        if command not in COMMANDS:
            example = f"{PREFIX}FIT__{option or command}"
            raise ValueError(f"`{name}` names no command; variables are such as {example}.")
        if option == "CONFIG":
            try:
                checked_recipe(find_recipe(value))
            except ValueError as error:
                raise ValueError(f"`{name}`: {error}") from error


def recipe_files(args: list[str]) -> list[str]:
    """The files given by `--config`, in order."""
    given: list[str] = []

    def note(name: str) -> str:
        given.append(name)
        return name

    with_values(args, CONFIG, note)
    return [name for name in given if _is_file(Path(name))]


def recipe_content(recipe: str) -> Any:
    """What a recipe holds; nothing where it is the recipe that is refused."""
    try:
        return read_yaml(Path(recipe), recipe)
    except (ValueError, OSError):
        return None


def written_options(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every option of a recipe, as it would be typed, without `init_args`, and its value.

    Example:
        >>> dict(written_options({"model": {"class_path": "FML", "init_args": {"alpha": 0.5}}}))["model.alpha"]
        0.5
    """
    if isinstance(content, list):  # of augmentations, of callbacks: a step's option is named without its index
        for entry in content:
            yield from written_options(entry, prefix)
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        path = f"{prefix}.{key}".lstrip(".")
        if key == "init_args":
            path = prefix
        else:
            yield path, value
        yield from written_options(value, path)


def with_values(args: list[str], options: tuple[str, ...], change: Callable[[str], str]) -> list[str]:
    """The arguments with the values of some options changed, whether typed after a space or after `=`.

    Example:
        >>> with_values(["fit", "-c", "a", "--config=b", "c"], CONFIG, str.upper)
        ['fit', '-c', 'A', '--config=B', 'c']
    """
    changed = []
    before = ""
    for arg in args:
        option, equals, value = arg.partition("=")
        if before in options:
            changed.append(change(arg))
        elif option in options and equals:
            changed.append(f"{option}={change(value)}")
        else:
            changed.append(arg)
        before = arg
    return changed


def find_recipe(name: str) -> str:
    """A file in the current folder, or the recipe of that name that comes with fedlit."""
    if _is_file(Path(name)):
        return name
    for folder in _folders():
        if _is_file(folder / name):
            return str(folder / name)
    hint = "`fedlit recipes` lists fedlit's own."
    near = difflib.get_close_matches(name, own_recipes(), n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    raise ValueError(f"`--config {name}`: there is no such file here, nor such a recipe; {hint}")


def _is_file(path: Path) -> bool:
    """Whether it is; what cannot be a name is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long; not Unicode
        return False


def own_recipes() -> dict[str, Path]:
    """The recipes that come with fedlit, by the name that `--config` takes."""
    found: dict[str, Path] = {}
    for folder in _folders():
        found |= {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
    return found


def _folders() -> list[Path]:
    """Where fedlit's recipes lie: in an installed package, or beside it where it is developed."""
    package = Path(fedlit.__file__).parent
    places = (package / "configs", package.parent / "configs")
    return [place for place in places if place.is_dir()]


def checked_recipe(path: str) -> str:
    """The path, if the file is YAML that holds options by name."""
    content = read_yaml(Path(path), f"`--config {path}`")
    if isinstance(content, dict) and content:
        return path
    kind = "nothing"
    if content:
        kind = f"a {type(content).__name__}"
    raise ValueError(f"`--config {path}` must hold options by name, such as `trainer:`, got {kind}.")


def main(args: list[str]) -> None:
    """List the recipes that come with fedlit, or print one."""
    parser = OneLineParser("fedlit recipes", "List the recipes that come with fedlit, or print one.", epilog=EXAMPLES)
    parser.add_argument("word", nargs="?", metavar="WORD", help="A recipe's name prints it; else, what to look for.")
    word = parser.parse_args(args).word
    recipes = own_recipes()
    for name in (word, f"{word}.yaml"):
        if name in recipes:
            sys.stdout.write(recipes[name].read_text(encoding="utf-8"))
            return
    described = {name: description(path.read_text(encoding="utf-8")) for name, path in recipes.items()}
    if word is None:
        print(listed({name: text for name, text in described.items() if "/" not in name}))
        print("\nThose of the papers' tables and figures: fedlit recipes papers; comparisons: fedlit recipes studies")
        return
    found = {name: text for name, text in described.items() if word.lower() in f"{name} {text}".lower()}
    if not found:
        refuse(f"fedlit recipes: none has {word!r} in its name or description.{nearest(word, recipes)}")
    print(listed(found))


def description(text: str) -> str:
    """The first comment of a recipe beside the command; else its title, or method and data.

    Example:
        >>> description("# fedlit fit --config a.yaml\\n# Two clients.\\n# More.\\nmodel: {}")
        'Two clients.'
        >>> description("# fedlit compare a.yaml\\n# ... --data.root FOLDER, which has mnist.npz\\ntitle: Two rows")
        'Two rows'
        >>> description("model: {class_path: fedlit.methods.FML}\\ndata: {init_args: {dataset: mnist}}")
        'FML on mnist.'
    """
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    comments = [line.strip("# ") for line in head if not line.startswith(("# fedlit ", "# ... "))]
    if comments:
        return comments[0]
    title = re.search(r"^title: (.+)$", text, re.MULTILINE)  # a whole study takes long to parse
    if title:
        return str(yaml.safe_load(title[1]))
    content = yaml.safe_load(text)
    method = content.get("model", {}).get("class_path", "a method").rpartition(".")[2]
    dataset = content.get("data", {}).get("init_args", {}).get("dataset", "fashion_sample")
    return f"{method} on {dataset}."


def listed(described: dict[str, str]) -> str:
    """One line a recipe, as wide as the terminal."""
    width = max(map(len, described))
    columns = shutil.get_terminal_size((200, 24)).columns
    return "\n".join(f"{name.ljust(width)}  {text}"[:columns].rstrip() for name, text in described.items())
