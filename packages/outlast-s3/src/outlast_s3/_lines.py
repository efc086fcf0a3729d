"""Requests that can be broken off: the connections of a client know which request uses them.

A client of boto3 waits for each part of an answer anew. A store, or what stands before it, that
says a byte now and then would keep it for ever.
"""

import contextlib
import socket
import threading
from collections.abc import Generator, MutableMapping
from typing import Any, Final
from weakref import WeakKeyDictionary


class Line:
    """What one request uses to reach the store.

    Attributes:
        is_cut: Whether the request was broken off, or would be if it went on.
        has_begun: Whether anything of it may have been sent.
    """

    def __init__(self) -> None:
        """None yet."""
        self._socket: socket.socket | None = None
        self.is_cut: bool = False
        self.has_begun: bool = False

    def begin(self) -> None:
        """Before anything is sent.

        Raises:
            ConnectionAbortedError: The request was broken off while it waited for a thread.
        """
        with _lock:
            self._refuse_cut()
            self.has_begun = True

    def cut(self) -> None:
        """Let the thread of the request go on at once, with an error; from any thread."""
        with _lock:
            self.is_cut = True
            # Its connection may serve another request by now.
            if self._socket is not None and _users.get(self._socket) is self:
                # Not the method of a TLS socket, which is not made for being called from outside.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def take(self, connection: socket.socket) -> None:
        """Go on by this connection.

        Raises:
            ConnectionAbortedError: The request was broken off meanwhile.
        """
        with _lock:
            self._refuse_cut()
            self._socket = connection
            _users[connection] = self

    def _refuse_cut(self) -> None:
        if self.is_cut:
            raise ConnectionAbortedError("the request was broken off")


_lock: Final = threading.Lock()
_users: Final[WeakKeyDictionary[socket.socket, Line]] = WeakKeyDictionary()
"""Who used a connection last."""


class _Current(threading.local):
    line: Line | None = None


_current: Final = _Current()


@contextlib.contextmanager
def using(line: Line) -> Generator[None]:
    """Requests inside, in this thread, use this line; with a client that `watch` knows."""
    _current.line = line
    try:
        yield
    finally:
        _current.line = None


def is_used_here() -> bool:
    """Whether this thread works for a request of ours now."""
    return _current.line is not None


def watch(classes: MutableMapping[str, Any]) -> None:
    """Let connections tell the line of their thread.

    Args:
        classes: Of urllib3's pools, by the scheme of a URL; they are replaced.
    """
    for scheme, pool in classes.items():
        connection = type("WatchedConnection", (_Watched, pool.ConnectionCls), {})
        classes[scheme] = type("WatchedPool", (pool,), {"ConnectionCls": connection})


class _Watched:
    """Over a connection of urllib3."""

    sock: socket.socket | None

    def connect(self) -> None:
        connected: Any = super()
        connected.connect()
        self._tell()

    def request(self, *arguments: Any, **named: Any) -> Any:
        self._tell()
        requested: Any = super()
        return requested.request(*arguments, **named)

    def _tell(self) -> None:
        line = _current.line
        if line is not None and self.sock is not None:
            line.take(self.sock)


__all__ = ["Line", "is_used_here", "using", "watch"]
