"""The checkpoints of a turn: when they are written, what a bad store does, and who is stopped."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from runtime_kit import now, virtually
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
    run,
    says,
)

from outlast import (
    Backend,
    Claim,
    CorruptDataError,
    FencedError,
    MemoryBackend,
    OutcomeUnknownError,
    UnavailableError,
)
from outlast.runtime import CheckpointPolicy, RunContext, StreamEvent, run_turn

LOGGER = "outlast.runtime.stream"
ANSWER = says("It rains in Århus. ", ("c1", "search", '{"q": "rain"}'))


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


async def watched(backend: Backend, **changes: Any) -> tuple[RunContext, WatchedStore]:
    store = WatchedStore(backend.checkpoints)
    return (await context(backend, **changes)).with_stream_checkpoint(store), store


def problems(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.name == LOGGER and r.levelno >= logging.WARNING]


def failing(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


async def test_a_slow_store_delays_no_event(backend: Backend) -> None:
    """With puts that never end, every event arrives; only the end of the turn waits for the put."""
    made, store = await watched(backend)
    release = asyncio.Event()
    store.before_put = release.wait  # type: ignore[assignment]  # its result is not looked at
    shown: list[StreamEvent] = []

    async def use() -> None:
        async with run_turn(made, ScriptedModel(ANSWER), QUESTION) as turn:
            async for event in turn:
                shown.append(event)  # noqa: PERF401 - seen while the turn is under way

    task = asyncio.ensure_future(use())
    await eventually(lambda: bool(store.in_flight))
    await eventually(lambda: len(shown) == len(ANSWER))
    assert store.most_in_flight == 1
    assert store.puts == []
    release.set()
    await task
    assert len(shown) == len(ANSWER)
    assert len(store.puts) == 1
    assert await backend.checkpoints.get("r") is None
    assert other_tasks() == set()


@virtually
async def test_a_store_of_200_ms_does_not_change_the_time_between_deltas(
    backend: Backend, memory: Any
) -> None:
    """They come as the model gives them, whatever a put takes."""
    made, store = await watched(backend, checkpointing=CheckpointPolicy(interval=0.01))

    async def slowly() -> None:
        await asyncio.sleep(0.2)

    store.before_put = slowly
    model = ScriptedModel(says("word " * 60, piece=5), pause=lambda: asyncio.sleep(0.005))
    gaps: list[float] = []
    async with run_turn(made, model, QUESTION) as turn:
        last = now()
        async for _ in turn:
            gaps.append(now() - last)
            last = now()
    assert gaps == pytest.approx([0.0] + [0.005] * 59)
    assert store.most_in_flight == 1
    assert len(store.puts) == 2


async def test_writes_are_coalesced_by_time(backend: Backend) -> None:
    """Nothing is written twice within the interval; the first write is made at once."""
    made, store = await watched(backend, checkpointing=CheckpointPolicy(interval=3600))
    model = ScriptedModel(ANSWER, cuts=[Cut(5, hang)])
    task = asyncio.ensure_future(run(run_turn(made, model, QUESTION)))
    await eventually(lambda: bool(store.puts))
    await eventually(lambda: model.is_cut)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(store.puts) == 1
    assert store.puts[0].text in ("", "It r")
    task.cancel()
    await asyncio.wait({task})
    assert len(store.puts) == 2
    assert store.puts[1].text == "It rains in Århus. "


async def test_writes_are_due_after_so_many_bytes(backend: Backend) -> None:
    """Much text in little time is saved all the same."""
    policy = CheckpointPolicy(interval=3600, max_bytes=1000)
    made, store = await watched(backend, checkpointing=policy)

    async def caught_up() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    model = ScriptedModel(says("x" * 10_000, piece=100), pause=caught_up)
    await run(run_turn(made, model, QUESTION))
    sizes = [len(checkpoint.text) for checkpoint in store.puts]
    assert 9 <= len(sizes) <= 11
    steps = [later - earlier for earlier, later in pairwise(sizes)]
    assert all(1000 <= step <= 1200 for step in steps)


async def test_a_turn_is_known_to_the_store_before_it_has_said_anything(backend: Backend) -> None:
    """A model that thinks for a minute leaves a run that can be found."""
    made, store = await watched(backend)
    model = ScriptedModel(ANSWER, cuts=[Cut(0, hang)])
    task = asyncio.ensure_future(run(run_turn(made, model, QUESTION)))
    await eventually(lambda: bool(store.puts))
    task.cancel()
    await asyncio.wait({task})
    found = [checkpoint async for checkpoint in backend.checkpoints.iter_checkpoints(thread_id="t")]
    assert [(c.run_id, c.message_id, c.text) for c in found] == [("r", "m1", "")]


@pytest.mark.parametrize(
    "error",
    [UnavailableError("down"), OutcomeUnknownError("no answer"), RuntimeError("broken store")],
    ids=lambda error: type(error).__name__,
)
async def test_a_failing_store_is_a_warning_and_ends_nothing(
    backend: Backend, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Run id, operation and error are in the log; the turn is committed."""
    made, store = await watched(backend)
    store.before_put = failing(error)
    turn, _ = await run(run_turn(made, ScriptedModel(ANSWER), QUESTION))
    assert await log_of(backend) == [turn.message]
    first = problems(caplog)[0]
    assert first.levelno == logging.WARNING
    for part in ("'r'", "put", str(error)):
        assert part in first.getMessage()
    assert store.puts == []


