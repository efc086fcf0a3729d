"""Heads and pieces as bytes: a fixed header with format number and checksum, then MessagePack.

A reader tells three things apart and never calls any of them missing (V8): a newer format
(`UnsupportedVersionError`), bytes that are cut, changed or of something else (`CorruptDataError`),
and an object that belongs to another scope (`CorruptDataError`).
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, Literal, NamedTuple

import msgspec

from outlast.driver import Entry, Scope
from outlast.errors import CorruptDataError, UnsupportedVersionError
from outlast.heads.layout import Floor, Head, Ref

HEAD_FORMAT: Final = 1
PIECE_FORMAT: Final = 1
FLOOR_FORMAT: Final = 1

_HEAD: Final = struct.Struct(">4sHQI")
_HEAD_MAGIC: Final = b"olhd"
HEAD_STAMP: Final = _HEAD.size
"""So many first bytes tell two heads of one scope apart: version and checksum."""

_PIECE: Final = struct.Struct(">4sHBIIQI")
_PIECE_MAGIC: Final = b"olpc"
_FLOOR: Final = struct.Struct(">4sHQQI")
_FLOOR_MAGIC: Final = b"olfl"
_KINDS: Final = ("entries", "index", "value")
PieceKind = Literal["entries", "index", "value"]

_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(Head)
_ids_decoder = msgspec.msgpack.Decoder(tuple[list[str], list[int]])
_refs_decoder = msgspec.msgpack.Decoder(list[Ref])


def encode_head(head: Head) -> bytes:
    """The bytes of a head."""
    body = _encoder.encode(head)
    stamp = _HEAD.pack(_HEAD_MAGIC, HEAD_FORMAT, head.version, 0)[:-4]
    return stamp + zlib.crc32(body, zlib.crc32(stamp)).to_bytes(4) + body


def decode_head(data: bytes, scope: Scope | None, place: str) -> Head:
    """The head in ``data``.

    Args:
        data: As read.
        scope: Whose head it must be, or ``None`` if that is not known beforehand.
        place: Where it was read, for the error.

    Raises:
        UnsupportedVersionError: It has a newer format.
        CorruptDataError: It cannot be decoded, or it is the head of another scope.
    """
    if len(data) < HEAD_STAMP:
        raise CorruptDataError(f"{place} is cut off after {len(data)} bytes")
    magic, number, version, checksum = _HEAD.unpack_from(data)
    _check_format(place, magic == _HEAD_MAGIC, number, HEAD_FORMAT)
    body = memoryview(data)[HEAD_STAMP:]
    if zlib.crc32(body, zlib.crc32(data[: HEAD_STAMP - 4])) != checksum:
        raise CorruptDataError(f"{place} is cut off or was changed: its checksum does not match")
    try:
        head = _head_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"{place} cannot be decoded: {error}") from error
    if head.version != version or (scope is not None and (head.kind, head.id) != scope):
        raise CorruptDataError(f"{place} holds the {head.kind} {head.id!r}; it was moved or copied")
    return head


class Piece(NamedTuple):
    """A piece that is to be written, and the reference to it."""

    ref: Ref
    data: bytes


def entries_piece(name: str, entries: Sequence[Entry]) -> Piece:
    """A piece of a log; it begins with its ids."""
    table = _encoder.encode(
        ([entry.id for entry in entries], [len(entry.data) for entry in entries])
    )
    return _piece(
        name, "entries", table, b"".join([entry.data for entry in entries]), 0, len(entries)
    )


def index_piece(name: str, refs: Sequence[Ref]) -> Piece:
    """A piece that stands for several pieces of a log."""
    level = max(ref.level for ref in refs) + 1
    return _piece(name, "index", _encoder.encode(refs), b"", level, sum(ref.count for ref in refs))


def value_piece(name: str, data: bytes) -> Piece:
    """A piece that holds a register's value."""
    return _piece(name, "value", b"", data, 0, 0)


def _piece(name: str, kind: PieceKind, table: bytes, body: bytes, level: int, count: int) -> Piece:
    header = _PIECE.pack(
        _PIECE_MAGIC,
        PIECE_FORMAT,
        _KINDS.index(kind),
        len(table),
        zlib.crc32(table),
        len(body),
        zlib.crc32(body),
    )
    prefix = len(header) + len(table)
    return Piece(
        Ref(name, level, count, prefix + len(body), prefix), b"".join((header, table, body))
    )


def prefix_size(data: bytes) -> int:
    """``Ref.prefix`` of a whole piece: how many of its first bytes `decode_ids` needs."""
    return _PIECE.size + int(_PIECE.unpack_from(data)[3])


