"""All methods in small, and clients on hosts of their own within this process."""

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from every_method import METHODS, data_for

from fedlit import Federation
from fedlit.flower import wire
from fedlit.flower.host import Host
from fedlit.flower.hosts import RemoteHosts
from fedlit.flower.wire import Letter

QUIET = {"enable_progress_bar": False, "logger": False, "accelerator": "cpu", "report": False}


def seeded(name):
    torch.manual_seed(3)
    return METHODS[name]()


def federation(folder, **options) -> Federation:
    return Federation(**{"num_rounds": 2, **QUIET, "default_root_dir": str(folder), **options})


class InProcess:
    """A post that answers in reverse order, and keeps what it has carried.

    Args:
        make: Makes a method and data, as every host does.
        folder: In which every host has its own.
        options: Of the federation.
        fresh: Whether a host is new for every letter, as a process that is started for it would be.
    """

    def __init__(self, make, folder: Path, fresh: bool = False, **options) -> None:
        self.make = make
        self.folder = folder
        self.fresh = fresh
        self.options = options
        self.hosts: dict[int, Host] = {}
        self.carried: list[tuple[str, int, bytes]] = []
        self.letters: dict[tuple[str, int], Letter] = {}  # the last of each kind

    def host(self, k: int) -> Host:
        if k not in self.hosts or self.fresh:
            model, data = self.make()
            own = federation(self.folder / f"host_{k}", **self.options)
            self.hosts[k] = Host(own, model, data, k, self.folder / f"host_{k}")
        return self.hosts[k]

    def answering(self, k):
        """A host whose letters and answers are kept."""
        return Noted(self, k)

    def joined(self, k):
        letter = Letter(wire.pack({}), wire.pack({"protocol": wire.PROTOCOL}))
        return wire.unpack(self.host(k).answer("join", letter))

    def ask(self, what, letters):
        for k in reversed(letters):
            yield k, self.answering(k).answer(what, letters[k])


class Noted(NamedTuple):
    """One host of a post, which notes what goes to and fro."""

    post: InProcess
    k: int

    def answer(self, what, letter):
        answer = self.post.host(self.k).answer(what, letter)
        self.post.letters[what, self.k] = letter
        self.post.carried += [(what, self.k, part) for part in (letter.common, letter.own, answer)]
        return answer


def simulated(name, folder, options=None, **of_data):
    found = federation(folder, **(options or {}))
    found.fit(seeded(name), data_for(name, **of_data))
    return found


def by_post(name, folder, options=None, fresh=False, ckpt_path=None, **of_data):
    """A federation whose clients have hosts, and the post."""
    options = options or {}
    post = InProcess(lambda: (seeded(name), data_for(name, **of_data)), folder, fresh, **options)
    found = federation(folder / "server", **options)
    found.hosts = hosts_of(post)
    found.fit(seeded(name), data_for(name, **of_data), ckpt_path)
    return found, post


def hosts_of(post):
    """By Flower's messages where Flower is installed."""
    if find_spec("flwr") is None:
        return RemoteHosts(post, {k: post.joined(k) for k in range(3)})
    from fake_grid import FakeGrid

    from fedlit.flower.grid import GridPost

    by_grid = GridPost(FakeGrid(post.answering, 3), 3, reply_timeout=60, join_timeout=60)
    return RemoteHosts(by_grid, by_grid.wait_for_all())
