"""Messages for bad input: jsonargparse's in the user's words, options by full names, and the nearest name for a typo.

An option of an experiment is written as in a recipe, `trainer.num_rounds`, wherever it was given; an option that only a
command takes, and what is quoted or to be typed, has its dashes: `--ckpt_path`.
"""

import difflib
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from inspect import isclass, isfunction, signature
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType, NoneType
from typing import Any, NoReturn

import torch
import torchmetrics.classification

from fedlit import aggregation, augment, callbacks, encoders, methods, networks, partition, privacy, server_optimizers
from fedlit.cli import refusal
from fedlit.cli.method_class import method_of, unannotated
from fedlit.cli.recipes import recipe_content, recipe_files, written_options
from fedlit.cli.values import environment_options, parsed, typed_values
from fedlit.data import FederatedData
from fedlit.option_names import SYNONYMS

KEY = r'Parser key "([\w.]+)": (?!.*<class \'(?:float|int|bool)\'>).*?'
CONSTRUCTOR = r"Does not validate .*Errors: - (.+?) - Expected an? <class 'NoneType'>"  # a constructor's own words
NO_OPTION = r"^`(\w+)` is not an option\.(?: Did you mean `(\w+)`\?)?$"
UNBUILT = r"'params' must be given|(so that|since) each .* got a ready (Namespace|NestedArg|str|dict)\b"
REWRITTEN = {
    r'expected "subcommand" .*': "give a command: fit, validate, test, predict or adapt.",
    r"argument subcommand: invalid choice: '(.*?)' .*": r"'\1' is no command; "
    "give fit, validate, test, predict or adapt.",
    r"unrecognized arguments: --(\w+\.\S+?)(?:[= ].*)?": r"`\1` is not an option.",
    r"unrecognized arguments: ([^-]\S*\.ya?ml)(?: .*)?": r"a recipe needs `--config` before it: --config \1.",
    r"unrecognized arguments: (\S+?)(?:[= ].*)?": r"`\1` is not an option.",
    r"Option '.*' is not accepted before subcommand '(\w+)'": r"options come after the command: fedlit \1 --config ...",
    r"(?:Subcommand '\w+' does not accept o|O)ption '([\w.]+?)(?:\.init_args.*)?' ?.*": r"`\1` is not an option.",
    r".*class_path '(?:[\w.]+\.)?(\w+Logger)': Requirement '([\w-]+).*": r"`trainer.logger: \1` needs the package \2: "
    r"pip install \2",
    KEY + r"Multiple subclasses with name (\w+)\. .* ambiguity: (.*?)\.?": r"`\1`: several classes are named \2; "
    r"give one in full: \3.",
    KEY + r"Problem with given class_path '\S+': No module named '([\w.]+)'.*": r"`\1`: there is no module '\2'.",
    KEY + r"Problem with given class_path '\S+': module '([\w.]+)' has no attribute '(\w+)'.*": r"`\1`: there is no "
    r"'\3' in \2.",
    KEY + r"Problem with given class_path '(\S+)': (.+?) - Expected .*": r"`\1`: cannot use \2: \3.",
    KEY + r"Errors: - ([^-]*\(\S+\.py, line \d+\)) .*Given value: (.*)": r"`\1`: cannot use \3: \2.",
    KEY + r"No module named '([\w.]+)'.*": r"`\1`: there is no module '\2'.",
    KEY + r"module '([\w.]+)' has no attribute '(\w+)'.*": r"`\1`: there is no '\3' in \2.",
    KEY + r"Expected a dot import path string: (\S+).*": r"`\1`: there is no class '\2'.",
    KEY + r"does not correspond to a subclass of (\w+).* Given value: (.*)": r"`\1`: expected a \2, got \3.",
    KEY + r"to be a function that returns <class '(\w+)'>.*value: (.*)": r"`\1`: expected what builds a \2, got \3; "
    r"give a class, or a function that says `-> \2`.",
}
OWN = (methods, networks, partition, augment, callbacks, aggregation, encoders, privacy, server_optimizers)
MODULES = (*OWN, torch.optim, torch.optim.lr_scheduler, torchmetrics.classification)


def refuse(message: str) -> NoReturn:
    """One line, exit code 2."""
    refusal.refuse(in_full(plain(message), sys.argv[1:]))