def decode_entries(data: bytes, place: str) -> list[Entry]:
    """The entries of a whole piece."""
    return list(map(Entry, *_ids_and_data(data, place)))


def decode_data(data: bytes, place: str) -> Iterator[bytes]:
    """`decode_entries` without the ids; the piece is checked at once."""
    return _ids_and_data(data, place)[1]


def _ids_and_data(data: bytes, place: str) -> tuple[list[str], Iterator[bytes]]:
    table, body = _open(data, "entries", place, whole=True)
    ids, sizes = _ids_table(table, place)
    if sum(sizes) != len(body) or min(sizes, default=0) < 0:
        raise CorruptDataError(f"{place} contradicts itself: {len(body)} bytes of entries")
    ends = list(accumulate(sizes, initial=len(data) - len(body)))
    return ids, (data[start:end] for start, end in pairwise(ends))


def decode_ids(prefix: bytes, place: str) -> list[str]:
    """The ids of a piece, from its first ``Ref.prefix`` bytes."""
    table, _ = _open(prefix, "entries", place, whole=False)
    return _ids_table(table, place)[0]


def decode_index(data: bytes, place: str) -> list[Ref]:
    """The references in an index piece."""
    table, _ = _open(data, "index", place, whole=True)
    try:
        return _refs_decoder.decode(table)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"{place} cannot be decoded: {error}") from error


def decode_value(data: bytes, place: str) -> bytes:
    """A register's value."""
    return bytes(_open(data, "value", place, whole=True)[1])


def encode_floor(floor: Floor) -> bytes:
    """The bytes of a floor."""
    stamp = _FLOOR.pack(_FLOOR_MAGIC, FLOOR_FORMAT, floor.epoch, floor.version, 0)[:-4]
    return stamp + zlib.crc32(stamp).to_bytes(4)


def decode_floor(data: bytes, place: str) -> Floor:
    """The floor in ``data``; errors as for heads."""
    magic, number = data[:4], int.from_bytes(data[4:6])
    _check_format(place, magic == _FLOOR_MAGIC, number, FLOOR_FORMAT)
    if len(data) != _FLOOR.size or zlib.crc32(data[:-4]).to_bytes(4) != data[-4:]:
        raise CorruptDataError(f"{place} is cut off or was changed: its checksum does not match")
    _, _, epoch, version, _ = _FLOOR.unpack(data)
    return Floor(epoch, version)


def _check_format(place: str, is_ours: bool, number: int, newest: int) -> None:  # noqa: FBT001
    if not is_ours or not number:
        raise CorruptDataError(f"{place} was not written by outlast, or was changed")
    if number > newest:
        raise UnsupportedVersionError(
            f"{place} has format {number}, this version of outlast reads up to {newest}; "
            "upgrade outlast"
        )


def _open(
    data: bytes, kind: PieceKind, place: str, *, whole: bool
) -> tuple[memoryview, memoryview]:
    """Header checked, the table and the body of a piece."""
    if len(data) < _PIECE.size:
        raise CorruptDataError(f"{place} is cut off after {len(data)} bytes")
    magic, number, stored, table_size, table_sum, body_size, body_sum = _PIECE.unpack_from(data)
    _check_format(place, magic == _PIECE_MAGIC, number, PIECE_FORMAT)
    if stored != _KINDS.index(kind):
        raise CorruptDataError(f"{place} is not a piece of the kind {kind!r}")
    rest = memoryview(data)[_PIECE.size :]
    table, body = rest[:table_size], rest[table_size:]
    is_whole = len(table) == table_size and zlib.crc32(table) == table_sum
    if is_whole and whole:
        is_whole = len(body) == body_size and zlib.crc32(body) == body_sum
    if not is_whole:
        raise CorruptDataError(f"{place} is cut off or was changed: its checksum does not match")
    return table, body


def _ids_table(table: memoryview, place: str) -> tuple[list[str], list[int]]:
    try:
        ids, sizes = _ids_decoder.decode(table)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptDataError(f"{place} cannot be decoded: {error}") from error
    if len(ids) != len(sizes):
        raise CorruptDataError(f"{place} contradicts itself: {len(ids)} ids, {len(sizes)} entries")
    return ids, sizes


__all__ = [
    "FLOOR_FORMAT",
    "HEAD_FORMAT",
    "HEAD_STAMP",
    "PIECE_FORMAT",
    "Piece",
    "decode_data",
    "decode_entries",
    "decode_floor",
    "decode_head",
    "decode_ids",
    "decode_index",
    "decode_value",
    "encode_floor",
    "encode_head",
    "entries_piece",
    "index_piece",
    "prefix_size",
    "value_piece",
]
