"""Another process of the run, at the other end of a socket. Nothing here needs torch."""

import socket
from contextlib import suppress
from dataclasses import dataclass


@dataclass
class Peer:
    """Another process, as it was last heard of; times are in seconds."""

    link: socket.socket | None = None
    unread: bytes = b""
    silence: float = 0.0
    wait: float = 0.0
    is_waiting: bool = False
    has_left: bool = False
    has_seen_us_off: bool = False

    def send(self, line: str) -> None:
        """A line, if it can be had at once."""
        if self.link is not None:
            with suppress(OSError):  # a full buffer: it is stopped; a broken link: we shall hear of it
                self.link.send(f"{line}\n".encode())

    def received(self) -> bytes:
        """What has come; nothing if the other end is closed, in good order or not."""
        assert self.link is not None
        try:
            return self.link.recv(1 << 16)
        except (TimeoutError, BlockingIOError):  # it is open, and silent
            raise
        except OSError:
            return b""
