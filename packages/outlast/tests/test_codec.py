"""Records to bytes and back: exact, versioned, and frozen by golden files."""

import gc
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outlast.codec import FORMAT, KINDS, Codec, same_message
from outlast.errors import CorruptDataError, UnsupportedVersionError
from outlast.models import (
    ApiMessage,
    PartialToolCall,
    Record,
    StreamCheckpoint,
    TaskInput,
    TaskState,
    TaskStatus,
    ToolInfo,
    UserMessage,
)

GOLDEN = Path(__file__).parent / "golden"
INSTANT = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
VALUES = {
    "big": 2**80,
    "edge": [2**63, -(2**63), 2**64 - 1],
    "float": [1.0, -0.0, 5e-324, 1e300],
    "empty": [[], {}, "", None, True],
    "a.b": {"$set": "\0 $100 é 🙂 \u2028"},
}
RECORDS: list[Record] = [
    TaskState(
        id="t/1",
        status=TaskStatus.WAITING_FOR_SUBTASK,
        config={"model": "m"},
        context=VALUES,
        start_time=INSTANT,
        retry_count=3,
        subtask_ids=["a", "b"],
        error={"kind": "x"},
        parent_id="t",
        updated_at=INSTANT,
    ),
    TaskInput(message=VALUES, attachments=[1, "x"], params={"a": None}, stream=True),
    ApiMessage("m1", "assistant", [VALUES, "text"], source="s", ts=INSTANT, metadata=VALUES),
    UserMessage(
        "u1",
        "tool",
        "assistant",
        VALUES,
        tool_info=ToolInfo("c", "n", "done", VALUES, [1], {"e": 1}),
        ts=INSTANT,
        visible=False,
        metadata=VALUES,
    ),
    StreamCheckpoint(
        "r",
        "t",
        "m",
        "model",
        text="so far",
        tool_calls=[PartialToolCall("c1", "f", '{"a": 1'), PartialToolCall("c2", "g")],
        retry_count=2,
        updated_at=INSTANT,
        task_epoch=7,
    ),
]


def by_kind(record: Record) -> str:
    return KINDS[type(record)]


def exact(value: Any) -> str:
    return repr(value)


@pytest.mark.parametrize("record", RECORDS, ids=by_kind)
def test_a_record_comes_back_with_every_value_and_type(record: Record) -> None:
    codec = Codec()
    data, size = codec.encode(record)
    assert exact(codec.decode(data, type(record))) == exact(record)
    assert 0 < size < len(data)


@pytest.mark.parametrize("record", RECORDS, ids=by_kind)
def test_the_stored_bytes_of_this_format_do_not_change(record: Record) -> None:
    """What this version writes equals its golden file; a change asks for a new format number."""
    golden = GOLDEN / f"v{FORMAT}" / f"{by_kind(record)}.bin"
    assert Codec().encode(record)[0] == golden.read_bytes()


@pytest.mark.parametrize("record", RECORDS, ids=by_kind)
@pytest.mark.parametrize("version", sorted(path.name for path in GOLDEN.iterdir()))
def test_every_older_format_is_read(version: str, record: Record) -> None:
    data = (GOLDEN / version / f"{by_kind(record)}.bin").read_bytes()
    assert exact(Codec().decode(data, type(record))) == exact(record)


@pytest.mark.parametrize("record", RECORDS, ids=by_kind)
def test_truncated_bytes_are_corrupt_at_every_length(record: Record) -> None:
    data, _ = Codec().encode(record)
    for length in range(len(data)):
        with pytest.raises(CorruptDataError):
            Codec().decode(data[:length], type(record))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"garbage\n{}",
        b"\x80\x04K\x05.",  # A pickle.
        b'{"format":1,"kind":"task_state"}\n{}',
        b'{"format":1,"kind":"api_message"}\n{"id":1}',
        b'{"format":1,"kind":"api_message"}\n{"id":"a","role":"r","content":"","extra":1}',
        b'{"format":1,"kind":"api_message"}\n\xff',
        b'{"format":"2","kind":"api_message"}\n{}',
        b'{"format":0,"kind":"api_message"}\n{}',
        b'["format"]\n{}',
    ],
)
def test_bytes_that_are_no_record_are_corrupt_and_not_missing(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        Codec().decode(data, ApiMessage)


@pytest.mark.parametrize("found", ["text", 5, 1.5, bytearray(b"{}"), None])
def test_what_is_not_even_bytes_is_corrupt(found: object) -> None:
    with pytest.raises(CorruptDataError, match=type(found).__name__):
        Codec().decode(found, ApiMessage)  # type: ignore[arg-type]  # a store holds anything


def test_a_newer_format_is_told_apart_from_corruption() -> None:
    with pytest.raises(UnsupportedVersionError, match="format 2; this version of outlast reads up"):
        Codec().decode(b'{"format":2,"kind":"api_message","key":"k"}\n???', ApiMessage)


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda data: data[:-1], CorruptDataError),
        (lambda data: data.replace(b"api_message", b"user_message"), CorruptDataError),
        (lambda data: data.replace(b'"format":1', b'"format":9'), UnsupportedVersionError),
        (bytearray, CorruptDataError),
        (lambda data: None, CorruptDataError),
    ],
)
def test_one_bad_record_among_many_is_told_as_alone(place: int, spoil: Any, error: Any) -> None:
    codec = Codec()
    stored = [codec.encode(ApiMessage(f"m{number}", "user", "text"))[0] for number in range(5)]
    stored[place] = spoil(stored[place])
    with pytest.raises(error) as alone:
        codec.decode(stored[place], ApiMessage)
    with pytest.raises(error) as among:
        codec.decode_many(stored, ApiMessage)
    assert str(among.value) == str(alone.value)


