r"""Equations of docstrings, written in ASCII as the papers have them, as LaTeX.

    w_{t+1} = sum_k a_k w_k,    a_k = n_k / n  (examples)   ->   w_{t+1} = \sum_{k} a_{k} w_{k} ...

A line is a row. What stands two spaces apart is a column of its own: a remark, or, after a comma, the next equation.
Words are text, single letters and names with an index are symbols.
"""

import re
from textwrap import dedent

GREEK = ("alpha", "beta", "gamma", "delta", "mu", "tau", "rho", "phi", "theta", "eta", "lambda")
SYMBOLS = {name: rf"\{name}" for name in GREEK} | {
    "lam": r"\lambda",
    "sum": r"\sum",
    "grad": r"\nabla",
    "exp": r"\exp",
    "log": r"\log",
    "min": r"\min",
    "max": r"\max",
    "argmin": r"\operatorname{arg\,min}",
    "lr": r"\mathit{lr}",
    "ema": r"\mathit{ema}",
    "loss": r"\mathrm{loss}",
    "logits": r"\mathrm{logits}",
}
FUNCTIONS = ("CE", "KL", "NLL", "MMD", "clip", "softmax")
ACCENTS = {"bar": "bar", "hat": "hat"}
OPERATORS = {"<-": r"\leftarrow", "!=": r"\ne", "*": r"\,", "||": r"\|", "{": r"\{", "}": r"\}", "...": r"\ldots"}
GROUP = r"\{(?:[^{}]|\{[^{}]*\})*\}"
TOKEN = re.compile(
    rf"""
    (?P<code>`[^`]+`)
  | (?P<number>\d+(?:\.\d+)?(?:e-?\d+)?(?![A-Za-z\d]))
  | (?P<mixed>\d\w+|[A-Za-z]{{2,}}'s\b)
  | (?P<name>[A-Za-z]+~?'*(?:_(?:{GROUP}|\w+(?:,\w+)?))?'*(?:\^(?:{GROUP}|\(\w+\)|\w+))?(?:\+(?=\s*(?:[=\-)]|$)))?)
  | (?P<operator><-|!=|\|\||\.\.\.|\S)
  | (?P<space>\s+)
    """,
    re.VERBOSE,
)
NAME = re.compile(rf"([A-Za-z]+)(~?)('*)(?:_({GROUP}|\w+(?:,\w+)?))?('*)(?:\^({GROUP}|\(\w+\)|\w+))?(\+?)$")
RELATION = re.compile(r"<-|(?<![!<>])=")
JOINS_LEFT = re.compile(r"(<-|=|\*|\+|-|/|\|\|)(\s|$)")
JOINS_RIGHT = re.compile(r"(<-|=|\*|\+|-|/|\|\||(grad|sum|mean)(_\w+)?)$")


def is_equation(text: str) -> bool:
    """Whether an indented block of a docstring is an equation; anything else is code."""
    first = dedent(text).strip().splitlines()[0]
    return RELATION.search(first) is not None and re.search(r">>>|\w\.\w+\(|://", text) is None


def as_latex(text: str) -> str:
    r"""A block of equations, aligned at their relations, remarks to the right.

    Example:
        >>> print(as_latex("L = CE(p, y) + mu/2 * sum ||w - w_t||^2        over the trained parameters"))
        \begin{aligned}
        L &= \mathrm{CE}(p, y) + \tfrac{\mu}{2} \, \sum \|w - w_{t}\|^2 && \text{over the trained parameters}
        \end{aligned}
    """
    rows = [row for line in dedent(text).strip("\n").splitlines() if line.strip() for row in _rows(line)]
    return "\\begin{aligned}\n" + " \\\\\n".join(rows) + "\n\\end{aligned}"


def _rows(line: str) -> list[str]:
    """Rows of a line: an equation with its remarks is one."""
    rows: list[list[str]] = []
    for segment in _segments(line.strip()):
        begins = rows and rows[-1][-1].endswith((",", ";")) and RELATION.search(segment)
        if begins or not rows:
            rows.append([segment])
        else:
            rows[-1].append(segment)
    return [_row(row) for row in rows]


def _segments(line: str) -> list[str]:
    """What stands two spaces apart, unless the spaces only align an expression."""
    line = re.sub(r"^([a-z, ]+:) ", r"\1  ", line)
    segments: list[str] = []
    for part in re.split(r"\s{2,}", line):
        is_open = segments and segments[-1].count("(") > segments[-1].count(")")
        if segments and (is_open or JOINS_LEFT.match(part) or JOINS_RIGHT.search(segments[-1])):
            segments[-1] += f" {part}"
        else:
            segments.append(part)
    return segments


