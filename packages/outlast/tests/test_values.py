"""Validation at the edge: what passes unchanged, what is refused, and what the refusal says."""

from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest

from outlast.errors import InvalidDataError, InvalidIdError
from outlast.models import (
    ApiMessage,
    PartialToolCall,
    StreamCheckpoint,
    TaskState,
    TaskStatus,
    ToolInfo,
    UserMessage,
)
from outlast.values import (
    MAX_DEPTH,
    check_claim_id,
    check_id,
    check_instant,
    check_json,
    check_messages,
    check_record,
    check_updates,
)


class Colour(StrEnum):
    RED = "red"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**80,
        10**1000 - 1,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        "",
        "\0",
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
        [],
        {},
        {"": [{"$set": {"a.b": None}}]},
        nested(MAX_DEPTH),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_json_value_passes_as_the_same_object(value: Any) -> None:
    assert check_json(value, "content") is value


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("nan"), "content is nan"),
        (float("inf"), "content is inf"),
        (10**1000, "content is an integer of more than 1000 digits"),
        (b"x", "content is a bytes"),
        ({1}, "content is a set"),
        ((1, 2), "content is a tuple"),
        (Decimal(1), "content is a decimal.Decimal"),
        (datetime.now(UTC), "content is a datetime.datetime"),
        (Colour.RED, "Colour"),
        (OrderedDict(a=1), "content is a collections.OrderedDict"),
        ({"a": [0, {"b": b""}]}, "content['a'][1]['b'] is a bytes"),
        ({"a": {1: 2}}, "content['a'] has a key that is not a str: 1"),
        ({"a": ["\ud800"]}, "content['a'][0] contains a lone surrogate at index 0"),
        ({"a": {"x\udfff": 1}}, "a key of content['a'] contains a lone surrogate at index 1"),
        (nested(MAX_DEPTH + 1), "content is nested deeper than 800 levels"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_json_cannot_carry_is_refused_and_its_place_named(value: Any, place: str) -> None:
    with pytest.raises(InvalidDataError) as caught:
        check_json(value, "content")
    assert place in str(caught.value)


def test_a_value_that_contains_itself_is_refused_and_not_walked_for_ever() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidDataError, match="nested deeper"):
        check_json(value, "content")


@pytest.mark.parametrize("value", ["a", "\0", "x" * 512, "é" * 256, " ", "a/../b", "{}", "CON"])
def test_any_non_empty_string_of_512_bytes_is_an_id(value: str) -> None:
    assert check_id(value, "task_id") == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "must not be empty"),
        ("x" * 513, "has 513 UTF-8 bytes"),
        ("é" * 257, "has 514 UTF-8 bytes"),
        ("a\ud800", "lone surrogate"),
        (5, "must be a str, not int"),
        (None, "must be a str, not NoneType"),
        (b"a", "must be a str, not bytes"),
    ],
)
def test_what_is_no_id_is_refused_by_name(value: Any, text: str) -> None:
    with pytest.raises(InvalidIdError, match=f"task_id.*{text}"):
        check_id(value, "task_id")


@pytest.mark.parametrize("value", ["", "x" * 32, "A" * 32, "0" * 31, "0" * 33, 7, b"0" * 32])
def test_a_claim_id_is_32_lower_case_hexadecimal_digits(value: Any) -> None:
    with pytest.raises(InvalidIdError, match="32 lower-case hexadecimal"):
        check_claim_id(value)
    assert check_claim_id("0123456789abcdef" * 2)


