"""YAML as people mean it: no key stands twice, aliases stay small, and what is wrong is said in one line."""

import re
from pathlib import Path
from typing import Any

import yaml

MOST_ENTRIES = 100_000  # of a file with its aliases written out; recipes have a few dozen
DEEPEST = 100  # entries within entries
LONGEST = 10_000  # characters of a word


class WithoutEnd(yaml.composer.ComposerError):
    """YAML that is too large: by its aliases, its depth or a word."""


class OnceLoader(yaml.SafeLoader):
    """YAML in which no key stands twice: the first one would be lost without a word."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise WithoutEnd(None, None, f"more than {DEEPEST} levels", self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _written_out(node, {})
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                problem = f"{name!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def _written_out(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Entries of a node with its aliases written out, as those who read it will: a few lines can stand for billions."""
    if node in known:
        if not known[node]:
            raise WithoutEnd(None, None, "an alias of what it is part of", node.start_mark)
        return known[node]
    known[node] = 0
    entries = 1
    if isinstance(node, yaml.CollectionNode):
        for value in node.value:
            parts = value if isinstance(value, tuple) else (value,)
            entries += sum(_written_out(part, known) for part in parts)
    elif len(node.value) > LONGEST:
        problem = f"a word of {len(node.value)} characters, more than {LONGEST}"
        raise WithoutEnd(None, None, problem, node.start_mark)
    if entries > MOST_ENTRIES:
        problem = f"more than {MOST_ENTRIES} entries where its aliases are written out"
        raise WithoutEnd(None, None, problem, node.start_mark)
    known[node] = entries
    return entries


def parse_yaml(text: str, name: str) -> Any:
    """What YAML holds; `name` is what the user calls it."""
    try:
        return yaml.load(text, OnceLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} must be YAML, but{_where(error)}.") from error
    except (ValueError, OverflowError) as error:  # a date that is none, a number of too many digits
        raise ValueError(f"{name} must be YAML, but: {error}.") from error


def read_yaml(path: Path, name: str) -> Any:
    """What a YAML file holds; `name` is what the user calls it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be YAML, but: not a text file.") from error
    return parse_yaml(text, name)


PLAIN = {  # what is wrong, in place of what the parser expected
    r"mapping values are not allowed here": "it is indented too far, or the line above lacks its `:`",
    r"expected <block end>, but found .*": "its indentation is that of no line above",
    r"found character '\\t' that cannot start any token": "it is indented by a tab; take spaces",
    r"could not find expected ':'": "a name above it lacks its `:`",
    r"expected ',' or '(.)', but got .*": r"a comma or the closing `\1` is missing before it",
}


def _plain(problem: str) -> str:
    for pattern, words in PLAIN.items():
        found = re.fullmatch(pattern, problem)
        if found is not None:
            return found.expand(words)
    return problem


def _where(error: yaml.YAMLError) -> str:
    problem = _plain(getattr(error, "problem", None) or "not a text file")  # a character that no text has
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f": {problem}"
    return f" in line {mark.line + 1}: {problem}"
