"""Chat Completions chunks as neutral events, from plain dicts and from the SDK's objects alike."""

from collections.abc import Callable
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from outlast.providers import ChatCompletionsDecoder
from outlast.runtime import (
    ModelEvent,
    PermanentModelError,
    RetryableModelError,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)

Convert = Callable[[dict[str, Any]], Any]


@pytest.fixture(params=["dict", "object"])
def convert(request: pytest.FixtureRequest) -> Convert:
    if request.param == "dict":
        return lambda chunk: chunk
    return ChatCompletionChunk.model_validate


def chunk(*choices: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": list(choices),
    }


def choice(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": reason}


def call(index: int, **fields: Any) -> dict[str, Any]:
    function = {name: fields[name] for name in ("name", "arguments") if name in fields}
    head = {"id": fields["id"], "type": "function"} if "id" in fields else {}
    return {"tool_calls": [{"index": index, **head, "function": function}]}


def decode(convert: Convert, *chunks: dict[str, Any]) -> list[ModelEvent]:
    decoder = ChatCompletionsDecoder()
    events = [event for item in chunks for event in decoder.feed(convert(item))]
    return events + decoder.finish()


def test_text_and_its_end(convert: Convert) -> None:
    """Empty pieces, the role, usage and other choices say nothing."""
    assert decode(
        convert,
        chunk(choice({"role": "assistant", "content": ""})),
        chunk(choice({"content": "Hi"}), choice({"content": "other"}, index=1)),
        chunk(choice({"content": None})),
        chunk(choice({"content": "!"}, "stop")),
        chunk(),
    ) == [TextDelta("Hi"), TextDelta("!"), StreamEnd("stop")]


def test_tool_calls_are_told_apart_by_index(convert: Convert) -> None:
    """Id and name come once and are on every event; calls may alternate."""
    assert decode(
        convert,
        chunk(choice(call(0, id="a", name="f", arguments=""))),
        chunk(choice(call(1, id="b", name="g", arguments='{"x"'))),
        chunk(choice(call(0, arguments="{}"))),
        chunk(choice(call(1, arguments=":1}"))),
        chunk(choice({}, "tool_calls")),
    ) == [
        ToolCallDelta(0, "a", "f", ""),
        ToolCallDelta(1, "b", "g", '{"x"'),
        ToolCallDelta(0, "a", "f", "{}"),
        ToolCallDelta(1, "b", "g", ":1}"),
        StreamEnd("tool_calls"),
    ]


def test_another_id_at_the_same_index_is_another_call(convert: Convert) -> None:
    """Some servers number every call 0; one that repeats its id is still the same call."""
    assert decode(
        convert,
        chunk(choice(call(0, id="a", name="f", arguments="{"))),
        chunk(choice(call(0, id="a", name="f", arguments="}"))),
        chunk(choice(call(0, id="b", name="f", arguments="{}"))),
        chunk(choice({}, "tool_calls")),
    ) == [
        ToolCallDelta(0, "a", "f", "{"),
        ToolCallDelta(0, "a", "f", "}"),
        ToolCallDelta(1, "b", "f", "{}"),
        StreamEnd("tool_calls"),
    ]


def test_a_call_without_an_id_gets_one(convert: Convert) -> None:
    """Its result has to name it."""
    events = decode(
        convert,
        chunk(choice(call(0, name="f", arguments="{}"))),
        chunk(choice({}, "tool_calls")),
    )
    assert events[0] == ToolCallDelta(0, "call_0", "f", "{}")


@pytest.mark.parametrize("arguments", [{}, {"arguments": ""}, {"arguments": " "}])
@pytest.mark.parametrize(
    ("reason", "closed"),
    [("tool_calls", True), ("stop", True), ("length", False), ("content_filter", False)],
)
def test_a_call_closed_without_arguments_gets_an_empty_object(
    convert: Convert, reason: str, closed: bool, arguments: dict[str, str]
) -> None:
    """Unless a limit may have cut its arguments off: then it stays incomplete."""
    events = decode(
        convert,
        chunk(choice(call(0, id="a", name="now", **arguments))),
        chunk(choice(call(1, id="b", name="f", arguments='{"x":1}'))),
        chunk(choice({}, reason)),
    )
    added = [event for event in events if isinstance(event, ToolCallDelta) and event.index == 0]
    assert ("".join(event.arguments for event in added).strip() == "{}") is closed
    assert events[-1] == StreamEnd(reason)


def test_a_refusal_is_text_with_a_reason_of_its_own(convert: Convert) -> None:
    """The application can tell it from an answer."""
    assert decode(
        convert,
        chunk(choice({"refusal": "I can"})),
        chunk(choice({"refusal": "not."})),
        chunk(choice({}, "stop")),
    ) == [TextDelta("I can"), TextDelta("not."), StreamEnd("refusal")]


def test_a_stream_without_a_reason_has_no_end(convert: Convert) -> None:
    """Nor does a call that was open at the cut get arguments."""
    assert decode(
        convert,
        chunk(choice({"content": "Hi"})),
        chunk(choice(call(0, id="a", name="f", arguments=""))),
    ) == [TextDelta("Hi"), ToolCallDelta(0, "a", "f", "")]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"message": "overloaded", "type": "server_error"}, RetryableModelError),
        ({"message": "slow down", "type": "rate_limit_error", "code": None}, RetryableModelError),
        ({"message": "upstream", "code": 502}, RetryableModelError),
        ({"message": "upstream", "code": "429"}, RetryableModelError),
        ({"message": "odd"}, RetryableModelError),
        ("just text", RetryableModelError),
        ({"message": "bad", "type": "invalid_request_error"}, PermanentModelError),
        ({"message": "bad", "code": 400}, PermanentModelError),
        ({"message": "key", "type": "authentication_error"}, PermanentModelError),
    ],
    ids=str,
)
def test_an_error_in_place_of_a_chunk_is_told_by_its_type(body: Any, kind: type) -> None:
    """Never by its words."""
    with pytest.raises(kind, match=body["message"] if isinstance(body, dict) else body):
        ChatCompletionsDecoder().feed({"error": body})
