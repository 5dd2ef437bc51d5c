"""How the ranks of a run find each other: in a store of rank 0, on loopback if there is one host, or of torchrun."""

import os
import secrets
import signal
import socket
import sys
import time
from datetime import timedelta
from subprocess import Popen
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import DDPStrategy
from torch import nn

from fedlit.engine import liveness
from fedlit.engine.liveness import Liveness, ProcessLost
from fedlit.engine.options import Options, first_line
from fedlit.records.stop_signals import stop_signals

LOOPBACK = "127.0.0.1"
FOR_EVER = timedelta(days=365)  # how long one rank waits for another is decided by `Liveness`
TO_MEET = timedelta(minutes=10)  # for all ranks to be there once one is


class ClientParallelStrategy(DDPStrategy):
    """Processes that share no module: DDP would average gradients of clients, and forbid different networks.

    Processes that share a device, for which `devices` are given, use gloo: NCCL needs a device for each.
    """

    def __init__(self, process_timeout: float, devices: list[torch.device] | None = None) -> None:
        backend = None if devices is None else "gloo"
        super().__init__(parallel_devices=devices, process_group_backend=backend, timeout=FOR_EVER)
        self.process_timeout = process_timeout
        self.children: dict[int, Popen] = {}  # processes that this one has started, by rank
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of children: a lost store is reported in one line

    @property
    def distributed_sampler_kwargs(self) -> None:  # type: ignore[override]  # Fabric asks whether it is None
        return None

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]  # not wrapped, on purpose
        return module

    def setup_environment(self) -> None:
        alive = liveness.current()
        if not dist.is_initialized():
            self._meet()
        elif alive is not None:  # a second federation of a script
            alive.timeout = self.process_timeout
        super().setup_environment()

    def end_children(self) -> None:
        """Kill children that have not joined."""
        for child in [*getattr(self.launcher, "procs", []), *self.children.values()]:
            child.kill()

    def _meet(self) -> None:
        assert self.cluster_environment is not None
        assert self.accelerator is not None
        self._set_world_ranks()
        rank, world_size = self.global_rank, self.world_size
        started = getattr(self.launcher, "procs", [])
        self.children = dict(enumerate(started, start=rank + 1))
        started.clear()  # else Lightning's observer would kill this process for theirs
        with stop_signals(self._end_by_signal):
            try:
                store = self._store(rank, world_size)
                attempt = self._opened(store, world_size) if rank == 0 else _joined(store, rank)
            except dist.DistError as error:
                raise ProcessLost("rank 0 has died before the first round", rank == 1) from error
            Liveness(attempt, rank, world_size, self.process_timeout, self.children).start()
            self.accelerator.setup_device(self.root_device)
            backend = self.process_group_backend or ("gloo" if self.root_device.type == "cpu" else "nccl")
            device = None if backend == "gloo" else self.root_device
            options: dict[str, Any] = {"rank": rank, "world_size": world_size, "timeout": FOR_EVER}
            dist.init_process_group(backend, store=attempt, device_id=device, **options)

    def _store(self, rank: int, world_size: int) -> dist.Store:
        """The store of rank 0, on loopback if there is one host; or of torchrun."""
        environment = self.cluster_environment
        assert environment is not None
        host = environment.main_address
        port = environment.main_port
        is_alone = self.num_nodes == 1 and type(environment) is LightningEnvironment  # not torchrun's, not SLURM's
        is_server = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        listening = None
        if is_alone and host in (LOOPBACK, "localhost"):
            host = LOOPBACK
            for name in {"lo", "lo0"}.intersection(name for _, name in socket.if_nameindex()):  # Linux, macOS
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            if is_server:
                listening = socket.create_server((host, port), backlog=world_size).detach()
        options: dict[str, Any] = {"timeout": TO_MEET, "wait_for_workers": False, "master_listen_fd": listening}
        return dist.TCPStore(host, port, world_size, is_server, **options)

    def _opened(self, store: dist.Store, world_size: int) -> dist.Store:
        """On rank 0, a part of the store for this attempt of the run alone, when all ranks have joined it.

        torchrun keeps its store over restarts, with addresses of the dead, and every host counts its own restarts. So
        each rank asks with a random word, and rank 0 answers with the random name of the attempt until it is there.
        """
        name = f"attempt-{secrets.token_hex(8)}"
        attempt = dist.PrefixStore(name, store)
        attempt.set("beat/0", "0 work")
        attempt.set("end", "")
        missing = [*range(1, world_size)]
        deadline = time.monotonic() + TO_MEET.total_seconds()
        while missing:
            for other in missing:
                if store.check([f"asks/{other}"]):  # perhaps of an attempt before: nobody reads the answer
                    store.set(f"answer/{store.get(f'asks/{other}').decode()}", name)
            missing = [other for other in missing if not attempt.check([f"beat/{other}"])]
            self._check_children()
            if missing and time.monotonic() > deadline:
                ranks = ", ".join(map(str, missing))
                raise TimeoutError(f"rank {ranks} did not come within {TO_MEET.total_seconds():g} s")
            time.sleep(0.02)
        return attempt

    def _check_children(self) -> None:
        """A child that died would be waited for in vain."""
        for rank, child in self.children.items():
            code = child.poll()
            if not code:
                continue
            if code == liveness.REFUSED:  # it has said why
                raise SystemExit(code)
            if code > 128:
                self._end_by_signal(code - 128)
            raise ProcessLost(f"rank {rank} has died before the first round ({liveness.ending(child)})", True)

    def _end_by_signal(self, number: int) -> NoReturn:
        """End this process and its children by a signal that came while ranks meet; rank 0 says so."""
        self.end_children()
        if self.global_rank == 0:
            sys.stderr.write(f"fedlit: stopped by {signal.Signals(number).name} before the first round\n")
        liveness.end(128 + number)


def _joined(store: dist.Store, rank: int) -> dist.Store:
    """The part of the store for this attempt, where a rank gives its first sign of life."""
    word = secrets.token_hex(8)
    store.set(f"asks/{rank}", word)
    attempt = dist.PrefixStore(store.get(f"answer/{word}").decode(), store)
    attempt.set(f"beat/{rank}", "0 work")
    return attempt


def make_fabric(options: Options) -> Fabric:
    """Fabric as the user's options have it; several processes share clients, not gradients."""
    several = options.num_nodes > 1 or str(options.devices) not in ("1", "auto")
    timeout = options.process_timeout
    wanted: dict[str, Any] = {"num_nodes": options.num_nodes, "precision": options.precision}
    try:
        if options.processes_per_device > 1:
            each = _devices(options.accelerator, options.devices)
            shared = [device for device in each for _ in range(options.processes_per_device)]
            return Fabric(strategy=ClientParallelStrategy(timeout, shared), **wanted)
        strategy = ClientParallelStrategy(timeout) if several else "auto"
        return Fabric(accelerator=options.accelerator, devices=options.devices, strategy=strategy, **wanted)
    except Exception as error:  # Fabric raises many kinds
        names = ("accelerator", "devices", "num_nodes")
        given = ", ".join(f"`trainer.{name}` {getattr(options, name)}" for name in names)
        what = f"{given} with `trainer.precision` {options.precision} cannot be had here"
        raise ValueError(f"{what}: {first_line(error)}") from error


def _devices(accelerator: str, devices: int | str) -> list[torch.device]:
    """The devices that Fabric would use."""
    strategy = Fabric(accelerator=accelerator, devices=devices).strategy
    return [*(getattr(strategy, "parallel_devices", None) or [strategy.root_device])]
