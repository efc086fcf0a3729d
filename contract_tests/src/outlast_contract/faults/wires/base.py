"""What a proxy must know of a protocol: where requests and replies end, and which of them count."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Address = tuple[str, int]
"""Host and port."""

Kind = Literal["call", "setup", "notice", "rest"]
"""What a piece from the client is: a request of the application; one of the client library's own
(handshake, monitoring); one that is not answered; or more of the request before it.
"""


@dataclass(frozen=True)
class Piece:
    """Bytes from the client that belong together."""

    data: bytes
    kind: Kind = "call"


class Wire(abc.ABC):
    """The dialogue of one connection, cut into requests and replies.

    One object serves one connection. Replies come in the order of the requests.

    Attributes:
        is_established: Whether the handshake is over; before that, bytes are passed on as they
            come.
    """

    is_established: bool = True

    @abc.abstractmethod
    def requests(self, data: bytes) -> list[Piece]:
        """What is complete once the client has sent ``data``, too."""

    @abc.abstractmethod
    def replies(self, data: bytes) -> list[bytes]:
        """Whole replies, once the server has sent ``data``, too."""

    @abc.abstractmethod
    def rest(self) -> bytes:
        """Take what the server has sent of a reply that is not complete."""

    def is_unasked(self, reply: bytes) -> bool:
        """Whether the server sends this reply without a request."""
        return False

    def translated(self, reply: bytes, moved: Mapping[Address, Address]) -> bytes:
        """The reply, telling the client the addresses of proxies instead of servers."""
        return reply

    def interim(self, data: bytes) -> bytes:
        """What the client must be told so that it sends the rest of its request."""
        return b""


__all__ = ["Address", "Kind", "Piece", "Wire"]
