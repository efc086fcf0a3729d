"""run_turn in one process: what is committed, when the model is called again, and what stays."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator

import pytest
from stream_kit import (
    QUESTION,
    Cut,
    CutAction,
    ScriptedModel,
    content_of,
    context,
    drop,
    end,
    log_of,
    other_tasks,
    rendered,
    run,
    says,
)

from outlast import (
    ApiMessage,
    Backend,
    MemoryBackend,
)
from outlast.runtime import (
    ModelEvent,
    ModelRequest,
    PermanentModelError,
    RetryableModelError,
    RetryPolicy,
    RunContext,
    StreamEnd,
    StreamReset,
    TextDelta,
    ToolCallCancelled,
    ToolCallDelta,
    ToolCallReady,
    run_turn,
)

ANSWER = says("It rains in Århus. ", ("c1", "search", '{"q": "rain"}'))
TEXT_ONLY = says("It rains.")


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


@pytest.mark.parametrize("stored", [False, True], ids=["without-store", "with-store"])
async def test_an_uncut_turn_is_committed_once(backend: Backend, stored: bool) -> None:
    """Events show what the log holds, the checkpoint is gone, nothing is left running."""
    turn, events = await run(
        run_turn(await context(backend, stored=stored), ScriptedModel(ANSWER), QUESTION)
    )
    expected = ApiMessage(id="m1", role="assistant", content=content_of(ANSWER))
    assert turn.message == expected
    assert await log_of(backend) == [expected]
    assert rendered(events) == expected.content
    assert turn.recoveries == []
    assert turn.finish_reason == "tool_calls"
    assert await backend.checkpoints.get("r") is None
    assert other_tasks() == set()


async def test_a_turn_runs_unclaimed_in_a_single_process(backend: Backend) -> None:
    """Without a task's claim the message is appended unclaimed."""
    made = RunContext(backend.persistence, task_id="t", run_id="r", message_id="m1")
    turn, _ = await run(
        run_turn(made.with_stream_checkpoint(backend.checkpoints), ScriptedModel(ANSWER), QUESTION)
    )
    assert await log_of(backend) == [turn.message]


async def test_the_message_is_there_inside_the_block(backend: Backend) -> None:
    """The commit belongs to the end of the iteration, not to the end of the block."""
    async with run_turn(await context(backend), ScriptedModel(ANSWER), QUESTION) as turn:
        assert turn.message is None
        async for _ in turn:
            assert turn.message is None
        assert await log_of(backend) == [turn.message]
        assert await backend.checkpoints.get("r") is None


@pytest.mark.parametrize("stored", [False, True], ids=["without-store", "with-store"])
@pytest.mark.parametrize("action", [drop, end], ids=["dropped", "ended"])
@pytest.mark.parametrize("after", range(len(ANSWER)))
async def test_a_cut_after_any_event_changes_nothing(
    backend: Backend, after: int, action: CutAction, stored: bool
) -> None:
    """The same recovery works with and without a store, whether an error or silence cut the
    stream.
    """
    model = ScriptedModel(ANSWER, cuts=[Cut(after, action)])
    turn, events = await run(run_turn(await context(backend, stored=stored), model, QUESTION))
    assert turn.message is not None
    assert turn.message.content == content_of(ANSWER) == rendered(events)
    assert await log_of(backend) == [turn.message]
    assert len(turn.recoveries) == 1
    plan = turn.recoveries[0].plan
    assert isinstance(turn.recoveries[0].error, RetryableModelError)
    assert model.prefixes == ([""] if plan.kind == "R2" else ["", plan.text])
    assert model.open_streams == 0


@pytest.mark.parametrize(
    ("after", "kind", "shown"),
    [
        (0, "R4", []),
        (2, "R1", []),
        (7, "R3", [ToolCallCancelled]),
        (len(ANSWER) - 1, "R2", [ToolCallReady]),
    ],
    ids=["R4", "R1", "R3", "R2"],
)
async def test_each_way_to_go_on_shows_what_it_drops(
    backend: Backend, after: int, kind: str, shown: list[type]
) -> None:
    """Within a process nothing is reset as long as its text stays."""
    model = ScriptedModel(ANSWER, cuts=[Cut(after)])
    turn, events = await run(run_turn(await context(backend), model, QUESTION))
    assert turn.recoveries[0].plan.kind == kind
    special = [type(e) for e in events if not isinstance(e, TextDelta | ToolCallDelta)]
    assert special == [*shown, ToolCallReady] if kind != "R2" else special == shown


