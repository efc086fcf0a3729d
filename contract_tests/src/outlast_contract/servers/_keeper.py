"""The process that keeps one server for all who use it: ``python -m ... KIND HOME [ARGUMENT ...]``.

Users hold a connection to its socket; when the last one is gone, however it went, the server is
killed, its folder removed, and the keeper ends. The server's processes die with the keeper. Whoever
starts a keeper holds the lock on HOME until it has a connection.
"""

import contextlib
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outlast_contract.servers._children import Node, StartError
from outlast_contract.servers._kinds import RECIPES
from outlast_contract.servers._locate import locate
from outlast_contract.servers._programs import Search
from outlast_contract.servers._recipe import SOCKET, Recipe, address
from outlast_contract.servers._wire import Ports

_START_ATTEMPTS = 3
_FIRST_USER_TIMEOUT = 10.0
_RETRY = 0.05


class Keeper:
    """One running server.

    Args:
        recipe: Of its kind; its programs were found.
        make_node: Makes a node, of the file for its log.
        home: Holds data, logs and the socket.
    """

    def __init__(self, recipe: Recipe, make_node: Callable[[Path], Node], home: Path) -> None:
        self._recipe = recipe
        self._make_node = make_node
        self._home = home
        self._ports: list[int] = []
        self._taken: Ports | None = None
        self._children: list[Node] = []

    def start(self) -> None:
        """Start all nodes on ports of our choice.

        Raises:
            StartError: It did not work.
        """
        for attempt in range(_START_ATTEMPTS):
            try:
                self._start_once()
            except StartError as error:
                self.kill_all()
                # Somebody else may have taken a port between our look and the server's.
                if attempt + 1 == _START_ATTEMPTS or "ddress already in use" not in str(error):
                    raise
            else:
                return

    def _start_once(self) -> None:
        recipe = self._recipe
        empty(self._home)
        self._taken = Ports(recipe.nodes * recipe.ports_per_node)
        self._ports = self._taken.numbers
        self._children = [
            self._make_node(self._home / f"node{node}.log") for node in range(recipe.nodes)
        ]
        recipe.prepare(self._home, self._ports)
        for node in range(recipe.nodes):
            self.start_node(node)
        recipe.settle(self._ports)
        self._wait_until_ready(0)

    def start_node(self, node: int) -> None:
        """Start a node, the first time or again, and wait until it serves."""
        recipe = self._recipe
        port = address(self._ports, node, recipe.ports_per_node)[1]
        self._children[node].start(
            recipe.command(self._home, self._ports, node),
            lambda: recipe.is_up(port),
            recipe.start_timeout,
        )

    def _wait_until_ready(self, node: int) -> None:
        recipe = self._recipe
        self._children[node].wait_until(lambda: recipe.is_ready(self._ports), recipe.start_timeout)

    def kill_all(self) -> None:
        """Kill every node."""
        for child in self._children:
            child.discard()
        if self._ports:
            for path in self._recipe.leftovers(self._ports):
                path.unlink(missing_ok=True)
        if self._taken is not None:
            self._taken.give_back()

    def describe(self) -> dict[str, Any]:
        """What a user needs to know."""
        recipe = self._recipe
        return {
            "url": recipe.url(self._ports),
            "options": recipe.options(self._ports),
            "ports": self._ports,
            "addresses": [
                address(self._ports, node, recipe.ports_per_node) for node in range(recipe.nodes)
            ],
        }

    def do(self, request: dict[str, Any]) -> Any:
        """Carry out what a user asks."""
        node = int(request.get("node", 0))
        child = self._children[node]
        match request["do"]:
            case "describe":
                return self.describe()
            case "pid":
                return child.pid
            case "log":
                return child.log()
            case "kill":
                return child.kill()
            case "stop":
                return child.stop()
            case "cont":
                return child.cont()
            case "restart":
                child.kill()
                self.start_node(node)
                if all(other.pid for other in self._children):
                    self._wait_until_ready(node)
                return None
            case other:
                raise StartError(f"unknown request {other!r}")


class Desk:
    """Serves the users of a keeper at its socket, until the last one is gone."""

    def __init__(self, keeper: Keeper, home: Path, lock: int) -> None:
        self._keeper = keeper
        self._lock = lock
        self._users = 0
        self._last: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(home / SOCKET))
        self._listener.listen()
        self._listener.settimeout(0)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Return when nobody uses the server, and nobody is about to."""
        timeout: float | None = _FIRST_USER_TIMEOUT
        while True:
            events = self._selector.select(timeout)
            for key, _ in events:
                if key.fileobj is self._listener:
                    self._welcome()
                else:
                    self._answer(key.fileobj, key.data)
            if self._users:
                timeout = None
            elif not events and self._has_lock():
                if not self._selector.select(0):
                    return
                # Somebody connected before we had the lock.
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            else:
                timeout = _RETRY

    def _has_lock(self) -> bool:
        """Whether nobody is between looking for this keeper and connecting to it."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _welcome(self) -> None:
        with contextlib.suppress(BlockingIOError):
            user, _ = self._listener.accept()
            self._users += 1
            if self._last is not None:
                self._last.close()
            self._selector.register(user, selectors.EVENT_READ, bytearray())

    def _answer(self, user: Any, pending: bytearray) -> None:
        try:
            data = user.recv(4096)
        except OSError:
            data = b""
        pending += data
        while b"\n" in pending:
            line, _, rest = bytes(pending).partition(b"\n")
            pending[:] = rest
            try:
                answer = {"ok": self._keeper.do(json.loads(line))}
            except (StartError, OSError, ValueError, IndexError) as error:
                answer = {"error": str(error) or type(error).__name__}
            with contextlib.suppress(OSError):
                user.sendall(json.dumps(answer).encode() + b"\n")
        if not data:
            self._selector.unregister(user)
            self._users -= 1
            if self._users:
                user.close()
            else:
                # Closed by our end, so that who left last sees when everything is gone.
                self._last = user


def empty(home: Path) -> None:
    """Remove everything in ``home``."""
    for entry in home.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _leave(number: int, frame: object) -> None:
    sys.exit(0)


def main(kind: str, home: Path, arguments: Sequence[str]) -> int:
    """Keep a server of ``kind`` in ``home``; print one line of JSON when it is up, or why not."""
    recipe = RECIPES[kind](arguments)
    make_node = locate(recipe, Search())
    assert make_node is not None, "whoever starts a keeper has looked"
    keeper = Keeper(recipe, make_node, home)
    lock = os.open(home, os.O_RDONLY)
    signal.signal(signal.SIGTERM, _leave)
    try:
        try:
            keeper.start()
            desk = Desk(keeper, home, lock)
        except (StartError, OSError) as error:
            print(json.dumps({"error": f"{kind}: {error}"}), flush=True)
            return 1
        print(json.dumps({"ok": True}), flush=True)
        sys.stdout.close()
        desk.serve()
        return 0
    finally:
        keeper.kill_all()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    if os.fork():
        # Whoever started us has nothing to wait for.
        os._exit(0)
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
