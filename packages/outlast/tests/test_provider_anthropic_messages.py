"""Stored messages in the terms of Anthropic's Messages API."""

from typing import Any

import pytest
from protocol_rules import check_messages

from outlast import ApiMessage, InvalidDataError
from outlast.model_api import ModelRequest, ToolSpec
from outlast.providers._continuation import CONTINUE_INSTRUCTION
from outlast.providers._messages_request import build_request, takes_prefill, to_turns

OLD, NEW = "claude-haiku-4-5", "claude-opus-5"
ENABLED = {"type": "enabled", "budget_tokens": 1024}
CALL = {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"x": 1}}
RESULT = {"type": "tool_result", "call_id": "c1", "content": {"y": 2}}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}
MINE = {"type": "provider", "provider": "anthropic.messages", "data": THINKING}
OTHER = {"type": "provider", "provider": "openai.responses", "data": {"type": "reasoning"}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def talk(*messages: tuple[str, Any]) -> list[ApiMessage]:
    return [ApiMessage(id=f"m{n}", role=role, content=c) for n, (role, c) in enumerate(messages)]


def body(*messages: tuple[str, Any], prefix: str = "", model: str = NEW, **params: Any) -> Any:
    request = ModelRequest(talk(*messages), params=params)
    return build_request(model, request, prefix, {}, prefill=None).body


def test_a_conversation_with_tools_becomes_turns() -> None:
    """Results that follow each other are one turn of the user's, before what the user says."""
    other = {**CALL, "id": "c2", "arguments": {}}
    system, turns = to_turns(
        talk(
            ("system", "Be short."),
            ("developer", "Really."),
            ("user", "Hi"),
            ("assistant", [text("Let me see."), CALL, other]),
            ("tool", [RESULT]),
            ("user", "And?"),
            ("tool", [{**RESULT, "call_id": "c2", "is_error": True}]),
        )
    )
    assert system == [text("Be short."), text("Really.")]
    use = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": '{"y":2}'}
    assert turns == [
        {"role": "user", "content": [text("Hi")]},
        {
            "role": "assistant",
            "content": [text("Let me see."), use, {**use, "id": "c2", "input": {}}],
        },
        {
            "role": "user",
            "content": [result, {**result, "tool_use_id": "c2", "is_error": True}, text("And?")],
        },
    ]


def test_a_system_message_in_mid_conversation_stays_in_its_place() -> None:
    """What was sent before must not change, so it does not join the system prompt."""
    system, turns = to_turns(talk(("user", "Hi"), ("system", "Now in German.")))
    assert system == []
    marked = text("<system>\nNow in German.\n</system>")
    assert turns == [{"role": "user", "content": [text("Hi"), marked]}]


@pytest.mark.parametrize("content", ["", " \n", [], [text("")], [text("\t")], [OTHER], [MINE]])
def test_what_the_api_would_refuse_as_empty_is_left_out(content: Any) -> None:
    """White space alone, another provider's blocks, and thinking that leads to nothing."""
    _, turns = to_turns(talk(("user", "Hi"), ("assistant", content), ("user", "Hello?")))
    assert turns == [{"role": "user", "content": [text("Hi"), text("Hello?")]}]


def test_white_space_beside_a_call_is_left_out() -> None:
    """The call stays."""
    _, turns = to_turns(talk(("user", "Hi"), ("assistant", [text("\n\n"), CALL])))
    assert [block["type"] for block in turns[1]["content"]] == ["tool_use"]


def test_thinking_goes_back_in_its_place() -> None:
    """Unchanged; another provider's does not go."""
    _, turns = to_turns(talk(("user", "Hi"), ("assistant", [OTHER, MINE, text("a"), MINE, CALL])))
    kinds = [block["type"] for block in turns[1]["content"]]
    assert kinds == ["thinking", "text", "thinking", "tool_use"]
    assert turns[1]["content"][0] is THINKING


def test_blocks_in_the_apis_own_form_pass() -> None:
    """Images, and marks for the cache."""
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}}
    marked = {**text("long"), "cache_control": {"type": "ephemeral"}}
    _, turns = to_turns(talk(("user", [image, marked])))
    assert turns[0]["content"] == [image, marked]


def test_ids_that_the_api_does_not_take_are_replaced_alike() -> None:
    """A call of another provider still finds its result, and no other call's."""
    calls = [{**CALL, "id": call_id} for call_id in ("functions.f:0", "functions.f:1", "é", "ok-1")]
    results = [{**RESULT, "call_id": call["id"]} for call in calls]
    made = body(("user", "Hi"), ("assistant", calls), ("tool", results))
    check_messages(made, {})
    assert made["messages"][1]["content"][3]["id"] == "ok-1"


@pytest.mark.parametrize("content", ["", " ", [], {"why": "x"}])
def test_a_failure_always_says_something(content: Any) -> None:
    """The API refuses an error without content."""
    result = {**RESULT, "content": content, "is_error": True}
    made = body(("user", "Hi"), ("assistant", [CALL]), ("tool", [result]))
    check_messages(made, {})
    assert made["messages"][2]["content"][0]["content"].strip()


