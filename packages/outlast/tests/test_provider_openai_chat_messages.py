"""Stored messages as requests to Chat Completions."""

from typing import Any

import pytest

from outlast import ApiMessage, InvalidDataError
from outlast.providers._chat_request import build_request, to_chat_messages
from outlast.providers.openai_chat import CONTINUE_INSTRUCTION
from outlast.runtime import ModelRequest, ToolSpec

CALL = {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "Århus", "n": 1}}
RESULT = {"type": "tool_result", "call_id": "c1", "content": "rain", "is_error": False}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def chat(role: str, content: Any) -> list[dict[str, Any]]:
    return to_chat_messages([ApiMessage(id="m7", role=role, content=content)])


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("role", "content", "expected"),
    [
        ("user", "Hi", [{"role": "user", "content": "Hi"}]),
        ("system", "Be brief.", [{"role": "system", "content": "Be brief."}]),
        ("user", [text("a"), text("b")], [{"role": "user", "content": "ab"}]),
        ("user", text("a"), [{"role": "user", "content": "a"}]),
        ("user", [text("a"), IMAGE], [{"role": "user", "content": [text("a"), IMAGE]}]),
        ("assistant", [], [{"role": "assistant", "content": ""}]),
    ],
    ids=["text", "system", "blocks", "one-block", "image", "empty"],
)
def test_text_and_foreign_blocks_become_content(
    role: str, content: Any, expected: list[dict[str, Any]]
) -> None:
    """Text is joined; what the API knows itself goes as it is."""
    assert chat(role, content) == expected


def test_calls_become_tool_calls() -> None:
    """Arguments go as JSON text, letters as they are; without text the content is null."""
    function = {"name": "search", "arguments": '{"q":"Århus","n":1}'}
    tool_calls = [{"id": "c1", "type": "function", "function": function}]
    assert chat("assistant", [CALL]) == [
        {"role": "assistant", "content": None, "tool_calls": tool_calls}
    ]
    assert chat("assistant", [text("Hm"), CALL]) == [
        {"role": "assistant", "content": "Hm", "tool_calls": tool_calls}
    ]


@pytest.mark.parametrize(
    ("content", "is_error", "expected"),
    [
        ("rain", False, "rain"),
        ({"mm": 3.0}, False, '{"mm":3.0}'),
        (None, False, "null"),
        ("no such city", True, "Error: no such city"),
        ([1], True, "Error: [1]"),
    ],
)
def test_each_result_becomes_a_tool_message(content: Any, is_error: bool, expected: str) -> None:
    """Content that is no text goes as JSON, an error says that it is one."""
    block = {**RESULT, "content": content, "is_error": is_error}
    assert chat("tool", [block]) == [{"role": "tool", "tool_call_id": "c1", "content": expected}]


def test_results_go_before_what_else_their_message_holds() -> None:
    """The API wants the results directly behind the calls."""
    other = {**RESULT, "call_id": "c2"}
    expected = [
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
        {"role": "user", "content": "And?"},
    ]
    assert chat("user", [RESULT, text("And?"), other]) == expected
    assert chat("tool", [RESULT, text("And?"), other]) == expected


@pytest.mark.parametrize(
    ("role", "content", "complaint"),
    [
        ("user", ["plain"], "block 0: not a content block"),
        ("user", [text("a"), {"text": "b"}], "block 1: not a content block"),
        ("user", {"answer": 42}, "block 0: not a content block"),
        ("user", [{"type": "text"}], "block 0: a text block needs 'text'"),
        ("user", [{"type": "text", "text": 1}], "block 0: text must be a str, not int"),
        (
            "assistant",
            [{"type": "tool_call", "id": "c"}],
            "block 0: a tool_call block needs 'name'",
        ),
        (
            "tool",
            [{"type": "tool_result", "content": ""}],
            "block 0: a tool_result block needs 'call_id'",
        ),
        ("user", [CALL], "block 0: role 'user' makes no tool calls"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(
    role: str, content: Any, complaint: str
) -> None:
    """The message and the block are named."""
    with pytest.raises(InvalidDataError, match="message 'm7', " + complaint) as caught:
        chat(role, content)
    assert isinstance(caught.value, ValueError)


def test_a_prefix_goes_into_the_request_with_the_wish_to_continue() -> None:
    """The unfinished message is followed by an instruction, since the API would begin a new one."""
    request = ModelRequest([ApiMessage(id="u", role="user", content="Hi")])
    body = build_request("m", request, "Hel ", {})
    assert body["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hel "},
        {"role": "user", "content": CONTINUE_INSTRUCTION},
    ]
    assert build_request("m", request, "", {})["messages"] == body["messages"][:1]


def test_parameters_and_tools_are_passed_on() -> None:
    """A request's own parameters go before the adapter's."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    request = ModelRequest(
        [], tools=[ToolSpec("search", "Finds.", schema), ToolSpec("now")], params={"seed": 2}
    )
    body = build_request("m", request, "", {"seed": 1, "temperature": 0})
    assert body == {
        "model": "m",
        "messages": [],
        "stream": True,
        "seed": 2,
        "temperature": 0,
        "tools": [
            {
                "type": "function",
                "function": {"name": "search", "description": "Finds.", "parameters": schema},
            },
            {
                "type": "function",
                "function": {
                    "name": "now",
                    "description": "",
                    "parameters": {"type": "object", "properties": {}},
                },
            },
        ],
    }


@pytest.mark.parametrize("name", ["messages", "model", "n", "stream", "tools"])
def test_parameters_that_the_adapter_sets_are_refused(name: str) -> None:
    """They would silently break the stream or the recovery."""
    with pytest.raises(InvalidDataError, match=name):
        build_request("m", ModelRequest([], params={name: 1}), "", {})
