"""Stored messages in the terms of OpenAI's Responses API."""

from typing import Any

import pytest
from protocol_rules import check_responses

from outlast import ApiMessage, InvalidDataError
from outlast.model_api import ModelRequest, ToolSpec
from outlast.providers._continuation import CONTINUE_INSTRUCTION
from outlast.providers._responses_request import build_request, to_input_items

CALL = {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"x": "é"}}
RESULT = {"type": "tool_result", "call_id": "c1", "content": {"y": 2}}
SEALED = {"type": "reasoning", "summary": [], "encrypted_content": "sealed"}
MINE = {"type": "provider", "provider": "openai.responses", "data": SEALED}
OTHER = {"type": "provider", "provider": "anthropic.messages", "data": {"type": "thinking"}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def items(role: str, content: Any) -> list[dict[str, Any]]:
    return to_input_items([ApiMessage(id="m7", role=role, content=content)])


def test_a_conversation_with_tools_becomes_items() -> None:
    """Calls and results are matched by their call's id; no item has one of its own."""
    messages = [
        ApiMessage(id="m0", role="system", content="Be short."),
        ApiMessage(id="m1", role="user", content=[text("Hi"), text("!")]),
        ApiMessage(id="m2", role="assistant", content=[MINE, text("Let me see."), CALL, OTHER]),
        ApiMessage(id="m3", role="tool", content=[RESULT]),
    ]
    body = build_request("m", ModelRequest(messages), "", {})
    assert body["input"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi!"},
        SEALED,
        {"role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x":"é"}'},
        {"type": "function_call_output", "call_id": "c1", "output": '{"y":2}'},
    ]
    check_responses(body, {"sealed": ""})


def test_reasoning_stays_before_what_it_led_to() -> None:
    """Between two calls, too."""
    kinds = [item.get("type") for item in items("assistant", [CALL, MINE, text("a"), MINE, CALL])]
    assert kinds == ["function_call", "reasoning", None, "reasoning", "function_call"]


def test_a_failed_result_says_so() -> None:
    """The API has no field for it."""
    (item,) = items("tool", [{**RESULT, "content": "no", "is_error": True}])
    assert item["output"] == "Error: no"


def test_blocks_in_the_apis_own_form_pass() -> None:
    """Beside text, which becomes a part like them."""
    image = {"type": "input_image", "image_url": "https://example.org/x.png"}
    assert items("user", [text("Look:"), image]) == [
        {"role": "user", "content": [{"type": "input_text", "text": "Look:"}, image]}
    ]


@pytest.mark.parametrize("content", [[], [text("")], [OTHER]])
def test_a_message_of_which_nothing_is_left_is_left_out(content: Any) -> None:
    """Another provider's blocks do not go."""
    assert items("assistant", content) == []


def test_a_prefix_goes_into_the_request_with_the_wish_to_continue() -> None:
    """The unfinished message is followed by an instruction, since the API would begin a new one."""
    request = ModelRequest([ApiMessage(id="u", role="user", content="Hi")])
    body = build_request("m", request, "Hel ", {})
    assert body["input"][1:] == [
        {"role": "assistant", "content": "Hel "},
        {"role": "user", "content": CONTINUE_INSTRUCTION},
    ]
    check_responses(body, {})


def test_parameters_and_tools_are_passed_on() -> None:
    """A request's own parameters go before the adapter's."""
    request = ModelRequest([], tools=[ToolSpec("now", "Tells.")], params={"top_p": 2})
    assert build_request("m", request, "", {"top_p": 1, "store": False}) == {
        "model": "m",
        "input": [],
        "stream": True,
        "top_p": 2,
        "store": False,
        "tools": [
            {
                "type": "function",
                "name": "now",
                "description": "Tells.",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            }
        ],
    }


@pytest.mark.parametrize(
    "name", ["conversation", "input", "model", "previous_response_id", "stream", "tools"]
)
def test_parameters_that_the_adapter_sets_are_refused(name: str) -> None:
    """A history that the API keeps would come twice."""
    with pytest.raises(InvalidDataError, match=name):
        build_request("m", ModelRequest([], params={name: 1}), "", {})
