"""RESP, versions 2 and 3: Redis and Valkey."""

import re
from collections.abc import Mapping

from outlast_contract.faults.wires.base import Address, Piece, Wire

_SLOTS = re.compile(rb"\*\d+\r\n\*\d+\r\n:\d+\r\n:\d+\r\n\*\d+\r\n\$")
"""How the answer to CLUSTER SLOTS begins: ranges, each with its first and last slot and nodes."""
_OF_CLIENTS = frozenset(
    {b"AUTH", b"CLIENT", b"CLUSTER", b"COMMAND", b"HELLO", b"PING", b"READONLY", b"SELECT"}
)
"""Commands that client libraries send on their own account."""


class RespWire(Wire):
    """Requests are arrays of strings; a reply is one value."""

    def __init__(self) -> None:
        self._sent = bytearray()
        self._received = bytearray()

    def requests(self, data: bytes) -> list[Piece]:
        self._sent += data
        found: list[Piece] = []
        for request in _values(self._sent):
            words = request[:64].split(b"\r\n")
            name = (words[2] if request[:1] == b"*" else words[0].partition(b" ")[0]).upper()
            found.append(Piece(request, "setup" if name in _OF_CLIENTS else "call"))
        return found

    def replies(self, data: bytes) -> list[bytes]:
        self._received += data
        return list(_values(self._received))

    def rest(self) -> bytes:
        rest = bytes(self._received)
        self._received.clear()
        return rest

    def is_unasked(self, reply: bytes) -> bool:
        return reply[:1] == b">"

    def translated(self, reply: bytes, moved: Mapping[Address, Address]) -> bytes:
        # A cluster names its nodes in the answer to CLUSTER SLOTS, and whoever asks the wrong one
        # is sent on by an error.
        is_list = _SLOTS.match(reply) is not None
        if not (is_list or reply[:6] == b"-MOVED" or reply[:4] == b"-ASK"):
            return reply
        for (host, port), (_, new) in moved.items():
            told, instead = b":%d\r\n" % port, b":%d\r\n" % new
            if is_list and host.encode() in reply:
                reply = reply.replace(told, instead)
            elif not is_list:
                reply = reply.replace(host.encode() + told, host.encode() + instead)
        return reply


def _values(buffer: bytearray) -> list[bytes]:
    """Take the complete values from the front of the buffer."""
    found: list[bytes] = []
    while buffer:
        end = _end(buffer, 0)
        if end is None:
            break
        found.append(bytes(buffer[:end]))
        del buffer[:end]
    return found


def _end(buffer: bytearray, start: int) -> int | None:
    """Where the value at ``start`` ends; ``None`` if that is not there yet."""
    left, place = 1, start
    while left:
        line = buffer.find(b"\r\n", place)
        if line < 0:
            return None
        kind, body = buffer[place : place + 1], buffer[place + 1 : line]
        place = line + 2
        left -= 1
        if kind in b"$=!" and body != b"-1":
            place += int(body) + 2
            if len(buffer) < place:
                return None
        elif kind in b"*~>" and body != b"-1":
            left += int(body)
        elif kind == b"%":
            left += 2 * int(body)
        elif kind == b"|":  # attributes, and the value that they are of
            left += 2 * int(body) + 1
    return place


__all__ = ["RespWire"]
