"""A real SuperLink and real SuperNodes on 127.0.0.1, with TLS and keys; every process is ended by its own id.

A node that ends by itself is started again, as `Restart=always` of the unit in docs/deploy.md does: the SuperLink takes
one that was killed for alive until its heartbeats are missed, and refuses it meanwhile.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from forked import free_port

BIN = Path(sys.executable).parent
RESTART_SECONDS = 10  # as `RestartSec` of the unit
EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes"]


def openssl(folder, *args):
    subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)


def write_keys(folder: Path, num_nodes: int) -> None:
    """An authority, a certificate of the server for loopback, and a key for each node."""
    folder.mkdir()
    openssl(folder, "req", "-x509", *EC, "-days", "2", "-subj", "/CN=CA", "-keyout", "ca.key", "-out", "ca.crt")
    openssl(folder, "req", *EC, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-out", "server.crt"]
    openssl(folder, "x509", "-req", "-in", "server.csr", *signed)
    for k in range(num_nodes):
        key = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", f"node_{k}"]
        subprocess.run(key, cwd=folder, check=True)


class Loopback:
    """One SuperLink and its SuperNodes.

    Args:
        folder: Of keys, logs, states and runs.
        num_nodes: One for each client.
    """

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self.folder = folder
        self.num_nodes = num_nodes
        self.processes: dict[str, subprocess.Popen] = {}
        self.commands: dict[str, list[str]] = {}
        self.port = free_port()
        self.node_ports = [free_port() for _ in range(num_nodes)]
        home = folder / "home"
        home.mkdir(parents=True)
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        write_keys(folder / "keys", num_nodes)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loop"\n\n[superlink.loop]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{folder}/keys/ca.crt"\n'
        )

    def start_link(self) -> None:
        keys = self.folder / "keys"
        tls = [f"--ssl-certfile={keys}/server.crt", f"--ssl-keyfile={keys}/server.key"]
        where = ["--host=127.0.0.1", f"--port={self.port}", f"--ssl-ca-certfile={keys}/ca.crt"]
        safe = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self._start("link", "flower-superlink", *where, *tls, *safe)
        self._wait_for_port()
        for k in range(self.num_nodes):
            self.flwr("supernode", "register", f"{keys}/node_{k}.pub", "loop")

    def start_node(self, k: int) -> None:
        keys = self.folder / "keys"
        whose = [f"--auth-supernode-private-key={keys}/node_{k}", f"--root-certificates={keys}/ca.crt"]
        where = [f"--superlink=127.0.0.1:{self.port}", "--host=127.0.0.1", f"--port={self.node_ports[k]}"]
        config = f'client={k} state="{self.folder}/state_{k}"'
        self._start(f"node_{k}", "flower-supernode", *where, *whose, "--node-config", config)

    def run(self, app: Path) -> None:
        self.flwr("run", str(app), "loop", "--run-config", f'folder="{self.folder}/server" reply-timeout=1800')

    def flwr(self, *args: str) -> None:
        done = subprocess.run([str(BIN / "flwr"), *args], env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def kill(self, name: str) -> None:
        """kill -9 of a process and of all that it has started."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session: nobody else's process is in it
        process.wait()

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def _start(self, name: str, program: str, *args: str) -> None:
        self.commands[name] = [str(BIN / program), *args]
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                self.commands[name],
                env=self.environment,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def _restart(self) -> None:
        """Start again what has ended by itself, without what it has left running."""
        for name in [name for name, process in self.processes.items() if process.poll() is not None]:
            self.kill(name)
            time.sleep(RESTART_SECONDS)
            program, *args = self.commands[name]
            self._start(name, Path(program).name, *args)

    def _wait_for_port(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.5)
        raise TimeoutError("the SuperLink does not listen")

    def events(self) -> str:
        """What the server has noted so far."""
        found = sorted((self.folder / "server").rglob("events.jsonl"))
        return found[-1].read_text() if found else ""

    def wait_until(self, is_so, seconds: float = 1800) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, self.events()
            self._restart()
            time.sleep(0.5)
