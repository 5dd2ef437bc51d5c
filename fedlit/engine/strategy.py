"""How the ranks of a run find each other: in a store of rank 0, on loopback if there is one host, or of torchrun."""

import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from subprocess import Popen
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import DDPStrategy
from torch import nn
from tqdm.auto import tqdm

from fedlit.engine import liveness
from fedlit.engine.liveness import Liveness, ProcessLost
from fedlit.engine.options import Options
from fedlit.records.stop_signals import stop_signals

LOOPBACK = "127.0.0.1"
FOR_EVER = timedelta(days=365)  # how long one rank waits for another is decided by `Liveness`
TO_MEET = timedelta(minutes=10)  # for all ranks to be there once one is


class ClientParallelStrategy(DDPStrategy):
    """Processes that share no module: DDP would average gradients of clients, and forbid different networks.

    Args:
        process_timeout: Seconds without a sign of life after which a rank is taken for dead.
        is_talkative: Print which rank is waited for.
        devices: Of each process of this host; by default those that Fabric was given. Processes that share one use
            gloo, since NCCL needs a device for each.
    """

    def __init__(self, process_timeout: float, is_talkative: bool, devices: list[torch.device] | None = None) -> None:
        backend = None if devices is None else "gloo"
        super().__init__(parallel_devices=devices, process_group_backend=backend, timeout=FOR_EVER)
        self.process_timeout = process_timeout
        self.is_talkative = is_talkative
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of children: a lost store is reported in one line

    @property
    def distributed_sampler_kwargs(self) -> None:  # type: ignore[override]  # Fabric asks whether it is None
        return None

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]  # not wrapped, on purpose
        return module

    def setup_environment(self) -> None:
        alive = liveness.current()
        if dist.is_initialized():
            if alive is not None:  # a second federation of a script
                alive.timeout = self.process_timeout
        else:
            self._meet()
        super().setup_environment()

    def end_children(self) -> None:
        """Kill children that were started and have not joined."""
        for child in getattr(self.launcher, "procs", []):
            child.kill()

    def _meet(self) -> None:
        environment = self.cluster_environment
        assert environment is not None
        assert self.accelerator is not None
        environment.set_global_rank(self.node_rank * self.num_processes + self.local_rank)
        environment.set_world_size(self.num_nodes * self.num_processes)
        rank = environment.global_rank()
        world_size = environment.world_size()
        started = getattr(self.launcher, "procs", [])
        children = dict(enumerate(started, start=rank + 1))
        started.clear()  # else Lightning's observer would kill this process for theirs
        with stop_signals(partial(liveness.end_by_signal, children, rank)):
            try:
                attempt = join_attempt(self._store(rank, world_size), rank, world_size, TO_MEET, children)
            except dist.DistError as error:
                raise ProcessLost("rank 0 has died before the first round", rank == 1) from error
            alive = Liveness(attempt, rank, world_size, self.process_timeout, self._say, children)
            alive.start()
            self.accelerator.setup_device(self.root_device)
            backend = self.process_group_backend or ("gloo" if self.root_device.type == "cpu" else "nccl")
            device = None if backend == "gloo" else self.root_device
            options: dict[str, Any] = {"rank": rank, "world_size": world_size, "timeout": FOR_EVER}
            dist.init_process_group(backend, store=attempt, device_id=device, **options)
        alive.has_met = True

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

    def _say(self, line: str) -> None:
        if self.is_talkative:
            tqdm.write(f"fedlit: {line}", file=sys.stderr)


def make_fabric(options: Options) -> Fabric:
    """Fabric as the user's options have it; several processes share clients, not gradients."""
    several = options.num_nodes > 1 or str(options.devices) not in ("1", "auto")
    timeout = options.process_timeout
    talkative = options.enable_progress_bar
    wanted: dict[str, Any] = {"num_nodes": options.num_nodes, "precision": options.precision}
    try:
        if options.processes_per_device > 1:
            each = _devices(options.accelerator, options.devices)
            shared = [device for device in each for _ in range(options.processes_per_device)]
            return Fabric(strategy=ClientParallelStrategy(timeout, talkative, shared), **wanted)
        strategy = ClientParallelStrategy(timeout, talkative) if several else "auto"
        return Fabric(accelerator=options.accelerator, devices=options.devices, strategy=strategy, **wanted)
    except Exception as error:  # Fabric raises many kinds
        names = ("accelerator", "devices", "num_nodes")
        given = ", ".join(f"`trainer.{name}` {getattr(options, name)}" for name in names)
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{given} with `trainer.precision` {options.precision} cannot be had here: {why}") from error


def _devices(accelerator: str, devices: int | str) -> list[torch.device]:
    """The devices that Fabric would use."""
    strategy = Fabric(accelerator=accelerator, devices=devices).strategy
    return [*(getattr(strategy, "parallel_devices", None) or [strategy.root_device])]


def join_attempt(
    store: dist.Store, rank: int, world_size: int, patience: timedelta, children: Mapping[int, Popen]
) -> dist.Store:
    """A part of the store for this attempt of the run alone; there all ranks have given their first sign of life.

    torchrun keeps its store over restarts, with addresses of the dead, and attempts cannot be distinguished by their
    numbers, since every host counts its own restarts. So each rank asks with a random word, and rank 0 answers with the
    random name of the attempt until the rank is seen there.

    Args:
        store: What all ranks of all attempts can reach; its own time limit holds for ranks > 0.
        rank: Of this process.
        world_size: Number of ranks.
        patience: How long rank 0 waits for the others.
        children: Processes that this one has started, by rank; if one dies, so does the run.
    """
    if rank > 0:
        word = secrets.token_hex(8)
        store.set(f"asks/{rank}", word)
        attempt = dist.PrefixStore(store.get(f"answer/{word}").decode(), store)
        attempt.set(f"beat/{rank}", "0 work")
        return attempt
    name = f"attempt-{secrets.token_hex(8)}"
    attempt = dist.PrefixStore(name, store)
    attempt.set("beat/0", "0 work")
    attempt.set("end", "")
    missing = [*range(1, world_size)]
    deadline = time.monotonic() + patience.total_seconds()
    while missing:
        for other in missing:
            if store.check([f"asks/{other}"]):  # perhaps of an attempt before: nobody reads the answer
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", name)
        missing = [other for other in missing if not attempt.check([f"beat/{other}"])]
        liveness.end_if_one_died(children)
        if missing and time.monotonic() > deadline:
            ranks = ", ".join(map(str, missing))
            raise TimeoutError(f"rank {ranks} did not come within {patience.total_seconds():g} s")
        time.sleep(0.02)
    return attempt
