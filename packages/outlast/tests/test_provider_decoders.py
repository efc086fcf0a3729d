"""Events of Responses and Messages as neutral ones, from plain dicts and from the SDKs' objects."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from outlast.providers import MessagesDecoder, ResponsesDecoder
from outlast.providers._continuation import Seam
from outlast.runtime import (
    ModelEvent,
    PermanentModelError,
    ProviderData,
    RetryableModelError,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)

Json = dict[str, Any]
Convert = Callable[[Json], Any]

AS_OBJECTS: dict[str, TypeAdapter[Any]] = {
    "messages": TypeAdapter(RawMessageStreamEvent),
    "responses": TypeAdapter(ResponseStreamEvent),
}


@pytest.fixture(params=["dict", "object"])
def is_object(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "object")


def decode(decoder: Any, events: Iterable[Json], *, is_object: bool) -> list[ModelEvent]:
    """All that the events say."""
    kind = "messages" if isinstance(decoder, MessagesDecoder) else "responses"
    convert: Convert = AS_OBJECTS[kind].validate_python if is_object else dict
    made: list[ModelEvent] = []
    for event in events:
        made += decoder.feed(convert(event))
    return made + decoder.finish()


# Anthropic Messages


def block(index: int, content: Json, *deltas: Json) -> list[Json]:
    parts = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    start = {"type": "content_block_start", "index": index, "content_block": content}
    return [start, *parts, {"type": "content_block_stop", "index": index}]


def use(index: int, call_id: str, *pieces: str, **given: Any) -> list[Json]:
    content = {"type": "tool_use", "id": call_id, "name": "f", "input": given}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, content, *deltas)


def text(index: int, *pieces: str) -> list[Json]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": "", "citations": None}, *deltas)


def stop(reason: str) -> Json:
    usage = {"output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    usage = {**usage, "input_tokens": 1}
    delta = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": delta, "usage": usage}


END = {"type": "message_stop"}


def test_blocks_of_messages_are_told_apart(is_object: bool) -> None:
    """Text of several blocks is one text; calls are numbered among themselves."""
    events = [
        *text(0, "a", "", "b"),
        *use(1, "t1", "", '{"x"', ":1}"),
        *text(2, "c"),
        *use(3, "t2", "{}"),
        stop("tool_use"),
        END,
    ]
    assert decode(MessagesDecoder(), events, is_object=is_object) == [
        TextDelta("a"),
        TextDelta("b"),
        ToolCallDelta(0, "t1", "f", ""),
        ToolCallDelta(0, "t1", "f", '{"x"'),
        ToolCallDelta(0, "t1", "f", ":1}"),
        TextDelta("c"),
        ToolCallDelta(1, "t2", "f", ""),
        ToolCallDelta(1, "t2", "f", "{}"),
        StreamEnd("tool_use"),
    ]


def test_thinking_is_kept_whole_and_signed(is_object: bool) -> None:
    """Where it was, redacted or not; what came without a signature is worth nothing."""
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    signed = {"type": "signature_delta", "signature": "sig"}
    halves = ["h\ud83c", "\udf27m"] if not is_object else ["h", "\U0001f327m"]
    deltas = [{"type": "thinking_delta", "thinking": half} for half in halves]
    events = [
        *block(0, thinking, *deltas, signed),
        *text(1, "a"),
        *block(2, {"type": "redacted_thinking", "data": "xyz"}),
        *block(3, thinking, deltas[0]),
        stop("end_turn"),
    ]
    name = "anthropic.messages"
    whole = {"type": "thinking", "thinking": "h\U0001f327m", "signature": "sig"}
    assert decode(MessagesDecoder(), events, is_object=is_object) == [
        ProviderData(name, whole),
        TextDelta("a"),
        ProviderData(name, {"type": "redacted_thinking", "data": "xyz"}),
        StreamEnd("end_turn"),
    ]


@pytest.mark.parametrize(
    ("reason", "closed"),
    [
        ("tool_use", True),
        ("end_turn", True),
        ("max_tokens", False),
        ("refusal", False),
        ("model_context_window_exceeded", False),
    ],
)
def test_a_call_closed_without_input_gets_an_empty_object(
    is_object: bool, reason: str, closed: bool
) -> None:
    """Unless a limit may have cut its input off: then it stays incomplete."""
    events = [*use(0, "t1", "", " "), *use(1, "t2", '{"x":1}'), stop(reason)]
    made = decode(MessagesDecoder(), events, is_object=is_object)
    assert (ToolCallDelta(0, "t1", "f", "{}") in made) is closed
    assert made[-1] == StreamEnd(reason)


def test_input_that_comes_in_one_piece_is_taken(is_object: bool) -> None:
    """Some servers put it where the block begins."""
    made = decode(MessagesDecoder(), [*use(0, "t1", x=1), stop("tool_use")], is_object=is_object)
    assert made[1:] == [ToolCallDelta(0, "t1", "f", '{"x":1}'), StreamEnd("tool_use")]


def test_a_stream_of_messages_that_was_cut_has_no_end(is_object: bool) -> None:
    """Nor does a call that was closed without input get any."""
    made = decode(MessagesDecoder(), use(0, "t1", ""), is_object=is_object)
    assert made == [ToolCallDelta(0, "t1", "f", "")]
    assert decode(MessagesDecoder(), [END], is_object=is_object) == [StreamEnd("end_turn")]


def test_what_runs_at_the_provider_is_left_out(is_object: bool) -> None:
    """Its calls are no calls of ours."""
    server = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    events = [
        *block(0, server, {"type": "input_json_delta", "partial_json": "{}"}),
        stop("end_turn"),
    ]
    assert decode(MessagesDecoder(), events, is_object=is_object) == [StreamEnd("end_turn")]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", RetryableModelError),
        ("api_error", RetryableModelError),
        ("rate_limit_error", RetryableModelError),
        ("timeout_error", RetryableModelError),
        ("invalid_request_error", PermanentModelError),
        ("authentication_error", PermanentModelError),
        ("permission_error", PermanentModelError),
        ("billing_error", PermanentModelError),
    ],
)
def test_an_error_event_is_told_by_its_type(kind: str, expected: type[Exception]) -> None:
    """Never by its words."""
    with pytest.raises(expected, match="in mid-stream: words"):
        MessagesDecoder().feed({"type": "error", "error": {"type": kind, "message": "words"}})


@pytest.mark.parametrize(
    ("kept", "pieces", "joined"),
    [
        ("", [" a"], [" a"]),
        (" ", [" a", " b"], ["a", " b"]),
        (" ", ["a"], ["a"]),
        (" ", ["\n\na"], ["\n\na"]),
        ("\n\n", ["\n", "\n", "  a"], ["  a"]),
        ("\n\n", ["\n", "a"], ["a"]),
        ("\n", ["\n\na"], ["\na"]),
        (" \n", [" ", "x", "\n"], ["x", "\n"]),
    ],
)
def test_white_space_that_a_continuation_repeats_is_left_out(
    kept: str, pieces: list[str], joined: list[str]
) -> None:
    """Nothing else is, and nothing later."""
    seam = Seam(kept)
    made = [seam.join(TextDelta(piece)) for piece in pieces]
    assert [event.text for event in made if isinstance(event, TextDelta)] == joined


# OpenAI Responses


def numbered(*events: Json) -> list[Json]:
    return [{"sequence_number": number, **event} for number, event in enumerate(events)]


def said(index: int, piece: str, kind: str = "output_text") -> Json:
    at = {"output_index": index, "item_id": f"i{index}", "content_index": 0, "logprobs": []}
    return {"type": f"response.{kind}.delta", **at, "delta": piece}


def item(when: str, index: int, kind: str = "function_call", **fields: Any) -> Json:
    body = {"type": kind, "id": f"i{index}", **fields}
    return {"type": f"response.output_item.{when}", "output_index": index, "item": body}


def call(when: str, index: int, call_id: str, arguments: str = "", **fields: Any) -> Json:
    return item(when, index, call_id=call_id, name="f", arguments=arguments, **fields)


def arguments(when: str, index: int, value: str) -> Json:
    name = "delta" if when == "delta" else "arguments"
    kind = f"response.function_call_arguments.{when}"
    return {"type": kind, "output_index": index, "item_id": f"i{index}", name: value}


def ended(status: str = "completed", **fields: Any) -> Json:
    head = {"id": "resp_1", "object": "response", "created_at": 1.0, "model": "m", "output": []}
    head = {**head, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"type": f"response.{status}", "response": {**head, "status": status, **fields}}


def test_items_of_responses_are_told_apart(is_object: bool) -> None:
    """Several messages are one text, with an empty line between them."""
    events = numbered(
        said(0, "a"),
        said(0, "b"),
        call("added", 1, "c1"),
        arguments("delta", 1, '{"x"'),
        call("added", 2, "c2"),
        arguments("delta", 1, ":1}"),
        arguments("done", 1, '{"x":1}'),
        call("done", 1, "c1", '{"x":1}', status="completed"),
        said(3, "c"),
        ended(),
    )
    assert decode(ResponsesDecoder(), events, is_object=is_object) == [
        TextDelta("a"),
        TextDelta("b"),
        ToolCallDelta(0, "c1", "f", ""),
        ToolCallDelta(0, "c1", "f", '{"x"'),
        ToolCallDelta(1, "c2", "f", ""),
        ToolCallDelta(0, "c1", "f", ":1}"),
        TextDelta("\n\nc"),
        StreamEnd("completed"),
    ]


@pytest.mark.parametrize(
    "events",
    [
        [call("added", 0, "c1"), arguments("done", 0, '{"x":1}')],
        [call("added", 0, "c1"), call("done", 0, "c1", '{"x":1}')],
        [call("done", 0, "c1", '{"x":1}')],
        [call("added", 0, "c1"), arguments("delta", 0, '{"x'), arguments("done", 0, '{"x":1}')],
    ],
    ids=["done", "item", "item alone", "rest"],
)
def test_arguments_that_do_not_come_in_pieces_are_taken(
    is_object: bool, events: list[Json]
) -> None:
    """Once."""
    last = call("done", 0, "c1", '{"x":1}')
    made = decode(ResponsesDecoder(), numbered(*events, last, ended()), is_object=is_object)
    pieces = [event.arguments for event in made if isinstance(event, ToolCallDelta)]
    assert "".join(pieces) == '{"x":1}'


@pytest.mark.parametrize(("status", "closed"), [("completed", True), ("incomplete", False)])
def test_an_item_closed_without_arguments_gets_an_empty_object(
    is_object: bool, status: str, closed: bool
) -> None:
    """At once, so that a cut behind it does not lose the call."""
    events = numbered(call("added", 0, "c1"), call("done", 0, "c1", "", status=status))
    made = decode(ResponsesDecoder(), events, is_object=is_object)
    assert (ToolCallDelta(0, "c1", "f", "{}") in made) is closed


def test_reasoning_is_kept_in_its_encrypted_form(is_object: bool) -> None:
    """Without the id by which the API may have forgotten it; and only where it is complete."""
    summary = [{"type": "summary_text", "text": "hm"}]
    events = numbered(
        item("added", 0, "reasoning", summary=[], encrypted_content="se"),
        item(
            "done", 0, "reasoning", summary=summary, encrypted_content="sealed", status="completed"
        ),
        item("done", 1, "reasoning", summary=summary),
        ended(),
    )
    data = {"type": "reasoning", "summary": summary, "encrypted_content": "sealed"}
    assert decode(ResponsesDecoder(), events, is_object=is_object) == [
        ProviderData("openai.responses", data),
        StreamEnd("completed"),
    ]


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_incomplete_response_ends_with_its_reason(is_object: bool, reason: str) -> None:
    """It is an end, not a cut."""
    events = numbered(said(0, "a"), ended("incomplete", incomplete_details={"reason": reason}))
    assert decode(ResponsesDecoder(), events, is_object=is_object)[-1] == StreamEnd(reason)


def test_a_refusal_of_a_response_is_text_with_a_reason_of_its_own(is_object: bool) -> None:
    """The application can tell it from an answer."""
    events = numbered(said(0, "No.", "refusal"), ended())
    made = decode(ResponsesDecoder(), events, is_object=is_object)
    assert made == [TextDelta("No."), StreamEnd("refusal")]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("server_error", RetryableModelError),
        ("rate_limit_exceeded", RetryableModelError),
        ("vector_store_timeout", RetryableModelError),
        ("something_new", RetryableModelError),
        ("invalid_prompt", PermanentModelError),
        ("invalid_image_url", PermanentModelError),
        ("insufficient_quota", PermanentModelError),
    ],
)
def test_a_failed_response_is_told_by_its_code(code: str, expected: type[Exception]) -> None:
    """In each of the forms that the API has for it."""
    error = {"code": code, "message": "words"}
    for event in (
        ended("failed", error=error),
        {"type": "error", **error},
        {"type": "error", "error": error},
        {"error": error},
    ):
        with pytest.raises(expected, match="in mid-stream: words"):
            ResponsesDecoder().feed(event)


def test_a_stream_of_responses_that_was_cut_has_no_end(is_object: bool) -> None:
    """Nor does a call that was open at the cut get arguments."""
    events = numbered(said(0, "a"), call("added", 1, "c1"))
    made = decode(ResponsesDecoder(), events, is_object=is_object)
    assert made == [TextDelta("a"), ToolCallDelta(0, "c1", "f", "")]