def plain(message: str) -> str:
    """jsonargparse's message without its scaffolding, in one line.

    Example:
        >>> plain("Parser key \\"trainer.devices\\": Expected a <class 'int'>. Got value: x")
        "`trainer.devices`: expected int, got 'x'."
        >>> plain("Option 'lr' is not accepted")
        '`lr` is not an option.'
    """
    message = " ".join(message.split())
    message = re.sub(r"- Expected a path but .*? either not accessible or invalid - ", "", message)
    # The same again for the other type that `trainer.aggregator` may have.
    message = re.sub(
        r" - Type \S*Callable\[.*? expects a function or a callable class: .*?(?= - Expected)", "", message
    )
    own_words = re.match(CONSTRUCTOR, message)
    if own_words is not None:
        texts = dict.fromkeys(own_words[1].split(" - "))  # once for each of the types that an option may have
        return " - ".join(texts)
    required = re.fullmatch(r"the following arguments are required: (.*)", message)
    if required is not None:
        names = map(_required, required[1].split(", "))
        return f"{', '.join(names)} must be given."
    for pattern, words in REWRITTEN.items():
        match = re.fullmatch(pattern, message)
        if match is not None:
            return match.expand(words)
    return _expected(message)


def _required(name: str) -> str:
    top = re.fullmatch(r"(?:fit|validate|test|predict|adapt)\.(\w+)", name)
    if top is not None:
        return f"`{top[1]}`"
    full = _full_name(name, [])  # not by the arguments: a recipe may have the same name elsewhere
    if full == name:
        return repr(name)
    return f"`{full}`"


def _expected(message: str) -> str:
    """What type an option wants, from the last of jsonargparse's forms."""
    key = re.match(r'Parser key "([\w.]+)": ', message)
    value = re.search(r".*(?:Given value|Got value): (.*)", message)
    kinds = re.search(r"Subtypes: \[(.*?)\] Errors:|Expected an? (.*?)\.? (?:Got|Given) value", message)
    if not (key and value and kinds):
        return re.sub(r'^Parser key "([\w.]+)": ', r"`\1`: ", message)
    nested = re.fullmatch(r"NestedArg\(key='([\w.]+)', val=(.*)\)", value[1])
    if nested is not None:  # an option of a class whose value could not be looked at
        return f"`{key[1]}.{nested[1]}` cannot be {nested[2]}."
    expected = re.sub(r"<class '(.*?)'>", r"\1", kinds[1] or kinds[2]).replace("typing.Literal", "one of ")
    expected = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", expected).replace(", NoneType", "")
    return f"`{key[1]}`: expected {expected}, got {value[1]!r}."


def suggestion(message: str, options: set[str]) -> str:
    """The option, class or module that a refused one is nearest to.

    Example:
        >>> suggestion("`trainer.num_round` is not an option.", {"trainer.num_rounds", "trainer.devices"})
        ' Did you mean `trainer.num_rounds`?'
        >>> suggestion("`--num_rounds` is not an option.", {"trainer.num_rounds", "trainer.devices"})
        ' Did you mean `trainer.num_rounds`?'
        >>> suggestion("`--ckptpath` is not an option.", {"ckpt_path", "config"})
        ' Did you mean `--ckpt_path`?'
        >>> suggestion("`model.network`: there is no 'LeNet6' in fedlit.networks.", set())
        ' Did you mean `fedlit.networks.LeNet5`?'
    """
    near: str | None = None
    option = re.search(r"^`(-*)([\w.]+)` is not an option", message)
    kind = re.search(r"there is no class '([\w.]+)'", message)
    inner = re.search(r"there is no '(\w+)' in ([\w.]+)\.$", message)
    module = re.search(r"there is no module '(\w+)'", message)
    outer = re.search(r"there is no (?:'\w+' in|module) '?(\w+)\.", message)
    if outer is not None and (hidden := hidden_file(outer[1])) is not None:
        return f" {hidden} is hidden by an installed module of the same name; rename it."
    if option is not None:
        known_elsewhere = _synonyms(option[2])
        if known_elsewhere:
            return known_elsewhere
        near = _nearest_option(option[2], options)
        if near is not None and "." not in near:
            near = option[1] + near
    elif kind is not None:
        near = _first(difflib.get_close_matches(kind[1], known_classes(), n=1, cutoff=0.65))
    elif inner is not None:
        near = nearest_in(inner[2], inner[1])
    elif module is not None:
        near = nearest_module(module[1])
    return f" Did you mean `{near}`?" if near else ""


def _synonyms(option: str) -> str:
    """What an option of another library is called here, if it is one."""
    meant = SYNONYMS.get(option.rpartition(".")[2], ())
    if not meant or option in meant:
        return ""
    return f" Did you mean `{'` or `'.join(name if '.' in name else f'--{name}' for name in meant)}`?"


