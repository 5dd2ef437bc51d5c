"""How the processes of a run find each other: on the loopback interface, unless there are several machines.

torch by itself listens on all interfaces, asks a resolver for the name of the host, and gives up on a process that is
slower than half an hour. Here all processes of one host stay on 127.0.0.1, and how long one waits for another is the
heartbeat's business.
"""

import os
import shutil
import socket
import sys
import tempfile
from datetime import timedelta
from functools import partial
from subprocess import Popen

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy
from torch import nn
from tqdm.auto import tqdm  # type: ignore[import-untyped]  # tqdm carries no types

from fedlit.engine.cluster import heartbeat
from fedlit.engine.cluster.attempts import place_of_this_attempt
from fedlit.engine.cluster.endings import all_are_born, end_unmet
from fedlit.engine.cluster.heartbeat import Heartbeat
from fedlit.records.stop_signals import stop_signals

LOOPBACK = "127.0.0.1"
INTERFACES = ("lo", "lo0")  # what Linux and macOS call it
FOR_EVER = timedelta(days=365)
TO_MEET = timedelta(minutes=10)  # for all to be there once one is
MEETING_PLACE = "FEDLIT_MEETING_PLACE"  # a folder, which rank 0 tells those that it starts


class ClientParallelStrategy(DDPStrategy):
    """Processes that share no module: DDP would average gradients of clients, and forbid different networks.

    Args:
        process_timeout: Seconds without a sign of life after which a process is taken for dead.
        is_talkative: Tell a person who is waited for.
        devices: Of each process of this machine; by default those that Fabric was given. Processes that share one talk
            by gloo, for NCCL wants a device of its own for each.
    """

    def __init__(self, process_timeout: float, is_talkative: bool, devices: list[torch.device] | None = None) -> None:
        super().__init__(
            parallel_devices=devices, process_group_backend=None if devices is None else "gloo", timeout=FOR_EVER
        )
        self.process_timeout = process_timeout
        self.is_talkative = is_talkative

    @property
    def distributed_sampler_kwargs(self) -> None:  # type: ignore[override]  # Fabric asks whether it is None
        return None

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]  # not wrapped, on purpose
        return module

    def prepare_meeting(self) -> None:
        """Before rank 0 starts the others: a file to meet in. A client of torch's TCP store would ask a resolver."""
        is_starting_others = "LOCAL_RANK" not in os.environ
        if is_starting_others and self._is_on_one_host():
            os.environ[MEETING_PLACE] = tempfile.mkdtemp(prefix="fedlit-meeting-")

    def setup_environment(self) -> None:
        children = self._taken_children()
        with all_are_born(children), stop_signals(partial(end_unmet, children, self.global_rank)):
            if not dist.is_initialized() and self._is_on_one_host():
                self._meet_on_loopback()
            elif not dist.is_initialized() and self._is_of_torchrun():
                self._meet_after_restarts()
            super().setup_environment()
        heart = heartbeat.current()
        if heart is None:
            self._begin_heartbeat(children)
        else:  # a second federation of a script finds everybody there
            heart.timeout = self.process_timeout

    def end_children(self) -> None:
        """Those that were started and have not been met."""
        for child in getattr(self.launcher, "procs", []):
            child.kill()

    def _taken_children(self) -> dict[int, Popen]:
        """By rank. Lightning's own observer, once it has none to look after, does not kill this process for theirs."""
        started = getattr(self.launcher, "procs", [])
        first = self.node_rank * self.num_processes + 1
        children = dict(enumerate(started, start=first))
        started.clear()
        return children

    def _is_on_one_host(self) -> bool:
        """Whether nobody (torchrun, SLURM, MASTER_ADDR) says otherwise."""
        environment = self.cluster_environment
        if self.num_nodes > 1 or type(environment) is not LightningEnvironment:
            return False
        return environment.main_address in (LOOPBACK, "localhost")

    def _is_of_torchrun(self) -> bool:
        """Whether torchrun started this process and keeps the store in which all meet."""
        is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return is_kept and type(self.cluster_environment) is TorchElasticEnvironment

    def _meet_on_loopback(self) -> None:
        assert self.cluster_environment is not None
        names = {name for _, name in socket.if_nameindex()}
        for name in names.intersection(INTERFACES):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        store = _store(self.cluster_environment.main_port, self.local_rank, self.num_processes)
        self._meet(store, self.local_rank, self.num_processes)

    def _meet_after_restarts(self) -> None:
        """Not where processes of the attempt before have left their addresses."""
        assert self.cluster_environment is not None
        address = self.cluster_environment.main_address
        port = self.cluster_environment.main_port
        rank = self.cluster_environment.global_rank()
        world_size = self.cluster_environment.world_size()
        kept = dist.TCPStore(address, port, world_size, is_master=False, timeout=TO_MEET)
        self._meet(place_of_this_attempt(kept, rank, world_size, TO_MEET), rank, world_size)

    def _meet(self, store: dist.Store, rank: int, world_size: int) -> None:
        """As Lightning would, which then finds it done; but in a store of ours."""
        assert self.accelerator is not None
        self.accelerator.setup_device(self.root_device)
        backend = self.process_group_backend or ("gloo" if self.root_device.type == "cpu" else "nccl")
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=FOR_EVER,
            device_id=None if backend == "gloo" else self.root_device,
        )

    def _begin_heartbeat(self, children: dict[int, Popen]) -> None:
        heart = Heartbeat(self.global_rank, self.world_size, self.process_timeout, self._say, children)
        where = torch.zeros(2, dtype=torch.int64, device=wire(self.root_device))
        is_local = self._is_on_one_host()
        if heart.rank == 0:
            where += torch.tensor(heart.listen(LOOPBACK if is_local else ""), device=where.device)
        dist.all_reduce(where)  # the others give zeros; and all have met
        shutil.rmtree(os.environ.pop(MEETING_PLACE, ""), ignore_errors=True)
        if heart.rank > 0:
            assert self.cluster_environment is not None
            host = LOOPBACK if is_local else self.cluster_environment.main_address
            heart.connect(host, *where.tolist())
        heartbeat.begin(heart)

    def _say(self, line: str) -> None:
        if self.is_talkative:
            tqdm.write(f"fedlit: {line}", file=sys.stderr)


def wire(device: torch.device) -> torch.device:
    """Where tensors of a process on this device must lie to be sent."""
    return torch.device("cpu") if dist.get_backend() == "gloo" else device


def _store(port: int, rank: int, world_size: int) -> dist.Store:
    """Where processes leave their addresses: a file, or a socket of rank 0 that others of the network cannot reach."""
    place = os.environ.get(MEETING_PLACE)
    if place is not None:
        store = dist.FileStore(f"{place}/addresses", world_size)
        store.set_timeout(TO_MEET)
        return store
    if rank > 0:
        return dist.TCPStore(LOOPBACK, port, world_size, is_master=False, timeout=TO_MEET)
    door = socket.create_server((LOOPBACK, port), backlog=world_size)
    return dist.TCPStore(
        LOOPBACK,
        port,
        world_size,
        is_master=True,
        timeout=TO_MEET,
        wait_for_workers=False,
        master_listen_fd=door.detach(),
    )
