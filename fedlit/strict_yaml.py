"""YAML in which no key is given twice; errors are one line."""

from pathlib import Path
from typing import Any

import yaml

MOST_ENTRIES = 100_000  # with aliases written out; a few lines can mean billions


class TooLarge(ValueError):
    """YAML that is nested too deeply, or endless where its aliases are written out."""


class OnceLoader(yaml.SafeLoader):
    """YAML in which no key is given twice: the first value would be lost silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                problem = f"{name!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, name: str) -> Any:
    """What YAML holds; `name` is what the user calls it."""
    try:
        content = yaml.load(text, OnceLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} must be YAML, but{_where(error)}.") from error
    except RecursionError as error:
        raise TooLarge(f"{name} is nested too deeply.") from error
    except (ValueError, OverflowError) as error:  # an invalid date, a number of too many digits
        raise ValueError(f"{name} must be YAML, but: {error}.") from error
    if _is_endless(content):
        raise TooLarge(f"{name} has more than {MOST_ENTRIES} entries where its aliases are written out.")
    return content


def read_yaml(path: Path, name: str) -> Any:
    """What a YAML file holds; `name` is what the user calls it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be YAML, but: not a text file.") from error
    return parse_yaml(text, name)


def _is_endless(content: Any) -> bool:
    left = [content]
    for _ in range(MOST_ENTRIES):
        if not left:
            return False
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return True


def _where(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or "not a text file"  # a character that no text has
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f": {problem}"
    return f" in line {mark.line + 1}: {problem}"
