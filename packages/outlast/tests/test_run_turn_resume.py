"""run_turn between processes: what is resumed, what is left alone, and who may commit."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from stream_kit import (
    QUESTION,
    Cut,
    ScriptedModel,
    WatchedStore,
    content_of,
    context,
    eventually,
    hang,
    log_of,
    other_tasks,
    put_checkpoint,
    rendered,
    run,
    says,
)

from outlast import (
    ApiMessage,
    Backend,
    FencedError,
    MemoryBackend,
    PartialToolCall,
)
from outlast.runtime import (
    CheckpointPolicy,
    RetryableModelError,
    RunContext,
    StreamEvent,
    StreamReset,
    ToolCallCancelled,
    ToolCallReady,
    run_turn,
)

ANSWER = says("It rains in Århus. ", ("c1", "search", '{"q": "rain"}'))
TEXT_ONLY = says("It rains.")


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


async def test_a_committed_turn_is_never_run_again(backend: Backend) -> None:
    """Wherever its message is in the log, the model is not called, and the message is the stored
    one.
    """
    turn, _ = await run(run_turn(await context(backend), ScriptedModel(ANSWER), QUESTION))
    later = [ApiMessage(id=f"x{n}", role="user", content="more") for n in range(200)]
    claim = await backend.persistence.claim_task("t")
    await backend.persistence.append_api_messages("t", later, claim=claim)
    model = ScriptedModel(TEXT_ONLY)
    again, events = await run(run_turn(await context(backend), model, QUESTION))
    assert (events, model.prefixes) == ([], [])
    assert again.message == turn.message
    assert len(await log_of(backend)) == 201


async def test_the_checkpoint_of_a_committed_turn_is_removed(backend: Backend) -> None:
    """Its process died between commit and delete."""
    await run(run_turn(await context(backend), ScriptedModel(ANSWER), QUESTION))
    await put_checkpoint(backend, text="It rains")
    model = ScriptedModel(TEXT_ONLY)
    turn, _ = await run(run_turn(await context(backend), model, QUESTION))
    assert turn.message is not None
    assert turn.message.content == content_of(ANSWER)
    assert model.prefixes == []
    assert await backend.checkpoints.get("r") is None


async def test_a_committed_turn_leaves_the_checkpoint_of_the_next_one_alone(
    backend: Backend,
) -> None:
    """Neither its checkpoint nor its owner's claim is touched."""
    await run(run_turn(await context(backend), ScriptedModel(ANSWER), QUESTION))
    await put_checkpoint(backend, message_id="m2", text="Next")
    before = await backend.checkpoints.get("r")
    await run(run_turn(await context(backend), ScriptedModel(TEXT_ONLY), QUESTION))
    assert await backend.checkpoints.get("r") == before


@pytest.mark.parametrize(
    "other", [{"message_id": "m0"}, {"thread_id": "other"}], ids=["older-turn", "other-task"]
)
async def test_the_checkpoint_of_another_turn_is_not_resumed(
    backend: Backend, other: dict[str, str]
) -> None:
    """A run has one turn in flight: what an older one left is overwritten."""
    await put_checkpoint(backend, text="Something else", retry_count=5, **other)
    model = ScriptedModel(TEXT_ONLY)
    turn, events = await run(run_turn(await context(backend), model, QUESTION))
    assert model.prefixes == [""]
    assert turn.recoveries == []
    assert rendered(events) == content_of(TEXT_ONLY)
    assert await backend.checkpoints.get("r") is None


