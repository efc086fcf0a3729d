"""How arguments are put to scripts, and what their answers mean."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from outlast.driver import Entry, Fence, StoredFence, Value, admit
from outlast.errors import CorruptDataError

PIECE_BYTES: Final = 2**20
"""Longer lists are put aside in pieces of this size: a script holds all other clients up."""


def fence_arguments(fence: Fence | None) -> tuple[str | int, ...]:
    """The first four arguments of every mutation."""
    return ("", "", "", "") if fence is None else fence


def attribute(text: str | None) -> str:
    """An index attribute as it is stored: none differs from an empty one."""
    return "" if text is None else f"+{text}"


def pack(entry: Entry) -> bytes:
    """An entry as an element of a list: the length of its id, the id, the data."""
    name = entry.id.encode()
    return len(name).to_bytes(2, "big") + name + entry.data


def unpack(element: bytes) -> Entry:
    """The entry in an element of a list."""
    end = 2 + int.from_bytes(element[:2], "big")
    return Entry(element[2:end].decode(), element[end:])


def unpack_data(element: bytes) -> bytes:
    """The data of the entry in an element of a list."""
    return element[2 + int.from_bytes(element[:2], "big") :]


def pieces(elements: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The elements in runs of about a mebibyte, or of one that is larger."""
    piece: list[bytes] = []
    size = 0
    for element in elements:
        if piece and size + len(element) > PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(element)
        size += len(element)
    if piece:
        yield piece


def stored_fence(fields: Sequence[bytes | None]) -> StoredFence | None:
    """Of a record; ``None`` if there is none."""
    epoch, claim_id, seq, op = fields
    if epoch is None or claim_id is None or seq is None or op is None:
        return None
    return StoredFence(int(epoch), claim_id.decode(), int(seq), op.decode())


def check_refusal(details: Sequence[Any], fence: Fence | None) -> None:
    """Raise what the stored fence says to a mutation; return if it is stored already."""
    if admit(stored_fence(details[:4]), fence):
        raise CorruptDataError("the server refused a mutation that the stored fence admits")


def value_of(now: bytes, fields: Sequence[Any]) -> Value:
    """The register that a script read at the server's time ``now``."""
    *fence, parent, data, version, written = fields
    age = 0.0 if data is None else max(0, int(now) - int(written)) / 1e6
    return Value(
        data, int(version or 0), age, stored_fence(fence), parent[1:].decode() if parent else None
    )


__all__ = [
    "attribute",
    "check_refusal",
    "fence_arguments",
    "pack",
    "pieces",
    "stored_fence",
    "unpack",
    "unpack_data",
    "value_of",
]