async def test_a_restart_takes_back_what_was_shown(backend: Backend) -> None:
    """R4 after an open call without text: the call is cancelled, then everything begins anew."""
    events = says("", ("c1", "search", '{"q": "rain"}'))
    model = ScriptedModel(events, cuts=[Cut(2)])
    turn, shown = await run(run_turn(await context(backend), model, QUESTION))
    assert [e for e in shown if not isinstance(e, ToolCallDelta)] == [
        ToolCallCancelled("c1", "search", '{"q"'),
        StreamReset(""),
        ToolCallReady("c1", "search", {"q": "rain"}),
    ]
    assert turn.message is not None
    assert turn.message.content == content_of(events)


async def test_complete_calls_end_a_cut_turn_without_a_model_call(backend: Backend) -> None:
    """The second call was open: it is reported, never committed, and the first one stands."""
    events = says("Two.", ("c1", "f", "{}"), ("c2", "g", '{"a": 1}'))
    model = ScriptedModel(events, cuts=[Cut(len(events) - 2)])
    turn, shown = await run(run_turn(await context(backend), model, QUESTION))
    assert len(model.prefixes) == 1
    assert shown[-1] == ToolCallCancelled("c2", "g", '{"a"')
    assert turn.message is not None
    assert turn.message.content == content_of(events[:-2]) == rendered(shown)
    assert [call.id for call in turn.recoveries[0].plan.dropped] == ["c2"]
    assert turn.finish_reason is None


async def test_a_malformed_call_at_the_end_is_asked_for_again(backend: Backend) -> None:
    """The text stays, the call is dropped and reported, and the model goes on from the text."""
    bad = says("Let me see.", ("c1", "f", '{"a": '))
    good = says("Let me see.", ("c2", "f", '{"a": 1}'))
    model = ScriptedModel(bad)

    async def mend() -> None:
        if len(model.prefixes) == 1:
            model.events = good

    model.pause = mend
    turn, shown = await run(run_turn(await context(backend), model, QUESTION))
    assert [recovery.plan.kind for recovery in turn.recoveries] == ["R3"]
    assert [e.id for e in shown if isinstance(e, ToolCallCancelled)] == ["c1"]
    assert turn.message is not None
    assert turn.message.content == content_of(good) == rendered(shown)


async def test_a_call_that_stays_malformed_ends_in_an_error(backend: Backend) -> None:
    """The retries are bounded; nothing is committed."""
    model = ScriptedModel(says("Hm.", ("c1", "f", "[1]")))
    retry = RetryPolicy(max_retries=2, base_delay=0)
    with pytest.raises(RetryableModelError, match="malformed"):
        await run(run_turn(await context(backend, retry=retry), model, QUESTION))
    assert len(model.prefixes) == 3
    assert await log_of(backend) == []


async def test_a_model_that_says_nothing_commits_an_empty_message(backend: Backend) -> None:
    """Silence with a mark of its end is an answer."""
    turn, events = await run(
        run_turn(await context(backend), ScriptedModel([StreamEnd()]), QUESTION)
    )
    assert events == []
    assert await log_of(backend) == [ApiMessage(id="m1", role="assistant", content=[])]
    assert turn.finish_reason == "stop"


async def test_a_permanent_error_is_raised_as_it_is(backend: Backend) -> None:
    """Nothing is committed, no call is repeated, and the checkpoint holds all that was streamed."""
    error = PermanentModelError("no such model")

    async def fail() -> None:
        raise error

    model = ScriptedModel(ANSWER, cuts=[Cut(3, fail)])
    with pytest.raises(PermanentModelError) as caught:
        await run(run_turn(await context(backend), model, QUESTION))
    assert caught.value is error
    assert len(model.prefixes) == 1
    assert await log_of(backend) == []
    left = await backend.checkpoints.get("r")
    assert left is not None
    assert (left.text, left.retry_count) == ("It rains in ", 0)
    assert other_tasks() == set()


