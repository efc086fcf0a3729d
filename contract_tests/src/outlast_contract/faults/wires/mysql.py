"""The client/server protocol of MySQL and MariaDB."""

from collections.abc import Generator
from typing import Final

from outlast_contract.faults.wires.base import Kind, Piece, Wire

_FULL: Final = 0xFFFFFF
_CLIENT_DEPRECATE_EOF: Final = 1 << 24
_MORE_RESULTS: Final = 0x0008
_QUIT, _PREPARE, _LONG_DATA, _CLOSE_STATEMENT = 0x01, 0x16, 0x18, 0x19
_QUERY, _EXECUTE = 0x03, 0x17
_UNANSWERED = frozenset({_QUIT, _LONG_DATA, _CLOSE_STATEMENT})
_OK, _LOCAL_FILE, _EOF, _ERROR = 0x00, 0xFB, 0xFE, 0xFF

_Reading = Generator[None, bytes, None]
"""Takes the packets of one reply, one after the other, and ends with the last."""


class MysqlWire(Wire):
    """A request is one command, a reply all packets that answer it."""

    def __init__(self) -> None:
        self.is_established: bool = False
        self._sent = bytearray()
        self._received = bytearray()
        self._reply = 0
        """How much of what was received was looked at already."""
        self._without_eof: bool | None = None
        self._commands: list[int] = []
        self._reading: _Reading | None = None

    def requests(self, data: bytes) -> list[Piece]:
        self._sent += data
        if not self.is_established:
            if self._without_eof is None and len(self._sent) >= 8:
                flags = int.from_bytes(self._sent[4:8], "little")
                self._without_eof = bool(flags & _CLIENT_DEPRECATE_EOF)
            return [Piece(data, "setup")]
        found: list[Piece] = []
        while (end := _message_end(self._sent, 0)) is not None:
            command = self._sent[4]
            if command not in _UNANSWERED:
                self._commands.append(command)
            kind: Kind = "notice" if command in _UNANSWERED else "call"
            found.append(Piece(bytes(self._sent[:end]), kind))
            del self._sent[:end]
        return found

    def replies(self, data: bytes) -> list[bytes]:
        self._received += data
        if not self.is_established:
            self._watch_handshake()
            return [data]
        found: list[bytes] = []
        while (end := _message_end(self._received, self._reply)) is not None:
            packet = bytes(self._received[self._reply + 4 : end])
            self._reply = end
            if self._reading is None:
                command = self._commands.pop(0) if self._commands else 0
                self._reading = self._read(command)
                next(self._reading)
            try:
                self._reading.send(packet)
            except StopIteration:
                found.append(bytes(self._received[:end]))
                del self._received[:end]
                self._reply = 0
                self._reading = None
        return found

    def _watch_handshake(self) -> None:
        while (end := _message_end(self._received, 0)) is not None:
            is_greeting = self._received[3] == 0
            if not is_greeting and self._received[4] == _OK:
                self.is_established = True
                self._sent.clear()
            del self._received[:end]

    def rest(self) -> bytes:
        rest = bytes(self._received) if self.is_established else b""
        self._received.clear()
        self._reply = 0
        return rest

    def _read(self, command: int) -> _Reading:
        if command == _PREPARE:
            yield from self._read_prepared()
            return
        first = yield
        if command not in (_QUERY, _EXECUTE):
            return
        while True:
            if first[0] == _ERROR or first[0] == _LOCAL_FILE:
                return
            if first[0] == _OK:
                status = _status(first, 1)
            else:
                status = yield from self._read_rows(_number(first, 0)[0])
            if not status & _MORE_RESULTS:
                return
            first = yield

    def _read_rows(self, columns: int) -> Generator[None, bytes, int]:
        """The rest of a result set; its status, or 0 after an error."""
        for _ in range(columns + (not self._without_eof)):
            yield
        while True:
            row = yield
            if row[0] == _ERROR:
                return 0
            if row[0] == _EOF and len(row) < (_FULL if self._without_eof else 9):
                if self._without_eof:
                    return _status(row, 1)
                return int.from_bytes(row[3:5], "little")

    def _read_prepared(self) -> _Reading:
        first = yield
        if first[0] == _ERROR:
            return
        columns, parameters = (int.from_bytes(first[at : at + 2], "little") for at in (5, 7))
        for count in (parameters, columns):
            for _ in range(count + (not self._without_eof) if count else 0):
                yield


def _message_end(buffer: bytearray, start: int) -> int | None:
    """Where the message at ``start`` ends; of more than one packet if the first ones are full."""
    place = start
    while len(buffer) >= place + 4:
        length = int.from_bytes(buffer[place : place + 3], "little")
        place += 4 + length
        if length < _FULL:
            return place if len(buffer) >= place else None
    return None


def _number(packet: bytes, place: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    first = packet[place]
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    if not size:
        return first, place + 1
    return int.from_bytes(packet[place + 1 : place + 1 + size], "little"), place + 1 + size


def _status(packet: bytes, place: int) -> int:
    """The server's status in a packet that says OK."""
    _, place = _number(packet, place)
    _, place = _number(packet, place)
    return int.from_bytes(packet[place : place + 2], "little")


__all__ = ["MysqlWire"]
