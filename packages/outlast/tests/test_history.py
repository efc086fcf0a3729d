"""Conversations that providers accept, and the mending of those that they would refuse."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import ApiMessage
from outlast.runtime import check_history, repair_history


def said(name: str, text: str = "text") -> ApiMessage:
    return ApiMessage(id=name, role="user", content=text)


def called(name: str, *calls: str, text: str = "") -> ApiMessage:
    blocks: list[Any] = [{"type": "text", "text": text}] if text else []
    blocks += [{"type": "tool_call", "id": call, "name": "f", "arguments": {}} for call in calls]
    return ApiMessage(id=name, role="assistant", content=blocks)


def answered(name: str, *calls: str, text: str = "") -> ApiMessage:
    blocks: list[Any] = [
        {"type": "tool_result", "call_id": call, "content": f"{name} {call}", "is_error": False}
        for call in calls
    ]
    blocks += [{"type": "text", "text": text}] if text else []
    return ApiMessage(id=name, role="user" if text else "tool", content=blocks)


VALID = [
    [],
    [said("u")],
    [said("u"), called("a", text="hi"), said("v")],
    [said("u"), called("a", "1"), answered("r", "1"), called("b", text="done")],
    [said("u"), called("a", "1", "2"), answered("r", "1"), answered("s", "2")],
    [said("u"), called("a", "1", "2"), answered("r", "2", "1"), said("v")],
    [said("u"), called("a", "1"), answered("r", "1", text="and more"), called("b", text="done")],
    [called("a", "1"), answered("r", "1"), called("b", "1"), answered("s", "1")],
]


@pytest.mark.parametrize("messages", VALID)
@pytest.mark.parametrize("close_last", [True, False])
def test_what_is_right_stays_as_it_is(messages: list[ApiMessage], close_last: bool) -> None:
    assert check_history(messages) == []
    assert repair_history(messages, close_last=close_last) == (messages, [])


def shape(messages: list[ApiMessage]) -> list[str]:
    """Each message as ``role:call,call``."""
    return [
        f"{message.id}:"
        + ",".join(
            str(block.get("id") or block.get("call_id"))
            for block in message.content
            if isinstance(block, dict) and block["type"] != "text"
        )
        for message in messages
    ]


@pytest.mark.parametrize(
    ("messages", "mended", "kinds"),
    [
        (
            [called("a", "1"), said("u")],
            ["a:1", "a:0:1", "u:"],
            ["unanswered_call"],
        ),
        (
            [called("a", "1", "2"), answered("r", "2"), said("u")],
            ["a:1,2", "r:2", "a:0:1", "u:"],
            ["unanswered_call"],
        ),
        ([said("u"), answered("r", "1")], ["u:"], ["orphan_result"]),
        (
            [answered("r", "1"), called("a", "1")],
            ["a:1", "a:0:1"],
            ["orphan_result", "unanswered_call"],
        ),
        (
            [called("a", "1"), said("u"), answered("r", "1")],
            ["a:1", "r:1", "u:"],
            ["displaced_result"],
        ),
        (
            [called("a", "1"), answered("r", "1"), answered("s", "1")],
            ["a:1", "r:1"],
            ["orphan_result"],
        ),
        (
            [called("a", "1", "2"), answered("r", "1", text="more"), said("u")],
            ["a:1,2", "a:1:2", "r:1", "u:"],
            ["unanswered_call"],
        ),
        (
            [called("a", "1"), called("b", "1"), answered("r", "1")],
            ["a:1", "a:0:1", "b:1", "r:1"],
            ["unanswered_call"],
        ),
        (
            [called("a", "1"), said("u"), answered("r", "1", text="more")],
            ["a:1", "a:results:2:1", "u:", "r:"],
            ["displaced_result"],
        ),
    ],
)
def test_what_is_wrong_is_mended(
    messages: list[ApiMessage], mended: list[str], kinds: list[str]
) -> None:
    assert check_history(messages) != []
    result, repairs = repair_history(messages, close_last=True)
    assert shape(result) == mended
    assert [repair.kind for repair in repairs] == kinds
    assert check_history(result) == []


def test_the_calls_of_the_last_turn_may_stay_open() -> None:
    """They are still to be run; but not once something follows them."""
    running = [said("u"), called("a", "1", "2"), answered("r", "1")]
    assert repair_history(running, close_last=False) == (running, [])
    closed, repairs = repair_history(running, close_last=True)
    assert [repair.kind for repair in repairs] == ["unanswered_call"]
    assert check_history(closed) == []
    followed, repairs = repair_history([*running, said("v")], close_last=False)
    assert [repair.kind for repair in repairs] == ["unanswered_call"]
    assert check_history(followed) == []


CALLS = st.lists(st.sampled_from("123"), max_size=3, unique=True)
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda: said("x")),
        st.builds(lambda calls: called("x", *calls, text="t"), CALLS),
        st.builds(
            lambda calls, text: answered("x", *calls, text=text),
            st.lists(st.sampled_from("123"), min_size=1, max_size=3),
            st.sampled_from(["", "t"]),
        ),
    ),
    max_size=8,
).map(
    lambda messages: [
        ApiMessage(id=f"m{place}", role=message.role, content=message.content)
        for place, message in enumerate(messages)
    ]
)


@given(MESSAGES)
def test_whatever_is_stored_becomes_acceptable(messages: list[ApiMessage]) -> None:
    """No text is lost, ids stay unique, and mending twice changes nothing more."""
    mended, repairs = repair_history(messages, close_last=True)
    assert check_history(mended) == []
    assert repair_history(mended, close_last=True) == (mended, [])
    assert (mended == messages) == (not repairs)
    ids = [message.id for message in mended]
    assert len(ids) == len(set(ids))

    def texts(some: list[ApiMessage]) -> list[str]:
        return [
            block["text"] if isinstance(block, dict) else "string"
            for message in some
            for block in message.content
            if not isinstance(block, dict) or block["type"] == "text"
        ]

    assert sorted(texts(mended)) == sorted(texts(messages))