def _row(segments: list[str]) -> str:
    first, *remarks = segments
    relation = RELATION.search(first)
    if relation is not None:
        left, right = first[: relation.start()], first[relation.start() :]
    elif first.endswith(":"):  # a name for what follows
        left, right = first, remarks.pop(0)
    else:
        left, right = "", first
    gap = r"\quad " if left.endswith(":") else ""
    cells = [f"{expression(left)} &{gap}{expression(right)}".strip()]
    if remarks:
        cells.append(r" \quad ".join(expression(remark) for remark in remarks))
    return " && ".join(cells)


def expression(text: str) -> str:
    """One expression or remark."""
    tokens = [(match.lastgroup or "", match[0]) for match in TOKEN.finditer(text)]
    pieces: list[str] = []
    words: list[str] = []
    for place, (kind, token) in enumerate(tokens):
        if _is_word(tokens, place) or (kind == "space" and words and _next_is_word(tokens, place)):
            words.append(token)
            continue
        if words:
            pieces.append(rf"\text{{{''.join(words)}}}")
            words = []
        pieces.append(_symbol(kind, token, tokens, place))
    if words:
        pieces.append(rf"\text{{{''.join(words)}}}")
    latex = re.sub(r"\s+", " ", "".join(pieces)).strip()
    latex = re.sub(r"(\\text\{[^}]*\}) ", r"\1\\ ", latex)  # a space of the sentence is one of the page
    latex = re.sub(r" (\\text\{)", r"\\ \1", latex)
    return _fractions(latex)


def _is_word(tokens: list[tuple[str, str]], place: int) -> bool:
    kind, token = tokens[place] if place < len(tokens) else ("", "")
    if kind == "mixed":
        return True
    if kind == "operator":
        return token in ":" and place > 0 and _is_word(tokens, place - 1)
    if kind != "name" or not re.fullmatch(r"[A-Za-z]+", token):
        return False
    if token == "a":  # the article, before a word
        return _is_word(tokens, place + 2) and (place == 0 or tokens[place - 1][0] == "space")
    if token == "I":  # the numeral, after a word
        return place > 1 and _is_word(tokens, place - 2)
    return len(token) > 1 and token not in SYMBOLS and token not in FUNCTIONS


def _next_is_word(tokens: list[tuple[str, str]], place: int) -> bool:
    return _is_word(tokens, place + 1)


def _symbol(kind: str, token: str, tokens: list[tuple[str, str]], place: int) -> str:
    if kind == "code":
        return rf"\texttt{{{token.strip('`')}}}"
    if kind == "number":
        digits, _, power = token.partition("e")
        return f"10^{{{power}}}" if digits == "1" and power else token
    if kind == "name":
        return _name(token)
    before = tokens[place - 1][0] if place else "space"
    after = tokens[place + 1][0] if place + 1 < len(tokens) else "space"
    if token == "*" and "".join(value for _, value in tokens[place : place + 3]) == "* -":
        return r"\cdot"
    if token == "||" and before == after == "space":
        return r"\;\|\;"
    if token == "<" and after != "space":
        return r"\langle "
    if token == ">" and before != "space":
        return r"\rangle"
    if token == "^":
        return "^"
    return OPERATORS.get(token, token)


def _name(token: str) -> str:
    found = NAME.match(token)
    assert found is not None, token
    base, tilde, primes, below, more, above, plus = found.groups()
    latex = _base(base)
    if tilde:
        latex = rf"\tilde{{{latex}}}"
    latex += primes + (more or "")
    if below:
        latex += f"_{{{_index(below)}}}"
    raised = _index(above) if above else ""
    if raised or plus:
        latex += f"^{{{raised}{plus}}}"
    return latex


def _base(base: str) -> str:
    if base in SYMBOLS:
        return SYMBOLS[base]
    accent = _accent(base)
    if accent is not None:
        return rf"\{accent}{{{base[0]}}}"
    if len(base) == 1:
        return base
    if base in FUNCTIONS:
        return rf"\mathrm{{{base}}}"
    return rf"\operatorname{{{base}}}"


def _accent(base: str) -> str | None:
    return ACCENTS.get(base[1:]) if len(base) == 4 else None


def _index(text: str) -> str:
    """What stands below or above a symbol; a word is upright."""
    inner = text[1:-1] if text.startswith("{") else text
    if re.fullmatch(r"[A-Za-z]{2,}", inner) and inner not in SYMBOLS:
        return rf"\mathrm{{{inner}}}"
    return expression(inner)


def _fractions(latex: str) -> str:
    """`mu/2` and `1/|S_t|`, without spaces, are small fractions."""
    atom = r"(?:\\[a-z]+|\d+|[A-Za-z](?:_\{[^{}]*\})?|\|[^|\s]+\|)"
    return re.sub(rf"(?<![\w}}/\\])({atom})/({atom})(?![\w/(])", r"\\tfrac{\1}{\2}", latex)
