"""Turns whose processes die: whatever was saved at each death, one right message is committed.

A process is an opened backend of its own over a store that all share. It dies by an error that
nothing handles, and what it would still write is refused. Real processes die in
test_run_turn_processes.
"""

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_kit import (
    QUESTION,
    Blocks,
    Cut,
    Killed,
    MortalStore,
    ScriptedModel,
    content_of,
    drop,
    end,
    full_text,
    rendered,
    says,
)

from outlast import ApiMessage, open_backend
from outlast.runtime import (
    CheckpointPolicy,
    ModelEvent,
    RetryPolicy,
    RunContext,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    Turn,
    run_turn,
)

_names = (f"crash-{number}" for number in itertools.count())


class Death:
    """The end of one process.

    Args:
        after: Events of the model's call that it lives to see.
        saved: Writes of the checkpoint that it lives to make; ``None``: all that are due.
        cuts: Cuts of earlier calls in the same process, which it recovers from.
    """

    def __init__(self, after: int, saved: int | None = None, cuts: Sequence[Cut] = ()) -> None:
        self.after = after
        self.saved = saved
        self.cuts = cuts


async def live(name: str, events: Sequence[ModelEvent], death: Death | None) -> Turn | None:
    """One process: claim the task, run the turn, die as told."""
    async with open_backend(f"memory://{name}") as backend:
        store = MortalStore(backend.checkpoints, death.saved if death else None)

        async def die() -> None:
            await store.settled()
            store.lives = 0
            raise Killed

        cuts = [*death.cuts, Cut(death.after, die)] if death else []
        context = RunContext(
            backend.persistence,
            task_id="t",
            run_id="r",
            message_id="m1",
            claim=await backend.persistence.claim_task("t"),
            retry=RetryPolicy(max_retries=99, base_delay=0),
            checkpointing=CheckpointPolicy(interval=0),
        ).with_stream_checkpoint(store)
        shown = []
        try:
            async with run_turn(context, ScriptedModel(events, cuts=cuts), QUESTION) as turn:
                shown = [event async for event in turn]
        except Killed:
            return None
        assert turn.message is not None
        if not turn.finish_reason and not turn.recoveries:
            assert shown == []  # It was committed before.
        else:
            assert rendered(shown) == turn.message.content
        return turn


async def live_and_die(events: Sequence[ModelEvent], deaths: Sequence[Death]) -> Blocks:
    """All processes, one after the other, and a last one that does not die; the committed
    content.
    """
    name = next(_names)
    for number, death in enumerate(deaths):
        turn = await live(name, events, death)
        # A later process may have less to see than it would live to see.
        assert turn is None or number or death.cuts or death.after > len(events)
    turn = await live(name, events, None)
    assert turn is not None
    async with open_backend(f"memory://{name}") as backend:
        log = await backend.persistence.load_api_messages("t")
        assert log == [turn.message]
        assert await backend.checkpoints.get("r") is None
    (message,) = log
    assert isinstance(message, ApiMessage)
    assert isinstance(message.content, list)
    return message.content


ANSWER = says("It rains in Århus. ", ("c1", "search", '{"q": "rain"}'))
SHORT = says("It rains.", ("c1", "search", '{"q": 1}'), piece=5)


@pytest.mark.parametrize("first", range(len(ANSWER) + 1))
async def test_one_death_after_any_event(first: int) -> None:
    """The committed message equals the uncut one."""
    assert await live_and_die(ANSWER, [Death(first)]) == content_of(ANSWER)


@pytest.mark.parametrize("first", range(len(ANSWER) + 1))
async def test_two_deaths_after_any_events(first: int) -> None:
    """Prefix and continuation stay one message when the continuation is cut, too."""
    for second in range(len(ANSWER) + 1):
        assert await live_and_die(ANSWER, [Death(first), Death(second)]) == content_of(ANSWER)


@pytest.mark.parametrize("first", range(len(SHORT) + 1))
async def test_three_deaths_after_any_events(first: int) -> None:
    """And so it goes on."""
    for second, third in itertools.product(range(len(SHORT) + 1), repeat=2):
        deaths = [Death(first), Death(second), Death(third)]
        assert await live_and_die(SHORT, deaths) == content_of(SHORT)


@pytest.mark.parametrize("saved", range(6))
async def test_a_checkpoint_that_lags_behind_loses_nothing(saved: int) -> None:
    """What was streamed but not saved is asked for again."""
    for after in range(len(ANSWER) + 1):
        assert await live_and_die(ANSWER, [Death(after, saved)]) == content_of(ANSWER)


async def test_no_open_call_of_several_is_ever_committed() -> None:
    """Cut after each event of two parallel calls, only calls with complete arguments remain."""
    events = says("Two. ", ("c1", "f", '{"a": 1}'), ("c2", "g", '{"b": 22}'))
    whole = content_of(events)
    for after in range(len(events) + 1):
        content = await live_and_die(events, [Death(after)])
        assert content in (whole, whole[:2])
        assert content == whole or any(isinstance(e, ToolCallDelta) for e in events[:after])


TEXTS = st.text(
    st.sampled_from("ab \n\u00e9\U0001f30d\ud83c\udf0d") | st.characters(codec="utf-8"), max_size=6
)
ARGUMENTS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=3),
    st.none() | st.integers() | st.lists(st.booleans(), max_size=2) | TEXTS.map(len),
    max_size=3,
)


@st.composite
def scripts(draw: st.DrawFn) -> list[ModelEvent]:
    """Any mixture of text and tool calls whose arguments are complete in the end."""
    events: list[ModelEvent] = []
    pending: list[list[ModelEvent]] = []
    for index in range(draw(st.integers(0, 3))):
        raw = json.dumps(draw(ARGUMENTS))
        cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=3)))
        edges = [0, *cuts, len(raw)]
        pieces = [raw[begin:stop] for begin, stop in itertools.pairwise(edges)]
        pending.append([ToolCallDelta(index, f"c{index}", f"f{index}", piece) for piece in pieces])
    pending += [[TextDelta(piece)] for piece in draw(st.lists(TEXTS, max_size=6))]
    while pending:
        queue = draw(st.integers(0, len(pending) - 1))
        events.append(pending[queue].pop(0))
        if not pending[queue]:
            del pending[queue]
    return [*events, StreamEnd("stop")]


DEATHS = st.lists(
    st.builds(
        Death,
        st.integers(0, 16),
        st.none() | st.integers(0, 6),
        st.lists(st.builds(Cut, st.integers(0, 6), st.sampled_from([drop, end])), max_size=2),
    ),
    max_size=3,
)


@settings(max_examples=200)
@given(scripts(), DEATHS)
def test_random_turns_that_die_at_random(events: list[ModelEvent], deaths: list[Death]) -> None:
    """One message is committed: the whole turn, or its beginning with some of its complete
    calls.
    """
    content = asyncio.run(live_and_die(events, deaths))
    whole = content_of(events)
    if content == whole:
        return
    calls = [block for block in content if block["type"] == "tool_call"]
    assert calls, "only complete calls may end a turn early"
    assert all(call in whole for call in calls)
    texts: list[Any] = [block["text"] for block in content if block["type"] == "text"]
    assert len(texts) <= 1
    assert full_text(events).startswith("".join(texts))
    assert content == [block for block in content if block["type"] == "text"] + calls