@pytest.mark.parametrize(
    ("left", "kind", "shown"),
    [
        ({"text": "It ra"}, "R1", [StreamReset("It ra")]),
        (
            {"text": "It ra", "tool_calls": [PartialToolCall("c9", "f", '{"')]},
            "R3",
            [ToolCallCancelled("c9", "f", '{"'), StreamReset("It ra")],
        ),
        ({}, "R4", [StreamReset("")]),
        (
            {
                "text": "It",
                "tool_calls": [PartialToolCall("c1", "f", "{}"), PartialToolCall("c2", "f", "{")],
            },
            "R2",
            [
                ToolCallCancelled("c2", "f", "{"),
                StreamReset("It"),
                ToolCallReady("c1", "f", {}),
            ],
        ),
    ],
    ids=["R1", "R3", "R4", "R2"],
)
async def test_a_resumed_turn_first_says_from_where_it_goes_on(
    backend: Backend, left: dict[str, Any], kind: str, shown: list[StreamEvent]
) -> None:
    """What was shown by the dead process may differ from what was saved, so it is replaced."""
    await put_checkpoint(backend, **left)
    model = ScriptedModel(TEXT_ONLY)
    turn, events = await run(run_turn(await context(backend), model, QUESTION))
    assert events[: len(shown)] == shown
    assert [(r.plan.kind, r.error, r.delay) for r in turn.recoveries] == [(kind, None, 0.0)]
    assert turn.message is not None
    assert turn.message.content == rendered(events)
    assert len(model.prefixes) == (0 if kind == "R2" else 1)
    if kind != "R2":
        assert turn.message.content == content_of(TEXT_ONLY)


async def test_changing_what_an_event_carried_does_not_change_the_message(backend: Backend) -> None:
    """Arguments are parsed anew for the commit."""
    await put_checkpoint(backend, tool_calls=[PartialToolCall("c1", "f", '{"a": [1]}')])
    async with run_turn(await context(backend), ScriptedModel(ANSWER), QUESTION) as turn:
        async for event in turn:
            if isinstance(event, ToolCallReady):
                event.arguments["a"].append("spoiled")
        turn.recoveries[0].plan.tool_calls[0]["arguments"]["b"] = 2
    (message,) = await log_of(backend)
    assert message.content == [
        {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"a": [1]}}
    ]


async def test_a_message_that_a_former_owner_committed_stands(backend: Backend) -> None:
    """Without a claim, both run the turn; the one that comes later returns the stored message."""
    theirs = ApiMessage(id="m1", role="assistant", content=[{"type": "text", "text": "Theirs."}])

    async def meanwhile() -> None:
        if not await log_of(backend):
            await backend.persistence.append_api_message("t", theirs)

    unclaimed = RunContext(backend.persistence, task_id="t", run_id="r", message_id="m1")
    unclaimed = unclaimed.with_stream_checkpoint(backend.checkpoints)
    turn, _ = await run(run_turn(unclaimed, ScriptedModel(ANSWER, pause=meanwhile), QUESTION))
    assert turn.message == theirs
    assert await log_of(backend) == [theirs]
    assert await backend.checkpoints.get("r") is None


async def test_a_resumed_turn_goes_on_counting_retries(backend: Backend) -> None:
    """Five failures in dead processes leave one call, not six."""
    await put_checkpoint(backend, text="It ", retry_count=5)
    model = ScriptedModel(TEXT_ONLY, cuts=[Cut(1)] * 9)
    with pytest.raises(RetryableModelError):
        await run(run_turn(await context(backend), model, QUESTION))
    assert len(model.prefixes) == 1
    left = await backend.checkpoints.get("r")
    assert left is not None
    assert left.retry_count == 6
    turn, _ = await run(run_turn(await context(backend), ScriptedModel(TEXT_ONLY), QUESTION))
    assert turn.message is not None
    assert turn.message.content == content_of(TEXT_ONLY)


