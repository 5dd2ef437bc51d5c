"""What a method is, in a line each: shown by `fedlit methods`, and by a test the same as in the README's table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A method in a line each, declared by its class as `card`.

    Attributes:
        invariant: The special case in which it is a simpler method.
        travels: What crosses a client's border.
        stays: What a client keeps for itself.
        paper: Authors and year; none is a baseline.
        link: Where the paper is.
        stages: Names of its programme, in order.
        recipes: That come with fedlit.
        tasks: Names of the tasks that it is for, as fedlit.tasks has them; any by default.
        use: When to use it, and what it costs.
    """

    invariant: str
    travels: str
    stays: str = "nothing"
    paper: str | None = None
    link: str | None = None
    stages: tuple[str, ...] = ("federate",)
    recipes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    use: str = ""
