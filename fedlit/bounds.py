"""Checks of options; errors name the option as the user typed it, what is allowed and what was given."""

from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, get_args

LARGEST = 1e10  # what is beyond is a slip of the exponent: single precision overflows soon after
SMALLEST = 1e-30  # of what is divided by, for the same reason
MOST = 1_000_000_000  # of what is counted: rounds, epochs, samples


def check_number(option: str, value: Any, least: float = -LARGEST, most: float = LARGEST) -> float:
    """A finite number in [least, most], or a refusal.

    Example:
        >>> check_number("model.mu", float("nan"))
        Traceback (most recent call last):
        ValueError: `model.mu` must be a finite number, got nan.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"`{option}` must be a number, got {value!r}.")
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        number = inf
    if not isfinite(number):
        raise ValueError(f"`{option}` must be a finite number, got {value}.")
    if number < least:
        raise ValueError(f"`{option}` must be at least {least:g}, got {value}.")
    if number > most:
        raise ValueError(f"`{option}` must be at most {most:g}, got {value}.")
    return number


def check_choice(option: str, value: Any, choices: Any) -> None:
    """Refuse what is none of the values of a Literal; the command line has looked, Python code has not."""
    allowed = get_args(choices)
    if value not in allowed:
        raise ValueError(f"`{option}` must be one of {', '.join(map(str, allowed))}, got {value!r}.")


def check_kind(option: str, value: Any, kind: type | tuple[type, ...], allowed: str) -> None:
    """Refuse what is not of a kind; `allowed` describes it in the user's words."""
    if not isinstance(value, kind):
        raise ValueError(f"`{option}` must be {allowed}, got {value!r}.")


def check_share(option: str, value: Any) -> float:
    """A number in [0, 1], or a refusal."""
    if not 0 <= check_number(option, value) <= 1:
        raise ValueError(f"`{option}` must lie in [0, 1], got {value}.")
    return float(value)


def check_positive(option: str, value: Any, least: float = SMALLEST) -> float:
    """A finite number above 0 by which one can divide, or a refusal.

    Example:
        >>> check_positive("model.alpha", 1e-320)
        Traceback (most recent call last):
        ValueError: `model.alpha` must be at least 1e-30, got 1e-320.
    """
    number = check_number(option, value)
    if number <= 0:
        raise ValueError(f"`{option}` must be above 0, got {value}.")
    return check_number(option, value, least=least)


def check_count(option: str, value: Any, least: int = 1, most: int = MOST) -> int:
    """A whole number in [least, most], or a refusal.

    Example:
        >>> check_count("trainer.num_threads", 100000, most=1024)
        Traceback (most recent call last):
        ValueError: `trainer.num_threads` must be at most 1024, got 100000.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"`{option}` must be a whole number, got {value!r}.")
    number = int(value)
    if number < least:
        raise ValueError(f"`{option}` must be at least {least}, got {number}.")
    if number > most:
        raise ValueError(f"`{option}` must be at most {most}, got {number}.")
    return number