async def test_a_store_that_recovers_gets_what_is_there_then(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed write is made again, with the present text."""
    made, store = await watched(backend, checkpointing=CheckpointPolicy(interval=0.001))
    failures = iter([UnavailableError("one"), UnavailableError("two")])

    async def sometimes() -> None:
        for error in failures:
            raise error

    store.before_put = sometimes
    model = ScriptedModel(ANSWER, cuts=[Cut(4, hang)])
    task = asyncio.ensure_future(run(run_turn(made, model, QUESTION)))
    await eventually(lambda: bool(store.puts))
    assert store.puts[0].text == "It rains in Århu"
    assert len(problems(caplog)) == 2
    task.cancel()
    await asyncio.wait({task})


def test_failing_writes_are_made_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    """A store that is down for long does not flood the log, nor keep the loop busy."""

    @virtually
    async def test(backend: Backend, memory: Any) -> None:
        made, store = await watched(backend)
        store.before_put = failing(UnavailableError("down"))
        model = ScriptedModel(says("word " * 200), pause=lambda: asyncio.sleep(0.001))
        await run(run_turn(made, model, QUESTION))

    test()
    assert 1 <= len(problems(caplog)) <= 6


@pytest.mark.parametrize("error", [UnavailableError("down"), OutcomeUnknownError("no answer")])
async def test_a_store_that_is_away_at_the_start_costs_only_the_checkpoints(
    backend: Backend, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The task's claim alone decides who commits."""

    class Away(WatchedStore):
        async def claim(self, *args: Any, **kwargs: Any) -> Claim:
            raise error

    store = Away(backend.checkpoints)
    made = (await context(backend)).with_stream_checkpoint(store)
    turn, _ = await run(run_turn(made, ScriptedModel(ANSWER), QUESTION))
    assert turn.message is not None
    assert turn.message.content == content_of(ANSWER)
    assert store.puts == []
    assert ["claim" in record.getMessage() for record in problems(caplog)] == [True]


async def test_a_checkpoint_that_cannot_be_read_is_an_error(backend: Backend) -> None:
    """What is corrupt is never taken for missing."""

    class Corrupt(WatchedStore):
        async def claim(self, *args: Any, **kwargs: Any) -> Claim:
            raise CorruptDataError("scripted")

    made = (await context(backend)).with_stream_checkpoint(Corrupt(backend.checkpoints))
    model = ScriptedModel(ANSWER)
    with pytest.raises(CorruptDataError):
        await run(run_turn(made, model, QUESTION))
    assert model.prefixes == []


async def test_a_checkpoint_that_cannot_be_deleted_is_a_warning(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is committed; the next run of the turn finds it and tries again."""

    class Keeping(WatchedStore):
        async def delete(self, *args: Any, **kwargs: Any) -> None:
            raise UnavailableError("down")

    made = (await context(backend)).with_stream_checkpoint(Keeping(backend.checkpoints))
    turn, _ = await run(run_turn(made, ScriptedModel(ANSWER), QUESTION))
    assert await log_of(backend) == [turn.message]
    assert ["delete" in record.getMessage() for record in problems(caplog)] == [True]
    assert await backend.checkpoints.get("r") is not None
    await run(run_turn(await context(backend), ScriptedModel(ANSWER), QUESTION))
    assert await backend.checkpoints.get("r") is None


async def test_a_lost_run_under_a_kept_task_goes_on_without_checkpoints(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the log, no further write, and the commit decides."""
    made, store = await watched(backend)
    claimed: list[int] = []

    async def lose_the_run() -> None:
        if store.puts and not claimed:
            await backend.checkpoints.claim("r")
            claimed.append(len(store.puts))
        await asyncio.sleep(0)

    turn, _ = await run(run_turn(made, ScriptedModel(ANSWER, pause=lose_the_run), QUESTION))
    assert await log_of(backend) == [turn.message]
    assert [record.levelno for record in problems(caplog)] == [logging.ERROR]
    assert len(store.puts) - claimed[0] <= 1
    left = await backend.checkpoints.get("r")
    assert left is not None
    assert left.epoch == 2


@pytest.mark.parametrize("silent", [True, False], ids=["silent-model", "talking-model"])
async def test_a_lost_task_stops_the_model(
    backend: Backend, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """FencedError reaches the caller at once, also while the model says nothing."""
    made, store = await watched(backend)
    cuts = [Cut(5, hang)] if silent else []

    begun: list[int] = []

    async def lose_both() -> None:
        if store.puts and not begun:
            await backend.persistence.claim_task("t")
            await backend.checkpoints.claim("r")
            begun.append(len(store.puts) + store.in_flight)
        await asyncio.sleep(0.001)

    model = ScriptedModel(says("word " * 500), cuts=cuts, pause=lose_both)
    turn = run_turn(made, model, QUESTION)
    with pytest.raises(FencedError) as caught:
        async with asyncio.timeout(5):
            await run(turn)
    assert caught.value.reason == "superseded"
    assert caught.value.key == "t"
    assert turn.message is None
    assert await log_of(backend) == []
    assert model.open_streams == 0
    assert len(store.puts) <= begun[0]
    assert [record.levelno for record in problems(caplog)] == [logging.ERROR]
    assert other_tasks() == set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_lost_task_ends_the_wait_for_a_retry(backend: Backend) -> None:
    """A superseded process does not sit out its backoff."""
    made, store = await watched(backend)

    async def sleep(seconds: float) -> None:
        await backend.persistence.claim_task("t")
        await backend.checkpoints.claim("r")
        lost.set()
        await asyncio.Event().wait()

    lost = asyncio.Event()
    store.before_put = lost.wait  # type: ignore[assignment]
    model = ScriptedModel(ANSWER, cuts=[Cut(2)])
    with pytest.raises(FencedError):
        async with asyncio.timeout(5):
            await run(run_turn(made, model, QUESTION, sleep=sleep))
    assert await log_of(backend) == []


async def test_a_task_that_cannot_be_checked_leaves_it_to_the_commit(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a certain loss stops the model."""
    made, store = await watched(backend)
    real = made.persistence.check_claim

    async def check(claim: Claim) -> None:
        if store.puts:
            raise UnavailableError("down")
        await real(claim)

    made.persistence.check_claim = check  # type: ignore[method-assign]

    async def lose_the_run() -> None:
        if len(store.puts) == 1:
            await backend.checkpoints.claim("r")
        await asyncio.sleep(0)

    turn, _ = await run(run_turn(made, ScriptedModel(ANSWER, pause=lose_the_run), QUESTION))
    assert await log_of(backend) == [turn.message]
    assert [r.levelno for r in problems(caplog)] == [logging.ERROR, logging.WARNING]


@pytest.mark.parametrize("times", [1, 2])
async def test_cancelling_while_a_write_is_under_way_leaves_no_task(
    backend: Backend, times: int
) -> None:
    """One cancellation waits for the write; a second one gives it up. Both reach the caller."""
    made, store = await watched(backend)
    release = asyncio.Event()
    store.before_put = release.wait  # type: ignore[assignment]
    model = ScriptedModel(ANSWER, cuts=[Cut(4, hang)])
    task = asyncio.ensure_future(run(run_turn(made, model, QUESTION)))
    await eventually(lambda: bool(store.in_flight) and model.is_cut)
    task.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    if times == 1:
        release.set()
    else:
        task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()
    assert other_tasks() == set()
    assert store.in_flight == 0
    assert [checkpoint.text for checkpoint in store.puts][-1:] == (
        ["It rains in Århu"] if times == 1 else []
    )
    assert model.open_streams == 0


async def test_a_cancellation_in_the_moment_of_a_loss_is_kept(backend: Backend) -> None:
    """The caller's own cancellation outranks the error."""
    made, store = await watched(backend)
    model = ScriptedModel(says("word " * 500), cuts=[Cut(5, hang)])
    turn = run_turn(made, model, QUESTION)
    task = asyncio.ensure_future(run(turn))
    await eventually(lambda: bool(store.puts) and model.is_cut)
    task.cancel()
    turn._guard.interrupt(FencedError("superseded"))
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()


async def test_a_closed_store_is_reported_and_the_turn_committed(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoints may live in another backend than the messages."""
    other = MemoryBackend()
    await other.open()
    made = (await context(backend)).with_stream_checkpoint(other.checkpoints)

    async def close() -> None:
        await other.aclose()

    turn, _ = await run(run_turn(made, ScriptedModel(ANSWER, pause=close), QUESTION))
    assert await log_of(backend) == [turn.message]
    assert {record.levelno for record in problems(caplog)} == {logging.WARNING}
