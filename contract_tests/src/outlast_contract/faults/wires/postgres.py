"""The frontend/backend protocol of PostgreSQL, version 3."""

import struct
from collections import deque

from outlast_contract.faults.wires.base import Piece, Wire

_ASKS_FOR_ENCRYPTION = (80877103, 80877104)
"""Codes of requests that are answered by one byte."""


_READY = b"Z"
_DESCRIBED = b"TnE"
"""What the answer to Flush ends with, if a client describes what it prepared (asyncpg)."""


class PostgresWire(Wire):
    """A request goes up to Sync, Flush or a simple query, a reply up to ReadyForQuery; that to
    Flush up to the description of a statement.
    """

    def __init__(self) -> None:
        self.is_established = False
        self._sent = bytearray()
        self._received = bytearray()
        self._request = 0
        """How much of what was sent was looked at already."""
        self._reply = 0
        self._started = False
        self._bytes_due = 0
        self._ends: deque[bytes] = deque()
        """What the replies that are due end with, each one of some kinds of message."""

    def requests(self, data: bytes) -> list[Piece]:
        if not self.is_established:
            self._watch_start(data)
            return [Piece(data, "setup")]
        self._sent += data
        found: list[Piece] = []
        while len(self._sent) >= self._request + 5:
            kind = self._sent[self._request : self._request + 1]
            (length,) = struct.unpack_from("!i", self._sent, self._request + 1)
            end = self._request + 1 + length
            if len(self._sent) < end:
                break
            self._request = end
            if kind in b"QSFHX":
                is_end = kind == b"X"
                if not is_end:
                    self._ends.append(_DESCRIBED if kind == b"H" else _READY)
                found.append(Piece(bytes(self._sent[:end]), "notice" if is_end else "call"))
                del self._sent[:end]
                self._request = 0
        return found

    def _watch_start(self, data: bytes) -> None:
        self._sent += data
        while not self._started and len(self._sent) >= 8:
            length, code = struct.unpack_from("!ii", self._sent)
            if len(self._sent) < length:
                return
            del self._sent[:length]
            if code in _ASKS_FOR_ENCRYPTION:
                self._bytes_due += 1
            else:
                self._started = True
        if self._started:
            self._sent.clear()  # passwords; the client then waits for ReadyForQuery

    def replies(self, data: bytes) -> list[bytes]:
        was_established = self.is_established
        self._received += data
        due = min(self._bytes_due, len(self._received))
        self._bytes_due -= due
        del self._received[:due]
        found: list[bytes] = []
        while len(self._received) >= self._reply + 5:
            kind = self._received[self._reply : self._reply + 1]
            (length,) = struct.unpack_from("!i", self._received, self._reply + 1)
            end = self._reply + 1 + length
            if len(self._received) < end:
                break
            self._reply = end
            if kind in (self._ends[0] if self._ends else _READY):
                if self._ends:
                    self._ends.popleft()
                found.append(bytes(self._received[:end]))
                del self._received[:end]
                self._reply = 0
                self.is_established = True
        return found if was_established else [data]

    def rest(self) -> bytes:
        rest = bytes(self._received) if self.is_established else b""
        self._received.clear()
        self._reply = 0
        return rest


__all__ = ["PostgresWire"]
