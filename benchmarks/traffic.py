"""How many bytes this process sends to servers and writes to files."""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outlast.cli.bench.rows import Sent


@contextmanager
def to_servers() -> Generator[Sent]:
    """Counts what goes through the sockets of Python, which all drivers here use."""
    sent = Sent()
    kind: Any = socket.socket
    names = ("send", "sendall", "sendmsg")
    before = {name: getattr(kind, name) for name in names}

    def counting(name: str) -> Any:
        def send(self: socket.socket, data: Any, *more: Any) -> Any:
            buffers = data if name == "sendmsg" else (data,)
            sent.count += sum(memoryview(buffer).nbytes for buffer in buffers)
            return before[name](self, data, *more)

        return send

    for name in names:
        setattr(kind, name, counting(name))
    try:
        yield sent
    finally:
        for name in names:
            delattr(kind, name)  # It covers the method of the class below.


@contextmanager
def to_files() -> Generator[Sent]:
    """Counts what is handed to the kernel for files."""
    sent = Sent()
    before = _written()
    try:
        yield sent
    finally:
        sent.count = _written() - before


def _written() -> int:
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("wchar:")))


__all__ = ["to_files", "to_servers"]
