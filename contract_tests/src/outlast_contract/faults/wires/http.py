"""HTTP/1.1, as S3 and its like are spoken to."""

from outlast_contract.faults.wires.base import Piece, Wire

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpWire(Wire):
    """Messages with a length, in chunks, or up to the end of the connection."""

    def __init__(self) -> None:
        self._sent = bytearray()
        self._received = bytearray()
        self._methods: list[bytes] = []
        self._was_continued = False

    def requests(self, data: bytes) -> list[Piece]:
        self._sent += data
        found: list[Piece] = []
        while (end := _message_end(self._sent, is_reply=False)) is not None:
            self._methods.append(bytes(self._sent[: self._sent.index(b" ")]))
            found.append(Piece(bytes(self._sent[:end])))
            del self._sent[:end]
            self._was_continued = False
        return found

    def interim(self, data: bytes) -> bytes:
        if self._was_continued or b"\r\n\r\n" not in self._sent:
            return b""
        self._was_continued = True
        if header(bytes(self._sent), b"expect").lower() == b"100-continue":
            return _CONTINUE
        return b""

    def replies(self, data: bytes) -> list[bytes]:
        self._received += data
        found: list[bytes] = []
        while self._received:
            method = self._methods[0] if self._methods else b""
            end = _message_end(self._received, is_reply=True, has_body=method != b"HEAD")
            if end is None:
                break
            message = bytes(self._received[:end])
            del self._received[:end]
            if message[9:10] == b"1":  # the proxy has answered for it
                continue
            if self._methods:
                del self._methods[0]
            found.append(message)
        return found

    def rest(self) -> bytes:
        rest = bytes(self._received)
        self._received.clear()
        return rest


def header(message: bytes, name: bytes) -> bytes:
    """The value of a header, or nothing."""
    for line in message.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return b""


def _message_end(buffer: bytearray, *, is_reply: bool, has_body: bool = True) -> int | None:
    """Where the message at the front ends; ``None`` if that is not there yet."""
    split = buffer.find(b"\r\n\r\n")
    if split < 0:
        return None
    head, start = bytes(buffer[: split + 4]), split + 4
    if is_reply and (not has_body or head[9:12] in (b"204", b"304") or head[9:10] == b"1"):
        return start
    if b"chunked" in header(head, b"transfer-encoding").lower():
        return _chunks_end(buffer, start)
    length = header(head, b"content-length")
    if length:
        end = start + int(length)
        return end if len(buffer) >= end else None
    # A reply without a length goes on to the end of the connection.
    return None if is_reply else start


def _chunks_end(buffer: bytearray, place: int) -> int | None:
    while (line := buffer.find(b"\r\n", place)) >= 0:
        size = int(bytes(buffer[place:line]).partition(b";")[0], 16)
        place = line + 2 + size + 2
        if not size:
            # Behind the last chunk come trailers, and an empty line.
            end = buffer.find(b"\r\n\r\n", line)
            return end + 4 if end >= 0 else None
        if len(buffer) < place:
            return None
    return None


__all__ = ["HttpWire", "header"]