def _nearest_option(name: str, options: set[str]) -> str | None:
    """Of all options, or of those of one class, which are few: there, a slip may be farther off."""
    if name in options:
        return None
    cutoff = 0.75
    if "." not in name:
        elsewhere = sorted(option for option in options if option.rpartition(".")[2] == name)
        if elsewhere:
            return elsewhere[0]
        cutoff = 0.65
    for word in (name, name.rpartition(".")[2]):
        near = difflib.get_close_matches(word, options, n=1, cutoff=cutoff)
        if near and word not in options:
            return near[0]
    return None


def _first(found: list[str]) -> str | None:
    return found[0] if found else None


def in_full(message: str, args: list[str]) -> str:
    """The message with options named as the user typed them, in the arguments or in a recipe.

    Example:
        >>> in_full("`alpha` must be above 0.", ["fit", "--data.partition.alpha=-1"])
        '`data.partition.alpha` must be above 0.'
        >>> in_full("`val_size` must be above 0.", [])
        '`data.val_size` must be above 0.'
        >>> in_full("`alpha` must be above 0.", ["fit", "--data.partition.alpha=1", "--model.optimizer.alpha=-1"])
        '`data.partition.alpha` or `model.optimizer.alpha` must be above 0.'
        >>> in_full("`alpha` is not an option.", ["fit", "--data.alpha=1", "--model.alpha=0.5"])
        '`data.alpha` is not an option. Did you mean `data.partition.alpha`?'
        >>> in_full("`alpha` is not an option.", ["fit", "--config", "fedavg_fashion.yaml", "--data.alpha=1"])
        '`data.alpha` is not an option. Did you mean `data.partition.alpha`?'
        >>> in_full("`hiden` is not an option. Did you mean `hidden`?", ["fit", "--model.network.hiden=3"])
        '`model.network.hiden` is not an option. Did you mean `model.network.hidden`?'
    """
    if re.search(UNBUILT, message):
        message = unannotated(args) or message
    if "class_path" in message:
        message = _beside_class_path(args) or message
    message = re.sub(r"^`([\w.]+\.help)` is not an option\.", lambda option: _no_help(option[1], args), message)
    message = re.sub(NO_OPTION, lambda found: _no_option(found[1], found[2], args), message)
    message = re.sub(r"^'(\w+)' must be given\.$", lambda name: _must_be_given(name[1], args), message)
    message = re.sub(r"`(\w+)`", lambda name: f"`{_full_name(name[1], args)}`", message)
    return message + _by_environment(message, args)


def _by_environment(message: str, args: list[str]) -> str:
    """The variables that gave what is refused, if any did and nothing that was typed came after them."""
    variables = environment_options(args[0]) if args else []
    names = []
    for variable in variables:
        option = variable.option.replace(".init_args", "")
        given = [name for name, _ in typed_values(args) if name.replace(".init_args", "") == option]
        if re.search(rf"`(--)?({re.escape(variable.option)}|{re.escape(option)})`", message) and len(given) < 2:
            names.append(variable.name)
    return f" ({', '.join(names)} of the environment)" if names else ""


def _beside_class_path(args: list[str]) -> str | None:
    """That an option of a class stands beside its `class_path`, where it is one; None if none does."""
    typed = [(option, parsed(value)) for option, value in typed_values(args)]
    for path, value in (*typed, *_written(args)):
        if isinstance(value, dict) and "class_path" in value:
            beside = sorted(str(key) for key in value.keys() - {"class_path", "init_args", "dict_kwargs"})
            if beside:
                return f"`{path}.{beside[0]}` must stand below `init_args`, not beside `class_path`."
    return None


def _no_help(option: str, args: list[str]) -> str:
    """That there is no help of this name, as it was typed; a method's own options are known once it is named."""
    typed = next((name for name, _ in typed_values(args) if name.endswith(f".{option}")), option)
    hint = ""
    if typed.startswith("model.") and method_of(args) is None:
        hint = " Name the method before it: --model NAME."
    return f"`--{typed}` is not an option.{hint}"


def _no_option(name: str, near: str | None, args: list[str]) -> str:
    """The message for an option that does not exist where it was given, with a near one or its right place."""
    given = {path for paths in _given(args) for path in paths if path.rpartition(".")[2] == name}
    real = {f"data.{name}"} if name in signature(FederatedData).parameters else set()
    if name in _method_options():
        real.add(f"model.{name}")
    if name in _arguments(partition):  # of some; others follow below
        real.add(f"data.partition.{name}")
    real |= {*SYNONYMS.get(name, ())}  # the same name where it belongs
    strange = sorted(given - real)
    if not strange:
        strange = [_full_name(name, args)]
    hint = _synonyms(strange[0])
    if hint:
        pass
    elif near is not None:
        place = strange[0].rpartition(".")[0]  # where the class is, whose option was meant
        hint = f" Did you mean `{place}.{near}`?"
    elif strange == [f"data.{name}"] and name in _arguments(partition):
        hint = f" Did you mean `data.partition.{name}`?"
    return f"`{'` or `'.join(strange)}` is not an option.{hint}"


