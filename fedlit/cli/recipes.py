"""Arguments of the command line: recipes are found and checked, and variables of the environment become options.

`fedlit recipes` lists the recipes, or prints one.
"""

import difflib
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import fedlit
from fedlit.cli.refusal import OneLineParser, nearest, refuse
from fedlit.notices import Notice
from fedlit.records.run_folder import RUNS, last_checkpoint
from fedlit.strict_yaml import TooLarge, parse_yaml, read_yaml

CONFIG = ("-c", "--config")
PREFIX = "FEDLIT_"
COMMANDS = ("FIT", "VALIDATE", "TEST", "PREDICT", "ADAPT")  # that have options in the environment
NUMBER = re.compile(r"-\.?\d")
EXAMPLES = """\
examples:
  fedlit recipes                                   one line each
  fedlit recipes mnist                             those that have the word in their name or description
  fedlit recipes fml_fashion.yaml > my.yaml        a copy, to change
"""


class Variable(NamedTuple):
    """A variable of the environment that is an option of a command."""

    name: str
    option: str
    value: str


def with_recipes_found(args: list[str]) -> list[str]:
    """The arguments, each as `--option=value`: recipes first, as files, then the environment, then what was typed.

    `last`, `best` and `auto` are checkpoints of the run whose config is given.
    """
    check_environment()
    args = joined(args)
    command = [arg for arg in args[:1] if not arg.startswith("-")]
    typed = args[len(command) :]
    for arg in typed:
        if command and not arg.startswith("-"):
            raise ValueError(f"{arg!r} is one argument too many; a recipe is given by `--config {arg}`.")
    variables = environment_options(command[0]) if command else []
    recipes = [_found_for(variable) for variable in variables if variable.option == "config"]
    recipes += [_found(arg) for arg in typed if _is_config(arg)]
    options = [f"--{variable.option}={variable.value}" for variable in variables if variable.option != "config"]
    options += [arg for arg in typed if not _is_config(arg)]
    found = [*command, *recipes, *options]
    check_values(found)
    return [_of_own_run(arg, found) for arg in found]


def check_values(args: list[str]) -> None:
    """Refuse values that are no text, or that parsers would not come to the end of."""
    for option, value in typed_values(args):
        if value != value.encode(errors="ignore").decode():
            raise ValueError(f"`--{option}` has bytes that are not UTF-8.")
        try:
            parse_yaml(value, f"`--{option}`")
        except TooLarge:
            raise
        except ValueError:  # then it is text
            continue


def joined(args: Iterable[str]) -> list[str]:
    """The arguments with each value behind its option and `=`.

    Example:
        >>> joined(["fit", "--a.b", "1", "--c=2", "--d", "-3", "--e"])
        ['fit', '--a.b=1', '--c=2', '--d=-3', '--e']
    """
    found: list[str] = []
    for arg in args:
        is_value = not arg.startswith("-") or NUMBER.match(arg) is not None
        if is_value and found and found[-1].startswith("-") and "=" not in found[-1]:
            found[-1] += f"={arg}"
        else:
            found.append(arg)
    return found