def test_many_records_are_decoded_by_what_a_subclass_says() -> None:
    class Reversing(Codec):
        def decode(self, data: bytes, kind: Any) -> Any:
            return super().decode(data[::-1], kind)

    messages = [ApiMessage(f"m{number}", "user", VALUES) for number in range(3)]
    stored = [Codec().encode(message)[0] for message in messages]
    assert Codec().decode_many(stored, ApiMessage) == messages
    assert Reversing().decode_many([data[::-1] for data in stored], ApiMessage) == messages


def test_what_is_behind_the_headers_is_decoded_to_the_same_records() -> None:
    codec = Codec()
    messages = [ApiMessage(f"m{number}", "user", VALUES, ts=INSTANT) for number in range(3)]
    header = codec.header(ApiMessage)
    payloads = [codec.encode(message)[0].removeprefix(header) for message in messages]
    assert codec.decode_payloads(payloads, ApiMessage) == messages


@pytest.mark.parametrize("rest", [None, b"", b"{", b'{"id":"m"}', b"\xff", 1], ids=repr)
def test_what_cannot_be_decoded_without_its_header_is_left_to_decode(rest: Any) -> None:
    good = Codec().encode(ApiMessage("m", "user", ""))[0].removeprefix(Codec().header(ApiMessage))
    assert Codec().decode_payloads([good, rest, good], ApiMessage) is None


def test_a_subclass_that_decodes_by_itself_has_no_header() -> None:
    """Whatever begins its bytes, nobody may cut it off."""

    class Other(Codec):
        def decode(self, data: bytes, kind: Any) -> Any:
            return super().decode(data, kind)

    class OtherForMany(Codec):
        def decode_many(self, stored: Any, kind: Any) -> Any:
            return super().decode_many(stored, kind)

    assert Other().header(ApiMessage) == OtherForMany().header(ApiMessage) == b""


def test_messages_are_no_work_for_the_garbage_collector() -> None:
    """A thousand of them would start it, again and again."""
    message = Codec().decode(Codec().encode(ApiMessage("m", "user", VALUES))[0], ApiMessage)
    assert not gc.is_tracked(message)
    held = Watched()
    gone = weakref.ref(held)
    message = ApiMessage("m", "user", [held])
    del held, message
    assert gone() is None


class Watched:
    """Something that a weak reference can watch."""


def test_deep_values_survive_a_deep_caller() -> None:
    value: Any = []
    for _ in range(797):
        value = [value]
    message = ApiMessage("m", "user", {"a": value})

    def at_depth(frames: int) -> ApiMessage:
        if frames:
            return at_depth(frames - 1)
        return Codec().decode(Codec().encode(message)[0], ApiMessage)

    assert Codec().encode(at_depth(300))[0] == Codec().encode(message)[0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": 0.0}, {"a": -0.0}, False),
        ([], {}, False),
        ("x", "x", True),
    ],
)
def test_equal_messages_are_told_by_value_and_type(one: Any, other: Any, same: bool) -> None:
    first = ApiMessage("m", "user", one, ts=INSTANT)
    assert same_message(first, ApiMessage("m", "user", other)) is same


def test_no_module_of_the_package_imports_pickle() -> None:
    root = Path(__file__).parents[1] / "src" / "outlast"
    assert not [path for path in root.rglob("*.py") if "import pickle" in path.read_text()]