@pytest.mark.parametrize(
    ("role", "content", "complaint"),
    [
        ("user", [CALL], "role 'user' makes no tool calls"),
        ("assistant", [{**CALL, "arguments": "{}"}], "the arguments of call 'c1' are no object"),
        ("assistant", [{"type": "tool_call", "id": "c"}], "a tool_call block needs 'name'"),
        ("function", "x", "the API has no role 'function'"),
        ("user", ["x"], "not a content block"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(
    role: str, content: Any, complaint: str
) -> None:
    """The message is named."""
    with pytest.raises(InvalidDataError, match=f"message 'm0'.*{complaint}"):
        to_turns(talk((role, content)))


@pytest.mark.parametrize("name", ["messages", "model", "stream", "system", "tools"])
def test_parameters_that_the_adapter_sets_are_refused(name: str) -> None:
    """They would silently break the stream or the recovery."""
    with pytest.raises(InvalidDataError, match=name):
        build_request(NEW, ModelRequest([], params={name: 1}), "", {}, prefill=None)


def test_parameters_and_tools_are_passed_on() -> None:
    """A request's own parameters go before the adapter's, which go before the default limit."""
    request = ModelRequest(
        talk(("system", "S"), ("user", "Hi")),
        tools=[ToolSpec("now", "Tells.")],
        params={"top_k": 2},
    )
    built = build_request(NEW, request, "", {"top_k": 1, "temperature": 0}, prefill=None)
    assert built.body == {
        "model": NEW,
        "max_tokens": 8192,
        "top_k": 2,
        "temperature": 0,
        "stream": True,
        "system": [text("S")],
        "messages": [{"role": "user", "content": [text("Hi")]}],
        "tools": [
            {
                "name": "now",
                "description": "Tells.",
                "input_schema": {"type": "object", "properties": {}},
            }
        ],
    }
    assert body(("user", "Hi"), max_tokens=5)["max_tokens"] == 5


@pytest.mark.parametrize(
    ("model", "accepted"),
    [
        ("claude-3-5-sonnet-20241022", True),
        ("claude-3-opus-latest", True),
        ("claude-2.1", True),
        ("claude-opus-4-20250514", True),
        ("claude-opus-4-0", True),
        ("claude-opus-4-1", True),
        ("claude-sonnet-4-5-20250929", True),
        ("claude-haiku-4-5", True),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("claude-sonnet-4@20250514", True),
        ("claude-opus-4-5@20251101", True),
        ("claude-opus-4-6", False),
        ("claude-sonnet-4-6", False),
        ("anthropic.claude-opus-4-6-v1", False),
        ("claude-opus-4-7", False),
        ("claude-opus-4-8", False),
        ("claude-mythos-preview", False),
        ("claude-opus-5", False),
        ("claude-sonnet-5-5", False),
        ("claude-fable-5-2", False),
        ("somebody-elses-model", False),
    ],
)
def test_the_models_name_tells_whether_it_takes_a_prefill(model: str, accepted: bool) -> None:
    """A name that is not known counts as one that does not: that is never refused."""
    assert takes_prefill(model, {}) is accepted
    assert takes_prefill(model, {}, prefill=True)
    assert not takes_prefill(model, {}, prefill=False)


@pytest.mark.parametrize(
    ("params", "accepted"),
    [
        ({"thinking": {"type": "disabled"}}, True),
        ({"thinking": ENABLED}, False),
        ({"thinking": {"type": "adaptive"}}, False),
        ({"thinking": {"type": "between_tools"}}, False),
        ({"output_config": {"effort": "low"}}, True),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, False),
        ({"tool_choice": {"type": "auto"}}, True),
        ({"tool_choice": {"type": "any"}}, False),
        ({"tool_choice": {"type": "tool", "name": "f"}}, False),
    ],
)
def test_some_requests_take_no_prefill_from_any_model(params: Any, accepted: bool) -> None:
    """Whatever the caller says of the model."""
    assert takes_prefill(OLD, params) is accepted
    assert takes_prefill(NEW, params, prefill=True) is accepted


@pytest.mark.parametrize("space", ["", " ", "\n\n", " \t\u00a0"])
def test_a_prefill_does_not_end_with_white_space(space: str) -> None:
    """What is cut off is told, for the model will say it again."""
    request = ModelRequest(talk(("user", "Hi")))
    built = build_request(OLD, request, f"It will{space}", {}, prefill=None)
    assert built.body["messages"][-1] == {"role": "assistant", "content": [text("It will")]}
    assert built.kept == space
    check_messages(built.body, {})


def test_where_no_prefill_is_taken_the_rest_is_asked_for() -> None:
    """The prefix goes whole; the last word is the user's."""
    request = ModelRequest(talk(("user", "Hi")))
    built = build_request(NEW, request, "It will ", {}, prefill=None)
    assert built.kept == ""
    assert built.body["messages"][1:] == [
        {"role": "assistant", "content": [text("It will ")]},
        {"role": "user", "content": [text(CONTINUE_INSTRUCTION)]},
    ]


def test_thinking_with_a_budget_is_off_while_a_cut_turn_is_answered() -> None:
    """The API takes results behind thinking only; any other request thinks on."""
    asked = ("user", "Hi")
    uncut, cut = ("assistant", [MINE, CALL]), ("assistant", [text("a"), CALL])
    answer, more = ("tool", [RESULT]), ("user", "More")
    off = {"type": "disabled"}
    for messages, thinking in [
        ([asked], ENABLED),
        ([asked, uncut, answer], ENABLED),
        ([asked, cut, answer], off),
        ([asked, cut, answer, more], off),
        ([asked, cut, answer, ("assistant", "b"), more], ENABLED),
    ]:
        assert body(*messages, model=OLD, thinking=ENABLED)["thinking"] == thinking
    adaptive = {"type": "adaptive"}
    assert body(asked, cut, answer, thinking=adaptive)["thinking"] == adaptive
    # The wish to continue is a turn of the user's, so nothing has to be thought before it.
    continued = body(asked, cut, answer, model=OLD, prefix="It", thinking=ENABLED)
    assert continued["thinking"] == ENABLED
