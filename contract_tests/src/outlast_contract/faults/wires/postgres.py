"""The frontend/backend protocol of PostgreSQL, version 3."""

import struct

from outlast_contract.faults.wires.base import Piece, Wire

_ASKS_FOR_ENCRYPTION = (80877103, 80877104)
"""Codes of requests that are answered by one byte."""


_STEPS = b"PBDEC"
"""Messages that are answered each by one of the next."""
_ENDS_OF_STEPS = b"123TnCIs"


class PostgresWire(Wire):
    """A request goes up to Sync, a simple query or Flush; a reply up to ReadyForQuery, or the last
    answer before a Flush.
    """

    def __init__(self) -> None:
        self.is_established: bool = False
        self._sent = bytearray()
        self._received = bytearray()
        self._request = 0
        """How much of what was sent was looked at already."""
        self._reply = 0
        self._started = False
        self._bytes_due = 0
        self._steps = 0
        self._due: list[int | None] = []
        """Of each request how many steps are to be answered; ``None``: up to ReadyForQuery."""

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
            self._steps += kind in _STEPS
            if kind in b"QSFXH":
                is_end = kind == b"X" or (kind == b"H" and not self._steps)
                found.append(Piece(bytes(self._sent[:end]), "notice" if is_end else "call"))
                if not is_end:
                    self._due.append(self._steps if kind == b"H" else None)
                del self._sent[:end]
                self._request, self._steps = 0, 0
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
            kind = bytes(self._received[self._reply : self._reply + 1])
            (length,) = struct.unpack_from("!i", self._received, self._reply + 1)
            end = self._reply + 1 + length
            if len(self._received) < end:
                break
            self._reply = end
            if self._is_last(kind):
                found.append(bytes(self._received[:end]))
                del self._received[:end]
                self._reply = 0
        return found if was_established else [data]

    def _is_last(self, kind: bytes) -> bool:
        """Whether a reply ends with this message."""
        due = self._due[0] if self._due else None
        if due is None:
            is_last = kind == b"Z"
            self.is_established = self.is_established or is_last
        else:
            self._due[0] = due - (kind in _ENDS_OF_STEPS)
            is_last = kind == b"E" or self._due[0] == 0
        if is_last and self._due:
            del self._due[0]
        return is_last

    def rest(self) -> bytes:
        rest = bytes(self._received) if self.is_established else b""
        self._received.clear()
        self._reply = 0
        return rest


__all__ = ["PostgresWire"]
