"""The wire protocol of MongoDB."""

import struct

from outlast_contract.faults.wires.base import Kind, Piece, Wire

_OP_MSG, _OP_QUERY = 2013, 2004
_MORE_TO_COME = 2
_OF_CLIENTS = frozenset(
    {
        b"buildInfo",
        b"endSessions",
        b"hello",
        b"isMaster",
        b"ismaster",
        b"saslContinue",
        b"saslStart",
    }
)


class MongoWire(Wire):
    """Every message begins with its length."""

    def __init__(self) -> None:
        self._sent = bytearray()
        self._received = bytearray()
        self._is_streaming = False
        """Whether the server goes on answering the last request, as it does to monitors."""

    def requests(self, data: bytes) -> list[Piece]:
        self._sent += data
        return [Piece(message, _kind(message)) for message in _messages(self._sent)]

    def replies(self, data: bytes) -> list[bytes]:
        self._received += data
        return _messages(self._received)

    def rest(self) -> bytes:
        rest = bytes(self._received)
        self._received.clear()
        return rest

    def is_unasked(self, reply: bytes) -> bool:
        unasked = self._is_streaming
        code, flags = struct.unpack_from("<ii", reply, 12)
        self._is_streaming = code == _OP_MSG and bool(flags & _MORE_TO_COME)
        return unasked


def _messages(buffer: bytearray) -> list[bytes]:
    found: list[bytes] = []
    while len(buffer) >= 4:
        (length,) = struct.unpack_from("<i", buffer)
        if len(buffer) < length:
            break
        found.append(bytes(buffer[:length]))
        del buffer[:length]
    return found


def _kind(message: bytes) -> Kind:
    (code,) = struct.unpack_from("<i", message, 12)
    if code == _OP_QUERY:  # only the first hello still is one
        return "setup"
    if code != _OP_MSG:
        return "call"
    (flags,) = struct.unpack_from("<i", message, 16)
    if flags & _MORE_TO_COME:
        return "notice"
    # Behind flags and the kind of the section: the document's length, the type of its first
    # element, and that element's name, which is the command's.
    name = message[26:].partition(b"\0")[0]
    return "setup" if name in _OF_CLIENTS else "call"


__all__ = ["MongoWire"]
