"""A fit that is to end early."""

from dataclasses import dataclass


@dataclass
class StopRequest:
    """Whether a fit was asked to end early, and by which signal, if it was one."""

    asked: bool = False
    signal: int | None = None

    def by_signal(self, signal: int) -> None:
        self.asked = True
        self.signal = signal