async def test_an_error_that_is_no_model_error_is_raised_as_it_is(backend: Backend) -> None:
    """A mistake in a model is not a reason to call it again."""

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run(
            run_turn(await context(backend), ScriptedModel(ANSWER, cuts=[Cut(1, fail)]), QUESTION)
        )
    assert await backend.checkpoints.get("r") is not None


async def test_used_up_retries_raise_the_last_error_and_keep_the_checkpoint(
    backend: Backend,
) -> None:
    """The count is kept, too: each call that failed is in it."""
    errors = [RetryableModelError(f"number {n}") for n in range(3)]

    def failing(error: Exception) -> CutAction:
        async def fail() -> None:
            raise error

        return fail

    model = ScriptedModel(ANSWER, cuts=[Cut(1, failing(error)) for error in errors])
    retry = RetryPolicy(max_retries=2, base_delay=0)
    with pytest.raises(RetryableModelError) as caught:
        await run(run_turn(await context(backend, retry=retry), model, QUESTION))
    assert caught.value is errors[2]
    assert await log_of(backend) == []
    left = await backend.checkpoints.get("r")
    assert left is not None
    assert (left.text, left.retry_count) == ("It rains in ", 3)


async def test_waits_follow_hints_and_otherwise_double(backend: Backend) -> None:
    """A hint is capped at a minute; the jitter comes from the given source."""
    hints = [None, 7.5, 3600.0, None]
    waits: list[float] = []

    def failing(hint: float | None) -> CutAction:
        async def fail() -> None:
            raise RetryableModelError(retry_after=hint)

        return fail

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    model = ScriptedModel(ANSWER, cuts=[Cut(0, failing(hint)) for hint in hints])
    made = await context(backend, retry=RetryPolicy())
    turn, _ = await run(run_turn(made, model, QUESTION, rng=random.Random(3), sleep=sleep))
    expected = random.Random(3)
    first, fourth = 0.5 * expected.uniform(0.5, 1), 4.0 * expected.uniform(0.5, 1)
    assert waits == [first, 7.5, 60.0, fourth]
    assert [recovery.delay for recovery in turn.recoveries] == waits


async def test_the_retry_count_is_stored_before_the_wait(backend: Backend) -> None:
    """A process that dies while it waits has counted the failure."""
    stored: list[int] = []

    async def sleep(seconds: float) -> None:
        while True:
            found = await backend.checkpoints.get("r")
            if found is not None and found.retry_count:
                stored.append(found.retry_count)
                return
            await asyncio.sleep(0)

    await run(
        run_turn(
            await context(backend), ScriptedModel(ANSWER, cuts=[Cut(0)] * 2), QUESTION, sleep=sleep
        )
    )
    assert stored[0] == 1
    assert len(stored) == 2


async def test_a_retry_is_told_to_the_log(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """As information: the turn goes on."""
    with caplog.at_level(logging.INFO, "outlast.runtime.stream"):
        await run(run_turn(await context(backend), ScriptedModel(ANSWER, cuts=[Cut(2)]), QUESTION))
    (record,) = (one for one in caplog.records if one.name == "outlast.runtime.stream")
    assert record.levelno == logging.INFO
    assert "'r'" in record.message
    assert "R1" in record.message


async def test_a_model_whose_stream_cannot_be_closed_does_not_spoil_the_turn(
    backend: Backend,
) -> None:
    """What it said before stands."""

    class Sticky:
        name = "sticky"

        def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
            return _Sticky()

    class _Sticky:
        def __init__(self) -> None:
            self.events = iter(TEXT_ONLY)

        def __aiter__(self) -> AsyncIterator[ModelEvent]:
            return self

        async def __anext__(self) -> ModelEvent:
            return next(self.events)

        async def aclose(self) -> None:
            raise OSError("sticky")

    turn, _ = await run(run_turn(await context(backend), Sticky(), QUESTION))
    assert turn.message is not None
    assert turn.message.content == content_of(TEXT_ONLY)
