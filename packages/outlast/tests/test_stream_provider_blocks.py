"""What goes back to a provider lies where it came, and only in turns that one call has made."""

from typing import Any

import pytest

from outlast.runtime import (
    ModelEvent,
    ProviderData,
    StreamAccumulator,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)


def data(number: int) -> ProviderData:
    return ProviderData("p", {"n": number})


def block(number: int) -> dict[str, Any]:
    return {"type": "provider", "provider": "p", "data": {"n": number}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(index: int, arguments: str = "{}") -> ToolCallDelta:
    return ToolCallDelta(index, f"c{index}", "f", arguments)


def made(index: int) -> dict[str, Any]:
    return {"type": "tool_call", "id": f"c{index}", "name": "f", "arguments": {}}


@pytest.mark.parametrize(
    ("events", "content"),
    [
        ([data(1), TextDelta("a"), TextDelta("b")], [block(1), text("ab")]),
        (
            [data(1), TextDelta("a"), data(2), TextDelta("b"), call(0)],
            [block(1), text("a"), block(2), text("b"), made(0)],
        ),
        ([data(1), data(2), call(0)], [block(1), block(2), made(0)]),
        ([call(0), data(1), call(1)], [made(0), block(1), made(1)]),
        ([TextDelta("a"), data(1)], [text("a")]),
        ([data(1), TextDelta("a"), data(2), data(3)], [block(1), text("a")]),
        ([data(1), data(2)], []),
        ([data(1), call(0, "{"), data(2), call(1)], [block(1), made(1)]),
        ([data(1), TextDelta("a"), call(0, "{")], [block(1), text("a")]),
    ],
    ids=[
        "before text",
        "between texts",
        "two",
        "between calls",
        "at the end",
        "two at the end",
        "alone",
        "behind a call that is left out",
        "before one",
    ],
)
def test_a_block_lies_where_it_came(
    events: list[ModelEvent], content: list[dict[str, Any]]
) -> None:
    """None at the end, and none behind a call that is left out."""
    accumulator = StreamAccumulator()
    for event in events:
        if isinstance(event, ProviderData):
            assert list(accumulator.feed(event)) == []  # shown to nobody
        else:
            accumulator.feed(event)
    assert accumulator.content() == content
    accumulator.feed(StreamEnd())
    assert accumulator.content() == content


def test_a_turn_that_goes_on_behind_a_prefix_has_none() -> None:
    """Neither of the call before, nor of the one that goes on."""
    accumulator = StreamAccumulator()
    for event in (data(1), TextDelta("a")):
        accumulator.feed(event)
    accumulator.rewind("a")
    for event in (data(2), TextDelta("b")):
        accumulator.feed(event)
    assert accumulator.content() == [text("ab")]
    resumed = StreamAccumulator("a")
    for event in (data(3), TextDelta("b")):
        resumed.feed(event)
    assert resumed.content() == [text("ab")]


def test_a_turn_that_begins_anew_has_its_own() -> None:
    """Nothing was sent along."""
    accumulator = StreamAccumulator()
    accumulator.feed(data(1))
    accumulator.rewind("")
    for event in (data(2), TextDelta("b")):
        accumulator.feed(event)
    assert accumulator.content() == [block(2), text("b")]


def test_what_no_store_can_keep_is_left_out() -> None:
    """The turn does not fail for it."""
    accumulator = StreamAccumulator()
    accumulator.feed(ProviderData("p", {"n": "\ud800"}))
    accumulator.feed(TextDelta("a"))
    assert accumulator.content() == [text("a")]