@pytest.mark.parametrize("how", ["break", "error", "cancel"])
async def test_leaving_early_commits_nothing_and_keeps_everything(
    backend: Backend, how: str
) -> None:
    """The last write of the checkpoint covers every event that was shown."""
    model = ScriptedModel(ANSWER, cuts=[Cut(4, hang)])
    made = await context(backend, checkpointing=CheckpointPolicy(interval=3600))
    entered = run_turn(made, model, QUESTION)
    shown: list[StreamEvent] = []

    async def use() -> None:
        async with entered as turn:
            async for event in turn:
                shown.append(event)
                if len(shown) == 4 and how == "break":
                    break
                if len(shown) == 4 and how == "error":
                    raise ZeroDivisionError

    task = asyncio.ensure_future(use())
    if how == "cancel":
        await eventually(lambda: len(shown) == 4)
        task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert (
        type(outcome)
        is {
            "break": type(None),
            "error": ZeroDivisionError,
            "cancel": asyncio.CancelledError,
        }[how]
    )
    assert entered.message is None
    assert await log_of(backend) == []
    left = await backend.checkpoints.get("r")
    assert left is not None
    assert left.text == "It rains in Århu"
    assert model.open_streams == 0
    assert other_tasks() == set()
    turn, events = await run(run_turn(await context(backend), ScriptedModel(ANSWER), QUESTION))
    assert turn.message is not None
    assert turn.message.content == content_of(ANSWER) == rendered(events)


async def test_leaving_before_the_first_event_commits_nothing(backend: Backend) -> None:
    """A block that does not iterate calls no model."""
    model = ScriptedModel(ANSWER)
    async with run_turn(await context(backend), model, QUESTION) as turn:
        pass
    assert (turn.message, model.prefixes) == (None, [])
    assert await log_of(backend) == []


async def test_an_iteration_can_be_taken_up_again(backend: Backend) -> None:
    """A break inside the block loses nothing."""
    async with run_turn(await context(backend), ScriptedModel(ANSWER), QUESTION) as turn:
        shown: list[StreamEvent] = []
        async for event in turn:
            shown.append(event)
            if len(shown) == 2:
                break
        shown += [event async for event in turn]
    assert turn.message is not None
    assert rendered(shown) == turn.message.content


async def test_a_turn_is_entered_once(backend: Backend) -> None:
    """A mistake in the use is told as such."""
    turn = run_turn(await context(backend), ScriptedModel(ANSWER), QUESTION)
    with pytest.raises(RuntimeError, match="inside 'async with"):
        aiter(turn)
    await run(turn)
    with pytest.raises(RuntimeError, match="entered once"):
        await run(turn)


async def test_a_superseded_process_does_not_begin(backend: Backend) -> None:
    """It calls no model, and leaves the run's owner alone."""
    made = await context(backend)
    await backend.persistence.claim_task("t")
    await put_checkpoint(backend, text="It ")
    before = await backend.checkpoints.get("r")
    model = ScriptedModel(ANSWER)
    with pytest.raises(FencedError):
        await run(run_turn(made, model, QUESTION))
    assert model.prefixes == []
    assert await backend.checkpoints.get("r") == before


async def test_a_superseded_process_commits_nothing(backend: Backend) -> None:
    """The commit is refused, the error reaches the caller, and the checkpoint is not written
    again.
    """
    store = WatchedStore(backend.checkpoints)
    made = await context(backend, checkpointing=CheckpointPolicy(interval=3600))
    turn = run_turn(made.with_stream_checkpoint(store), ScriptedModel(ANSWER), QUESTION)
    begun: list[int] = []

    async def use() -> None:
        async with turn:
            async for event in turn:
                if isinstance(event, ToolCallReady):
                    await backend.persistence.claim_task("t")
                    begun.append(len(store.puts) + store.in_flight)

    with pytest.raises(FencedError) as caught:
        await use()
    assert caught.value.reason == "superseded"
    assert turn.message is None
    assert await log_of(backend) == []
    assert [len(store.puts)] == begun


async def test_the_task_epoch_is_part_of_the_checkpoint(backend: Backend) -> None:
    """Whoever finds the run can tell under which claim of the task it ran."""
    await backend.persistence.claim_task("t")
    await backend.persistence.claim_task("t")
    made = await context(backend)
    async with run_turn(made, ScriptedModel(ANSWER), QUESTION) as turn:
        async for _ in turn:
            break
    left = await backend.checkpoints.get("r")
    assert left is not None
    assert (left.task_epoch, left.epoch) == (3, 1)
    assert (left.thread_id, left.message_id, left.model) == ("t", "m1", "scripted")
