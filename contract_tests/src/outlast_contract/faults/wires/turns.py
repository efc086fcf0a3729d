"""Any protocol in which client and server take turns on a connection."""

from outlast_contract.faults.wires.base import Kind, Piece, Wire


class TurnsWire(Wire):
    """A request is what the client sends until the server answers.

    Nothing is known of where messages end, so what is aimed at is the beginning of a request or
    reply. A server that speaks unasked, or a client that does not wait, is not understood.
    """

    def __init__(self) -> None:
        self._is_asking = False

    def requests(self, data: bytes) -> list[Piece]:
        kind: Kind = "rest" if self._is_asking else "call"
        self._is_asking = True
        return [Piece(data, kind)]

    def replies(self, data: bytes) -> list[bytes]:
        self._is_asking = False
        return [data]

    def rest(self) -> bytes:
        return b""


__all__ = ["TurnsWire"]
