"""YAML as people mean it: no key stands twice, and what is wrong is said in one line."""

from pathlib import Path
from typing import Any

import yaml


class OnceLoader(yaml.SafeLoader):
    """YAML in which no key stands twice: the first one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                problem = f"{key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, name: str) -> Any:
    """What a YAML file holds; `name` is what the user calls it."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), OnceLoader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be YAML, but: not a text file.") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{name} must be YAML, but{_where(error)}.") from error


def _where(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or "not a text file"  # a character that no text has
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f": {problem}"
    return f" in line {mark.line + 1}: {problem}"
