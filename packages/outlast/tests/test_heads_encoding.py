"""Heads, pieces and floors as bytes: frozen, checked, told apart from newer and damaged ones."""

import random
from collections.abc import Callable

import msgspec
import pytest

from outlast.driver import Entry, Index, Scope, StoredFence
from outlast.errors import CorruptDataError, UnsupportedVersionError
from outlast.heads import Floor, Head, Log, Ref, Register, key_of
from outlast.heads.encoding import (
    HEAD_STAMP,
    decode_entries,
    decode_floor,
    decode_head,
    decode_ids,
    decode_index,
    decode_value,
    encode_floor,
    encode_head,
    entries_piece,
    index_piece,
    value_piece,
)

TASK = Scope("task", "t\0ä")
REF = Ref("0" * 32, 1, 5, 1000, 60)
HEAD = Head(
    kind="task",
    id=TASK.id,
    version=7,
    start=3,
    changed_at=1700000000.5,
    is_new=False,
    fence=StoredFence(2, "a" * 32, 4, "b" * 16),
    index=Index("p", "running", 99),
    registers={
        "state": Register(7, 1700000000.5, b"data"),
        "input": Register(6, 1.0, None, msgspec.structs.replace(REF, level=0)),
    },
    logs={"api": Log((REF,), (Entry("m", b"\0\xff"),))},
)
ENTRIES = [Entry("a", b"1"), Entry("ö", b""), Entry("c", b"\0" * 5)]

GOLDEN = {
    "head": (
        "6f6c686400010000000000000007e60ba1e89aa47461736ba47400c3a40703cb41d954fc40200000"
        "c29402d920616161616161616161616161616161616161616161616161616161616161616104b062"
        "62626262626262626262626262626293a170a772756e6e696e676382a573746174659407cb41d954"
        "fc40200000c40464617461c0a5696e7075749406cb3ff0000000000000c095d92030303030303030"
        "303030303030303030303030303030303030303030303030300005cd03e83c81a3617069929195d9"
        "2030303030303030303030303030303030303030303030303030303030303030300105cd03e83c91"
        "92a16dc40200ff"
    ),
    "entries": (
        "6f6c70630001000000000dc183a52e00000000000000067ee475ab9293a161a2c3b6a16393010005"
        "310000000000"
    ),
    "index": (
        "6f6c706300010100000053c37aca430000000000000000000000009295d920303030303030303030"
        "30303030303030303030303030303030303030303030300105cd03e83c95d9203030303030303030"
        "3030303030303030303030303030303030303030303030300005cd03e83c"
    ),
    "value": ("6f6c7063000102000000000000000000000000000000051d77583476616c7565"),
    "floor": ("6f6c666c000100000000000000050000000000000009f6cfac7b"),
}
"""What version 1 of each format is: stores hold such bytes, so all later versions read them."""


def _made() -> dict[str, bytes]:
    return {
        "head": encode_head(HEAD),
        "entries": entries_piece("n", ENTRIES).data,
        "index": index_piece("n", [REF, msgspec.structs.replace(REF, level=0)]).data,
        "value": value_piece("n", b"value").data,
        "floor": encode_floor(Floor(5, 9)),
    }


READ: dict[str, Callable[[bytes], object]] = {
    "head": lambda data: decode_head(data, TASK, "here"),
    "entries": lambda data: decode_entries(data, "here"),
    "index": lambda data: decode_index(data, "here"),
    "value": lambda data: decode_value(data, "here"),
    "floor": lambda data: decode_floor(data, "here"),
}
EXPECTED = {
    "head": HEAD,
    "entries": ENTRIES,
    "index": [REF, msgspec.structs.replace(REF, level=0)],
    "value": b"value",
    "floor": Floor(5, 9),
}


@pytest.mark.parametrize("kind", READ)
def test_stored_bytes_of_format_one_are_read_and_written_as_they_were(kind: str) -> None:
    golden = bytes.fromhex(GOLDEN[kind])
    assert READ[kind](golden) == EXPECTED[kind]
    assert _made()[kind] == golden


@pytest.mark.parametrize("kind", READ)
def test_bytes_cut_anywhere_are_corrupt_and_never_missing(kind: str) -> None:
    data = _made()[kind]
    for size in range(len(data)):
        with pytest.raises(CorruptDataError, match="here"):
            READ[kind](data[:size])
    with pytest.raises(CorruptDataError):
        READ[kind](data + b"\0")


@pytest.mark.parametrize("kind", READ)
def test_a_changed_byte_anywhere_is_noticed(kind: str) -> None:
    data = _made()[kind]
    rng = random.Random(1)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        with pytest.raises((CorruptDataError, UnsupportedVersionError), match="here"):
            READ[kind](bytes(changed))


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("damage", [b"", b"\0" * 200, b"{}", b"garbage " * 30])
def test_something_else_is_corrupt(kind: str, damage: bytes) -> None:
    with pytest.raises(CorruptDataError, match="here"):
        READ[kind](damage)


@pytest.mark.parametrize("kind", READ)
def test_a_newer_format_is_unsupported_whatever_follows(kind: str) -> None:
    data = _made()[kind]
    for rest in (data[6:], b"\0" * 80):
        with pytest.raises(UnsupportedVersionError, match="upgrade"):
            READ[kind](data[:4] + (2).to_bytes(2) + rest)


def test_a_head_of_another_scope_is_not_taken_for_this_one() -> None:
    for scope in (Scope("run", TASK.id), Scope("task", "t")):
        with pytest.raises(CorruptDataError, match="moved or copied"):
            decode_head(encode_head(HEAD), scope, "here")
    assert decode_head(encode_head(HEAD), None, "here") == HEAD


def test_a_piece_of_another_kind_is_not_taken_for_this_one() -> None:
    made = _made()
    pieces = ("entries", "index", "value")
    for stored in pieces:
        for wanted in pieces:
            if stored != wanted:
                with pytest.raises(CorruptDataError, match="kind"):
                    READ[wanted](made[stored])


def test_the_ids_of_a_piece_are_in_its_prefix() -> None:
    piece = entries_piece("n", ENTRIES)
    assert decode_ids(piece.data[: piece.ref.prefix], "here") == ["a", "ö", "c"]
    assert (piece.ref.count, piece.ref.size) == (3, len(piece.data))
    with pytest.raises(CorruptDataError):
        decode_ids(piece.data[: piece.ref.prefix - 1], "here")


def test_two_versions_of_a_head_differ_in_their_stamp() -> None:
    stamps = {
        encode_head(msgspec.structs.replace(HEAD, version=version, changed_at=at))[:HEAD_STAMP]
        for version in range(3)
        for at in (1.0, 2.0)
    }
    assert len(stamps) == 6


def test_keys_have_one_length_and_differ_after_case_folding() -> None:
    ids = [
        "a",
        "A",
        "a ",
        "\xe4",
        "a\u0308",
        "../x",
        "a/b",
        "\0",
        "x" * 512,
        "CON",
        "{}",
        "\U0001d51e",
    ]
    keys = {
        key_of(Scope(kind, scope_id)).casefold() for kind in ("task", "run") for scope_id in ids
    }
    assert len(keys) == 2 * len(ids)
    assert {len(key.partition("/")[2]) for key in keys} == {64}
