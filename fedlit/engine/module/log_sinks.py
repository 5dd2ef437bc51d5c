"""Where `self.log` goes outside a visit: into the round, or to whoever made the mistake."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fedlit.engine.module.means import Means
from fedlit.engine.usage import UsageError
from fedlit.methods.base import FederatedModule


@contextmanager
def logging_to(sink: Callable[..., None], parts: Iterable[FederatedModule]) -> Iterator[None]:
    """What these parts log goes to the sink, and afterwards where it went before."""
    before = [(part, part._log_sink) for part in parts]
    for part, _ in before:
        part._log_sink = sink
    try:
        yield
    finally:
        for part, old_sink in before:
            part._log_sink = old_sink


@contextmanager
def noted(module: FederatedModule) -> Iterator[Means]:
    """What a method logs, noted."""
    means = Means()
    with logging_to(means, [module]):
        yield means


@contextmanager
def refused(module: FederatedModule, where: str) -> Iterator[None]:
    """Refuse what a method logs where no round records it."""

    def refuse(name: str, *args: Any, **options: Any) -> None:
        raise UsageError(
            f"`self.log({name!r}, ...)` in `{where}` would be recorded nowhere; log in a visit, in `aggregate` or in "
            "`probe`, or write to `federation.logger` yourself."
        )

    with logging_to(refuse, [module]):
        yield


def check_own_names(probed: dict[str, float], measured: Collection[str], module: FederatedModule) -> dict[str, float]:
    """What a method measures by itself, if it is told apart from what the federation does on the same samples."""
    for name in set(measured) & probed.keys():
        raise UsageError(
            f"`probe` of {type(module).__name__} gives {name!r}, which the federation measures on the same samples; "
            "give it another name."
        )
    return probed
