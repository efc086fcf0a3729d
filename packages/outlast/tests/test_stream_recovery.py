"""plan_recovery: which of the four ways a cut turn goes on."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_kit import as_object

from outlast import PartialToolCall, StreamCheckpoint
from outlast.runtime import RecoveryKind, RecoveryPlan, plan_recovery

DONE = PartialToolCall("c1", "search", '{"q": "rain"}')
OPEN = PartialToolCall("c2", "search", '{"q": "ra')
R1, R2, R3, R4 = RecoveryKind


def plan(text: str = "", *calls: PartialToolCall) -> RecoveryPlan:
    return plan_recovery(
        StreamCheckpoint(
            run_id="r", thread_id="t", message_id="m", model="x", text=text, tool_calls=list(calls)
        )
    )


@pytest.mark.parametrize(
    ("text", "calls", "kind"),
    [
        ("Let me", (), R1),
        ("Let me ", (), R1),
        ("", (DONE,), R2),
        ("Let me", (DONE,), R2),
        ("Let me", (DONE, OPEN), R2),
        ("Let me", (OPEN, DONE), R2),
        ("Let me", (OPEN,), R3),
        ("Let me", (OPEN, OPEN), R3),
        ("", (), R4),
        ("", (OPEN,), R4),
        (" \n", (), R4),
        (" \n", (OPEN,), R4),
    ],
)
def test_the_checkpoint_decides_the_way(
    text: str, calls: tuple[PartialToolCall, ...], kind: RecoveryKind
) -> None:
    """Text alone goes on, a complete call ends the turn, open calls are dropped, nothing
    restarts.
    """
    made = plan(text, *calls)
    assert made.kind is kind
    assert made.calls_model is (kind is not R2)
    assert made.dropped == tuple(call for call in calls if call is OPEN)
    assert made.text == (text if kind is not R4 else "")
    assert made.prefix == (text if kind in (R1, R3) else "")


def test_a_complete_call_ends_the_turn_with_its_text() -> None:
    """R2 is the whole message: text, then the complete calls in their order."""
    assert plan("Let me.", DONE, OPEN, PartialToolCall("c3", "now", "{}")).content() == [
        {"type": "text", "text": "Let me."},
        {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "rain"}},
        {"type": "tool_call", "id": "c3", "name": "now", "arguments": {}},
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        " ",
        "{",
        "12",
        "null",
        "true",
        '"{}"',
        "[]",
        "[{}]",
        "{}{}",
        "{} x",
        "{'a': 1}",
        '{"a": 1,}',
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        '{"a": "\n"}',
        '{"a": ' + "1" * 1001 + "}",
        '{"a": ' + "[" * 800 + "]" * 800 + "}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "\ufeff{}",
    ],
    ids=lambda text: text.encode("unicode_escape").decode()[:14] or "empty",
)
def test_arguments_that_are_no_storable_object_are_incomplete(arguments: str) -> None:
    """A call runs only with arguments that are a JSON object, and that a store can keep."""
    assert plan("", PartialToolCall("c", "f", arguments)).kind is R4


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("{}", {}),
        (' {"a": 1} \n', {"a": 1}),
        ('{"a": {"b": [1, 2.0, null, true, "\\ud83c\\udf0d"]}}', None),
        ('{"a": ' + "9" * 1000 + "}", {"a": 10**1000 - 1}),
        ('{"a": -0.0}', {"a": -0.0}),
        ('{"$where": "a.b", "": "\\u0000"}', {"$where": "a.b", "": "\0"}),
    ],
    ids=["empty", "spaces", "nested", "long-integer", "minus-zero", "odd-keys"],
)
def test_complete_arguments_are_parsed_exactly(arguments: str, value: Any) -> None:
    """Numbers keep type and value, escapes are resolved."""
    made = plan("", PartialToolCall("c", "f", arguments))
    assert made.kind is R2
    parsed = made.tool_calls[0]["arguments"]
    assert repr(parsed) == repr(json.loads(arguments) if value is None else value)


def test_a_call_without_a_name_is_incomplete() -> None:
    """There is nothing to run."""
    assert plan("Hm", PartialToolCall("c", "", "{}")).kind is R3


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.none()))
def test_no_beginning_of_complete_arguments_is_complete(arguments: dict[str, Any]) -> None:
    """Cut at any character, a call is never taken for complete before its last brace."""
    whole = json.dumps(arguments)
    for end in range(len(whole)):
        assert plan("", PartialToolCall("c", "f", whole[:end])).kind is R4
    assert plan("", PartialToolCall("c", "f", whole)).kind is R2


@given(
    st.text(max_size=4),
    st.lists(st.sampled_from(["", "{}", '{"a":1}', '{"a"', "1", "[]", "{}x"]), max_size=4),
)
def test_every_call_is_either_kept_or_reported(text: str, arguments: list[str]) -> None:
    """Nothing disappears: complete calls are in the plan, all others are in its report."""
    calls = [PartialToolCall(f"c{place}", "f", raw) for place, raw in enumerate(arguments)]
    made = plan(text, *calls)
    complete = [call.id for call in calls if as_object(call.arguments) is not None]
    assert [call["id"] for call in made.tool_calls] == complete
    assert [call.id for call in made.dropped] == [c.id for c in calls if c.id not in complete]
    assert made.kind is (R2 if complete else R4 if not text.strip() else R3 if calls else R1)