def test_an_instant_is_returned_in_utc_with_its_microseconds() -> None:
    given = datetime(2030, 1, 1, 1, 2, 3, 456789, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    checked = check_instant(given, "ts")
    assert checked == given
    assert checked.tzinfo is UTC
    assert checked.microsecond == 456789


@pytest.mark.parametrize(
    "value",
    [datetime(2030, 1, 1), "2030-01-01", datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))],  # noqa: DTZ001
)
def test_what_is_no_instant_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDataError, match="ts"):
        check_instant(value, "ts")


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (TaskState(id="t", status="nonsense"), "status"),  # type: ignore[arg-type]
        (TaskState(id="t", config=[]), "config"),  # type: ignore[arg-type]
        (TaskState(id="t", retry_count=-1), "retry_count"),
        (TaskState(id="t", retry_count=True), "retry_count"),
        (TaskState(id="t", subtask_ids=["", "b"]), "subtask_ids[0]"),
        (TaskState(id="t", start_time=datetime(2030, 1, 1)), "start_time"),  # noqa: DTZ001
        (TaskState(id="t", parent_id=""), "parent_id"),
        (ApiMessage(id="m", role=None, content=""), "role"),  # type: ignore[arg-type]
        (ApiMessage(id="m", role="user", content=None), "content"),  # type: ignore[arg-type]
        (ApiMessage(id="m", role="user", content={"a": (1,)}), "content['a']"),
        (UserMessage(id="m", type="t", role="r", visible=1), "visible"),  # type: ignore[arg-type]
        (UserMessage(id="m", type="t", role="r", tool_info={}), "tool_info"),  # type: ignore[arg-type]
        (
            UserMessage(id="m", type="t", role="r", tool_info=ToolInfo("c", "n", result={1})),
            "tool_info.result",
        ),
        (StreamCheckpoint("r", "t", "m", "x", tool_calls=[1]), "tool_calls[0]"),  # type: ignore[list-item]
        (
            StreamCheckpoint("r", "t", "m", "x", tool_calls=[PartialToolCall("a", "b", "\ud800")]),
            "tool_calls[0].arguments",
        ),
        (StreamCheckpoint("r", "t", "m", "x", text=None), "text"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_field_that_does_not_fit_is_named(record: Any, field: str) -> None:
    with pytest.raises((InvalidDataError, InvalidIdError)) as caught:
        check_record(record, type(record))
    assert f"{type(record).__name__}.{field}" in str(caught.value)


def test_a_record_that_fits_is_not_copied() -> None:
    record = ApiMessage("m", "user", "text", ts=datetime.now(UTC))
    assert check_record(record, ApiMessage) is record


def test_statuses_and_adapter_fields_are_normalized() -> None:
    state = TaskState("t", status="running", updated_at=datetime.now(UTC))  # type: ignore[arg-type]
    checked = check_record(state, TaskState)
    assert checked.status is TaskStatus.RUNNING
    assert checked.updated_at is None
    assert check_record(StreamCheckpoint("r", "t", "m", "x", epoch=9), StreamCheckpoint).epoch == 0


@pytest.mark.parametrize("given", ["abc", {"a": 1}, 5, None, ApiMessage("m", "r", ""), ["x"]])
def test_a_batch_is_an_iterable_of_messages(given: Any) -> None:
    with pytest.raises(InvalidDataError, match="messages"):
        check_messages(given, ApiMessage)


def test_a_batch_may_be_a_generator_and_holds_each_id_once() -> None:
    messages = [ApiMessage(name, "user", "") for name in ("a", "b", "a")]
    assert check_messages((m for m in messages[:2]), ApiMessage) == messages[:2]
    with pytest.raises(InvalidDataError, match="'a' twice"):
        check_messages(messages, ApiMessage)


@pytest.mark.parametrize(
    ("updates", "text"),
    [
        ({"nope": 1}, "no field 'nope'"),
        ({"id": "x"}, "id cannot be updated"),
        ({"updated_at": None}, "updated_at cannot be updated"),
        ({"status": "nope"}, "status"),
        ({5: 1}, "no field 5"),
        ([("a", 1)], "must be a mapping"),
    ],
)
def test_an_update_that_does_not_fit_is_refused(updates: Any, text: str) -> None:
    with pytest.raises(InvalidDataError, match=text):
        check_updates(updates)