def typed_values(args: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Options without their dashes, and their values.

    Example:
        >>> list(typed_values(["fit", "--a.b=1", "--c"]))
        [('a.b', '1'), ('c', '')]
    """
    for arg in joined(args):
        if arg.startswith("-"):
            option, _, value = arg.partition("=")
            yield option.lstrip("-"), value


def parsed(value: str) -> Any:
    """What was typed, as YAML reads it; text where it cannot be read."""
    try:
        return parse_yaml(value, "it")
    except ValueError:
        return value


def given_options(args: list[str]) -> Iterator[tuple[str, Any]]:
    """Every option that recipes, the environment or the user give, and its value, in the order in which they count."""
    for file in recipe_files(args):
        yield from written_options(recipe_content(file))
    for option, text in typed_values(args):
        if text and option:
            option = option.replace(".init_args", "")
            yield option, parsed(text)
            yield from written_options(parsed(text), option)


def written_options(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every option of a recipe, as it would be typed, without `init_args`, and its value.

    Example:
        >>> dict(written_options({"model": {"class_path": "FML", "init_args": {"alpha": 0.5}}}))["model.alpha"]
        0.5
    """
    if isinstance(content, list):  # of augmentations, of callbacks: options are named without an index
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


def environment_options(command: str) -> list[Variable]:
    """What the environment says for a command: FEDLIT_FIT__TRAINER__NUM_ROUNDS is `trainer.num_rounds` of `fit`.

    A name in capitals is of an option in small letters. A class comes before its arguments.
    """
    prefix = f"{PREFIX}{command.upper()}__"
    found = []
    for name, value in os.environ.items():
        if name.startswith(prefix):
            option = name.removeprefix(prefix).replace("__", ".")
            found.append(Variable(name, option.lower() if option.isupper() else option, value))
    return sorted(found, key=lambda variable: (variable.option.count("."), variable.option))


def check_environment() -> None:
    """Refuse a variable that looks like an option but is of no command."""
    for name in os.environ:
        command, is_option, option = name.removeprefix(PREFIX).partition("__")
        if name.startswith(PREFIX) and (is_option or command == "CONFIG") and command not in COMMANDS:
            example = f"{PREFIX}FIT__{option or command}"
            raise ValueError(f"`{name}` names no command; variables are such as {example}.")


def _is_config(arg: str) -> bool:
    return arg.partition("=")[0] in CONFIG


def _found(arg: str) -> str:
    option, is_given, name = arg.partition("=")
    return f"{option}={checked_recipe(find_recipe(name))}" if is_given else arg


def _found_for(variable: Variable) -> str:
    try:
        return _found(f"--config={variable.value}")
    except ValueError as error:
        raise ValueError(f"`{variable.name}`: {error}") from error


def _of_own_run(arg: str, args: list[str]) -> str:
    option, _, value = arg.partition("=")
    return f"{option}={of_own_run(value, args) or 'null'}" if option == "--ckpt_path" and value else arg


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


def note_configs(args: list[str]) -> None:
    """Name the configs that a command other than `fit` has built from; a fit saves its own."""
    files = recipe_files(args)
    if files and args[0] != "fit":
        warnings.warn(f"Built from the config {', '.join(files)}.", Notice, stacklevel=2)


def recipe_files(args: list[str]) -> list[str]:
    """The files given by `--config`, in order."""
    return [value for option, value in typed_values(args) if option in ("c", "config") and _is_file(value)]


def recipe_content(recipe: str) -> Any:
    """What a recipe holds; None where it cannot be read, which is refused elsewhere."""
    try:
        return read_yaml(Path(recipe), recipe)
    except (ValueError, OSError):
        return None


def find_recipe(name: str) -> str:
    """A file in the current folder, or the recipe of that name that comes with fedlit."""
    for path in (Path(name), *(folder / name for folder in _folders())):
        if _is_file(path):
            return str(path) if path.is_absolute() else name
    hint = "`fedlit recipes` lists fedlit's own."
    near = difflib.get_close_matches(name, own_recipes(), n=1)
    if near:
        hint = f"did you mean {near[0]}?"
    raise ValueError(f"`--config {name}`: there is no such file here, nor such a recipe; {hint}")


def _is_file(path: str | Path) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # too long, or not Unicode
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
    kind = f"a {type(content).__name__}" if content else "nothing"
    raise ValueError(f"`--config {path}` must hold options by name, such as `trainer:`, got {kind}.")


def main(args: list[str]) -> None:
    """List the recipes that come with fedlit, or print one."""
    parser = OneLineParser("fedlit recipes", str(main.__doc__), epilog=EXAMPLES)
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
    title = re.search(r"^title: (.+)$", text, re.MULTILINE)
    if comments or title:
        return comments[0] if comments else str(yaml.safe_load(title[1]))  # type: ignore[index]
    method = re.search(r"class_path: fedlit\.methods\.(\w+)", text)
    dataset = re.search(r"\bdataset: (\w+)", text)
    return f"{method[1] if method else 'A method'} on {dataset[1] if dataset else 'fashion_sample'}."


def listed(described: dict[str, str]) -> str:
    """One line a recipe, as wide as the terminal."""
    width = max(map(len, described))
    columns = shutil.get_terminal_size((200, 24)).columns
    return "\n".join(f"{name.ljust(width)}  {text}"[:columns].rstrip() for name, text in described.items())
