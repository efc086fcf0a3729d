"""The handle of a server, and how a user comes by one."""

import atexit
import contextlib
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from outlast_contract.expect import NotRun
from outlast_contract.servers._errors import ServerError
from outlast_contract.servers._kinds import RECIPES
from outlast_contract.servers._locate import locate
from outlast_contract.servers._programs import Search

KINDS: Final = tuple(RECIPES)
"""The kinds of servers that `shared_server` and `start_server` know."""

REQUIRED: Final = "OUTLAST_REQUIRE_SERVERS"
"""Set to ``1``, it makes a missing server an error instead of a check that is not run."""


class ServerUnavailable(NotRun):
    """There is no such server here; the text says what was tried."""


class Server:
    """A running server; made by `shared_server` and `start_server`.

    Attributes:
        kind: Such as ``redis``.
        url: For ``outlast.open_backend``.
        options: Keywords that go with ``url``.
        addresses: Host and port of each node; of an external server as far as its URL has them.
        ports: All ports that its processes listen on.
        is_external: Whether somebody else started it: then it cannot be killed, stopped or
            restarted from here.
    """

    kind: str
    url: str
    options: Mapping[str, str]
    addresses: Sequence[tuple[str, int]]
    ports: Sequence[int]
    is_external: bool

    def __init__(self, kind: str, connection: socket.socket | None, url: str | None = None) -> None:
        """Take a server that listens behind ``connection``, or that ``url`` names."""
        self.kind = kind
        self._connection = connection
        self.is_external = connection is None
        described: dict[str, Any] = {
            "url": url,
            "options": {},
            "addresses": _named_in(url),
            "ports": [],
        }
        if connection is not None:
            self._answers = connection.makefile("rb")
            described = self._ask("describe")
        self.url = str(described["url"])
        self.ports = list(described["ports"])
        self.options = dict(described["options"])
        self.addresses = [(host, port) for host, port in described["addresses"]]

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._connection is None and not self.is_external

    def pid(self, node: int = 0) -> int | None:
        """The process of a node; ``None`` if it does not run."""
        found = self._ask("pid", node)
        return None if found is None else int(found)

    def log(self, node: int = 0) -> str:
        """The end of what a node printed."""
        return str(self._ask("log", node))

    def kill(self, node: int = 0) -> None:
        """SIGKILL a node and all that it forked, and wait until it is gone."""
        self._ask("kill", node)

    def stop(self, node: int = 0) -> None:
        """SIGSTOP a node: its connections stay, nothing answers."""
        self._ask("stop", node)

    def cont(self, node: int = 0) -> None:
        """SIGCONT a stopped node."""
        self._ask("cont", node)

    def restart(self, node: int = 0) -> None:
        """Start a node again on the same data and port, killed before if it runs; wait until it
        serves.
        """
        self._ask("restart", node)

    def close(self) -> None:
        """Give it up; with its last user the server ends, and its folder goes. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with contextlib.suppress(OSError), connection:
            self._answers.close()
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        places = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        return f"<Server {self.kind} at {places or self.kind}>"

    def _ask(self, what: str, node: int = 0) -> Any:
        if self.is_external:
            raise ServerUnavailable(
                f"the {self.kind} server is given by {RECIPES[self.kind].variable}: its process is "
                "not ours to kill, stop or restart"
            )
        if self._connection is None:
            raise ServerError(f"the {self.kind} server was closed")
        line = b""
        with contextlib.suppress(ConnectionError):
            self._connection.sendall(json.dumps({"do": what, "node": node}).encode() + b"\n")
            line = self._answers.readline()
        if not line:
            raise ServerError(f"the keeper of the {self.kind} server is gone")
        answer = json.loads(line)
        if "error" in answer:
            raise ServerError(f"{self.kind}, {what}: {answer['error']}")
        return answer["ok"]


def _named_in(url: str | None) -> list[tuple[str, int]]:
    """The host and port of a URL that names one of each."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url or "")
        if parts.hostname and parts.port:
            return [(parts.hostname, parts.port)]
    return []


_held: Final[dict[tuple[int, str, str], Server]] = {}
"""The shared servers of each process, held until it ends."""


def shared_server(kind: str) -> Server:
    """The server of this test run, started by whoever asks first; for tests that leave it alone.

    The processes of one pytest-xdist run share it. It is the same object each time, and held until
    the process ends or somebody closes it.

    Args:
        kind: One of `KINDS`.

    Raises:
        ServerUnavailable: There is none here, and none is required.
        ServerError: It did not start, or is required and missing.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"process {os.getpid()}"
    held = (os.getpid(), kind, os.environ.get(RECIPES[kind].variable) or run)
    if held not in _held or _held[held].is_closed:
        _held[held] = _server(kind, hashlib.sha256(run.encode()).hexdigest()[:10], ())
    return _held[held]


def start_server(kind: str, *arguments: str) -> Server:
    """A server of one's own, to be killed, stopped, filled or set up differently.

    Args:
        kind: One of `KINDS`.
        *arguments: Given to the server program, behind our own.

    Raises:
        ServerUnavailable: As for `shared_server`; also if the environment names a server.
        ServerError: As for `shared_server`.
    """
    return _server(kind, secrets.token_hex(5), arguments, is_own=True)


def _server(kind: str, key: str, arguments: Sequence[str], *, is_own: bool = False) -> Server:
    recipe = RECIPES[kind](arguments)
    url = os.environ.get(recipe.variable)
    if url and is_own:
        raise ServerUnavailable(
            f"{recipe.variable} names the {kind} server to use; no other one is started"
        )
    if url:
        return Server(kind, None, url)
    search = Search()
    if os.name != "posix" or locate(recipe, search) is None:
        tried = ", ".join((f"{recipe.variable} in the environment", *search.tried))
        message = f"no {kind} server here; tried {tried}"
        if os.environ.get(REQUIRED) == "1":
            raise ServerError(message)
        raise ServerUnavailable(message)
    from outlast_contract.servers._homes import enter  # for POSIX only

    return Server(kind, enter(kind, key, arguments))


@atexit.register
def _close_held() -> None:
    for (pid, _, _), server in _held.items():
        if pid == os.getpid():
            server.close()


__all__ = ["KINDS", "REQUIRED", "Server", "ServerUnavailable", "shared_server", "start_server"]
