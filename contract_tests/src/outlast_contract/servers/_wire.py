"""Short talks with servers over a socket, so that no client library is needed to start one."""

import contextlib
import random
import socket
import sys
from collections.abc import Generator

from outlast_contract.servers._recipe import HOST

PATIENCE = 2.0
"""Seconds that one answer may take, of those that are asked for again and again."""
LONG = 30.0
"""Seconds that one answer may take that is asked for once."""

_LOWEST, _HIGHEST, _SECOND = 11_000, 21_999, 10_000


@contextlib.contextmanager
def talk(port: int, patience: float = PATIENCE) -> Generator[socket.socket]:
    """A connection to a port of this host."""
    with socket.create_connection((HOST, port), timeout=patience) as connection:
        yield connection


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
    return data


class Ports:
    """Ports of the loopback interface that nothing listens on, each with its port + 10,000; nobody
    else gets them from here before they are given back, whether something listens there or not.

    They lie below the range from which the system gives ports to outgoing connections, so that a
    server that was killed finds its port free when it comes back.

    Attributes:
        numbers: The ports.
    """

    def __init__(self, count: int) -> None:
        """Take so many.

        Raises:
            OSError: There are not so many.
        """
        self.numbers: list[int] = []
        self._marks: list[socket.socket] = []
        for port in random.sample(range(_LOWEST, _HIGHEST + 1), 200):
            if len(self.numbers) < count and self._take(port):
                self.numbers.append(port)
        if len(self.numbers) < count:
            self.give_back()
            raise OSError(f"no {count} free ports between {_LOWEST} and {_HIGHEST}")

    def give_back(self) -> None:
        """Let others have them."""
        for mark in self._marks:
            mark.close()
        self._marks.clear()

    def _take(self, port: int) -> bool:
        marks = [mark for mark in map(_mark, (port, port + _SECOND)) if mark is not None]
        if len(marks) == 2 and _is_free(port) and _is_free(port + _SECOND):
            self._marks += marks
            return True
        for mark in marks:
            mark.close()
        return False


def _mark(port: int) -> socket.socket | None:
    """What shows other processes that a port is taken, as long as this one lives; ``None``: it is.

    A name that is in no folder, which Linux has: there are as many of them as networks.
    """
    mark = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform == "linux":
            mark.bind(f"\0outlast-port-{port}")
    except OSError:
        mark.close()
        return None
    return mark


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


__all__ = ["LONG", "PATIENCE", "Ports", "receive", "talk"]