def _must_be_given(name: str, args: list[str]) -> str:
    """That a class cannot do without an argument, by the option that names the class."""
    options = set()
    for option, value in (*typed_values(args), *_written(args)):
        if name in needs(value):
            options.add(f"{option.removesuffix('.class_path')}.{name}")
    if not options:
        return f"{name!r} must be given."
    return f"`{'` or `'.join(sorted(options))}` must be given."


def _given(args: list[str]) -> tuple[set[str], set[str]]:
    """Options that were typed, and those that stand in recipes."""
    typed: set[str] = set()
    for option, value in typed_values(args):
        typed |= {option, *(path for path, _ in written_options(parsed(value), option))}
    return typed, {path for path, _ in _written(args)}


def _written(args: list[str]) -> list[tuple[str, Any]]:
    """What stands in recipes."""
    return [pair for recipe in recipe_files(args) for pair in written_options(recipe_content(recipe))]


def _full_name(name: str, args: list[str]) -> str:
    for paths in _given(args):  # what was typed comes before what stands in a recipe
        found = {path for path in paths if path.rpartition(".")[2] == name}
        if found and not found & {f"data.{name}", f"model.{name}"}:
            return "` or `".join(sorted(found))
        if len(found) == 1:
            return found.pop()
    if name in signature(FederatedData).parameters:
        return f"data.{name}"
    if name in _method_options():
        return f"model.{name}"
    for place, module in (("data.partition", partition), ("data.augmentation", augment)):
        if name in _arguments(module):
            return f"{place}.{name}"
    return name


def _arguments(module: ModuleType) -> set[str]:
    """Of all the classes that a module defines."""
    kinds = [kind for kind in vars(module).values() if isclass(kind) and kind.__module__.startswith(module.__name__)]
    return {name for kind in kinds for name in signature(kind).parameters}


def _method_options() -> set[str]:
    """Arguments of any method of fedlit's own."""
    options: set[str] = set()
    for method in (getattr(methods, name) for name in methods.__all__):
        if isclass(method) and issubclass(method, methods.FederatedModule):
            options |= signature(method).parameters.keys()
    return options


def known_classes() -> set[str]:
    """Short names of methods, networks, partitions and other classes."""
    return {name for module in MODULES for name in _public(module, functions=False)}


def needs(value: Any) -> set[str]:
    """Required arguments of a class, named in full or in short; none if it is not the name of a class.

    Example:
        >>> sorted(needs("StepLR"))
        ['optimizer', 'step_size']
        >>> needs("7")
        set()
    """
    required: set[str] = set()
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z_][\w.]*", value) is None:
        return required
    for kind in _named(value):
        try:
            arguments = signature(kind).parameters.values()
        except (TypeError, ValueError):
            continue
        required |= {argument.name for argument in arguments if argument.default is argument.empty}
    return required


def _named(name: str) -> Iterator[Any]:
    """Objects of a name: one by its path, perhaps several by a short name."""
    if "." in name:
        try:
            yield resolve_name(name)
        except Exception:  # a user's module may raise anything; reported elsewhere
            return
    for module in MODULES:
        if name in _public(module, functions=False):
            yield getattr(module, name)


def nearest_in(module: str, name: str) -> str | None:
    """The class or function of a module that is nearest to a name, with its path.

    Example:
        >>> nearest_in("fedlit.networks", "LeNet6")
        'fedlit.networks.LeNet5'
    """
    try:
        found = import_module(module)
    except Exception:  # a user's module may raise anything; reported elsewhere
        return None
    near = difflib.get_close_matches(name, _public(found, functions=True), n=1, cutoff=0.65)
    return f"{module}.{near[0]}" if near else None


def nearest_module(name: str) -> str | None:
    """The module in the current folder whose name is nearest."""
    there = [path.stem for path in Path().glob("*.py") if path.stem.isidentifier()]
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.75)
    return near[0] if near else None


def hidden_file(name: str) -> Path | None:
    """A module in the current folder that is shadowed by an installed one of the same name."""
    for path in (Path(f"{name}.py"), Path(name, "__init__.py")):
        spec = find_spec(name) if path.is_file() else None
        if spec is not None and (spec.origin is None or Path(spec.origin) != path.resolve()):
            return path
    return None


def _public(module: ModuleType, functions: bool) -> set[str]:
    """Public classes of a module, and perhaps functions."""
    names = set()
    for name, value in vars(module).items():
        is_asked_for = isclass(value) or (functions and isfunction(value))
        if is_asked_for and value is not NoneType and not name.startswith("_"):
            names.add(name)
    return names
