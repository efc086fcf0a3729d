"""Short talks with servers over a socket, so that no client library is needed to start one."""

import contextlib
import random
import socket
from collections.abc import Generator

from outlast_contract.servers._recipe import HOST

PATIENCE = 2.0
"""Seconds that one answer may take."""

_LOWEST, _HIGHEST, _SECOND = 11_000, 21_999, 10_000


@contextlib.contextmanager
def talk(port: int) -> Generator[socket.socket]:
    """A connection to a port of this host."""
    with socket.create_connection((HOST, port), timeout=PATIENCE) as connection:
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


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on, each with its port + 10,000.

    They lie below the range from which the system gives ports to outgoing connections, so that a
    server that was killed finds its port free when it comes back.
    """
    candidates = random.sample(range(_LOWEST, _HIGHEST + 1), 200)
    found = [port for port in candidates if _is_free(port) and _is_free(port + _SECOND)]
    if len(found) < count:
        raise OSError(f"no {count} free ports between {_LOWEST} and {_HIGHEST}")
    return found[:count]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


__all__ = ["PATIENCE", "free_ports", "receive", "talk"]
