"""The state in memory and the store behind it: what is saved when, and what can be lost."""

import asyncio
import itertools
import logging
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from runtime_kit import Watched, now, virtually

from outlast import (
    Backend,
    ClosedError,
    FencedError,
    InvalidDataError,
    PayloadTooLargeError,
    TaskState,
    TaskStatus,
    UnavailableError,
)
from outlast.runtime import StateManager


async def make(store: Any, **options: Any) -> StateManager:
    claim = await store.claim_task("t")
    return StateManager("t", store, claim=claim, **options)


def saves(store: Watched, since: float) -> list[float]:
    """When states were saved, in milliseconds."""
    return [round((when - since) * 1000) for when in store.times("save_task_state")]


async def update_at(manager: StateManager, *milliseconds: int) -> float:
    """Update at these moments; return when that began."""
    start = now()
    for number, moment in enumerate(milliseconds):
        await asyncio.sleep(start + moment / 1000 - now())
        manager.update_state(retry_count=number + 1)
    return start


@virtually
async def test_updates_that_follow_each_other_give_one_save(backend: Backend, store: Any) -> None:
    """Updates at 0, 200 and 800 ms are saved together at 1,800."""
    manager = await make(store)
    start = await update_at(manager, 0, 200, 800)
    await asyncio.sleep(20)
    assert saves(store, start) == [1800]
    assert (await backend.persistence.load_task_state("t")).retry_count == 3


@virtually
async def test_updates_without_a_pause_are_saved_after_the_maximum_wait(
    backend: Backend, store: Any
) -> None:
    """Updates every 500 ms give a save at 5,000, and so on."""
    manager = await make(store)
    start = await update_at(manager, *range(0, 11_000, 500))
    # The update at 5,000 is in this save or waits for the next one.
    assert saves(store, start) in ([5000, 10000], [5000, 10500])
    await asyncio.sleep(20)
    assert len(saves(store, start)) == 3
    assert not manager.is_dirty


@virtually
async def test_no_change_stays_unsaved_longer_than_the_maximum_wait(
    backend: Backend, store: Any
) -> None:
    """The loss bound: at every moment, what a death would lose is younger than max_wait."""
    manager = await make(store, debounce=0.1, max_wait=0.5)
    made: dict[int, float] = {}
    start = now()
    oldest = 0.0
    while now() < start + 5:
        number = len(made) + 1
        made[number] = now()
        manager.update_state(retry_count=number)
        await asyncio.sleep(0.01)
        stored = await backend.persistence.load_task_state("t")
        first_unsaved = (stored.retry_count if stored else 0) + 1
        if first_unsaved in made:
            oldest = max(oldest, now() - made[first_unsaved])
    assert 0.4 < oldest <= 0.52
    assert len(saves(store, start)) >= 9


@virtually
async def test_a_change_of_status_is_saved_at_once(backend: Backend, store: Any) -> None:
    """It bypasses the debounce, and takes along what waits."""
    manager = await make(store)
    manager.update_state(retry_count=7)
    manager.update_state(status="running")
    start = now()
    await asyncio.sleep(0.001)
    assert saves(store, start) == [0]
    state = await backend.persistence.load_task_state("t")
    assert (state.status, state.retry_count) == (TaskStatus.RUNNING, 7)
    await asyncio.sleep(20)
    assert saves(store, start) == [0]


@virtually
async def test_what_changes_during_a_save_is_saved_by_the_next_one(
    backend: Backend, store: Any
) -> None:
    """A save writes a snapshot; two are never under way."""
    manager = await make(store)

    async def slow(name: str) -> None:
        await asyncio.sleep(3)

    store.before = slow
    manager.update_state(context={"step": 1}, status="running")
    for step in range(2, 20):
        await asyncio.sleep(0.5)
        manager.update_state(context={"step": step})
    await manager.aclose()
    assert store.most_in_flight == 1
    assert store.calls[0][2][1].context == {"step": 1}
    assert (await backend.persistence.load_task_state("t")).context == {"step": 19}


@virtually
async def test_a_saved_snapshot_does_not_follow_later_changes(backend: Backend, store: Any) -> None:
    """Neither what was passed in nor what is in memory is shared with what is being saved."""
    manager = await make(store)
    given = {"list": [1], "deep": {"a": 1}}
    manager.update_state(context=given)
    given["list"].append(2)
    assert manager.state.context == {"list": [1], "deep": {"a": 1}}

    async def change(name: str) -> None:
        manager.state.context["deep"]["a"] = 2

    store.before = change
    await manager.save_state_now()
    assert store.calls[-1][2][1].context == {"list": [1], "deep": {"a": 1}}


@virtually
async def test_save_state_now_loses_no_update_made_while_it_awaits(
    backend: Backend, store: Any
) -> None:
    """Neither with saving in the background nor without."""
    for auto_persist in (True, False):
        manager = await make(store, auto_persist=auto_persist)

        async def update(name: str, manager: StateManager = manager) -> None:
            await asyncio.sleep(0.1)
            if manager.state.retry_count < 3:
                manager.update_state(retry_count=manager.state.retry_count + 1)

        store.before = update
        manager.update_state(retry_count=1)
        await manager.save_state_now()
        assert not manager.is_dirty
        assert (await backend.persistence.load_task_state("t")).retry_count == 3


@virtually
async def test_save_state_now_ends_under_a_stream_of_updates(backend: Backend, store: Any) -> None:
    """It waits for what was there, not for ever."""
    manager = await make(store)

    async def update(name: str) -> None:
        await asyncio.sleep(0.1)
        manager.update_state(retry_count=manager.state.retry_count + 1)

    store.before = update
    manager.update_state(retry_count=1)
    await manager.save_state_now()
    assert manager.is_dirty
    store.before = None
    await asyncio.sleep(10)
    assert not manager.is_dirty


@virtually
async def test_without_auto_persist_only_save_state_now_writes(
    backend: Backend, store: Any
) -> None:
    """No timer, no status and no closing saves."""
    manager = await make(store, auto_persist=False)
    manager.update_state(status="running", retry_count=1)
    await asyncio.sleep(100)
    assert store.calls == []
    await manager.save_state_now()
    assert len(store.calls) == 1
    manager.update_state(retry_count=2)
    await manager.aclose()
    assert len(store.calls) == 1


@virtually
async def test_without_persistence_the_state_lives_in_memory(backend: Backend, store: Any) -> None:
    """The same calls work."""
    manager = StateManager("t")
    manager.update_state(status="running")
    await manager.save_state_now()
    await manager.aclose()
    assert manager.status is TaskStatus.RUNNING


@virtually
async def test_a_failed_save_is_repeated_with_backoff_and_reported(
    backend: Backend, store: Any
) -> None:
    """Without a further update: after 0.5, 1, 2, ... seconds, at most 30."""
    errors: list[Exception] = []
    manager = await make(store, on_save_error=errors.append)

    async def fail(name: str) -> None:
        raise UnavailableError("away")

    store.before = fail
    start = await update_at(manager, 0)
    await asyncio.sleep(100)
    moments = saves(store, start)
    waits = [after - before for before, after in itertools.pairwise(moments)]
    assert moments[0] == 1000
    assert waits[:8] == [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]
    assert len(errors) == len(moments)
    assert manager.is_dirty
    store.before = None
    await asyncio.sleep(31)
    assert not manager.is_dirty
    assert (await backend.persistence.load_task_state("t")).retry_count == 1


@virtually
async def test_updates_do_not_hasten_repetitions(backend: Backend, store: Any) -> None:
    """A store in trouble is not asked at every update."""
    manager = await make(store)

    async def fail(name: str) -> None:
        raise UnavailableError("away")

    store.before = fail
    start = await update_at(manager, *range(0, 60_000, 100))
    assert len(saves(store, start)) < 10


def test_failures_are_log_records(caplog: pytest.LogCaptureFixture) -> None:
    """With the task, the error and what becomes of it; an observer that fails ends nothing."""

    @virtually
    async def run(backend: Backend, store: Any) -> None:
        def observe(error: Exception) -> None:
            raise RuntimeError("observer")

        manager = await make(store, on_save_error=observe)

        async def fail(name: str) -> None:
            store.before = None
            raise UnavailableError("away")

        store.before = fail
        manager.update_state(retry_count=1)
        await asyncio.sleep(10)
        assert not manager.is_dirty

    with caplog.at_level(logging.WARNING, "outlast.runtime.state"):
        run()
    first, second = (one for one in caplog.records if one.name == "outlast.runtime.state")
    assert first.levelname == "WARNING"
    assert "task 't', state" in first.getMessage()
    assert "UnavailableError" in first.getMessage()
    assert "0.5 s" in first.getMessage()
    assert "on_save_error" in second.getMessage()


@virtually
async def test_what_repeating_cannot_mend_waits_for_the_next_change(
    backend: Backend, store: Any
) -> None:
    """A state that is too large is not sent again and again."""
    manager = await make(store)

    async def fail(name: str) -> None:
        raise PayloadTooLargeError("too large")

    store.before = fail
    start = await update_at(manager, 0)
    await asyncio.sleep(100)
    assert saves(store, start) == [1000]
    store.before = None
    manager.update_state(retry_count=2)
    await asyncio.sleep(2)
    assert not manager.is_dirty


@virtually
async def test_a_fenced_manager_stops_loudly(backend: Backend, store: Any) -> None:
    """After a newer claim, nothing is written, and every change says why."""
    manager = await make(store)
    newer = await backend.persistence.claim_task("t")
    await backend.persistence.save_task_state("t", TaskState(id="t", retry_count=9), claim=newer)
    manager.update_state(retry_count=1)
    await asyncio.sleep(2)
    with pytest.raises(FencedError, match="superseded"):
        manager.update_state(retry_count=2)
    with pytest.raises(FencedError, match="superseded"):
        await manager.save_state_now()
    assert len(store.calls) == 1
    assert manager.state.retry_count == 1
    with pytest.raises(ExceptionGroup) as caught:
        await manager.aclose()
    assert caught.group_contains(FencedError)
    assert (await backend.persistence.load_task_state("t")).retry_count == 9


@virtually
async def test_closing_saves_and_refuses_what_follows(backend: Backend, store: Any) -> None:
    """It repeats until quiet; a second time is harmless."""
    manager = await make(store)

    async def update_once(name: str) -> None:
        store.before = None
        await asyncio.sleep(0.1)
        manager.update_state(retry_count=2)

    store.before = update_once
    manager.update_state(retry_count=1)
    await manager.aclose()
    assert (await backend.persistence.load_task_state("t")).retry_count == 2
    with pytest.raises(ClosedError):
        manager.update_state(retry_count=3)
    with pytest.raises(ClosedError):
        await manager.save_state_now()
    await manager.aclose()


@virtually
async def test_closing_says_what_could_not_be_saved(backend: Backend, store: Any) -> None:
    """By one grouped error, after the save under way has ended."""
    manager = await make(store)

    async def fail(name: str) -> None:
        await asyncio.sleep(0.1)
        raise UnavailableError("away")

    store.before = fail
    manager.update_state(status="running")
    await asyncio.sleep(0.05)
    with pytest.raises(ExceptionGroup, match="task 't'") as caught:
        await manager.aclose()
    assert [str(error) for error in caught.value.exceptions] == ["away"]
    assert store.in_flight == {"save_task_state": 0}


@virtually
async def test_a_cancelled_save_state_now_leaves_the_save_to_its_end(
    backend: Backend, store: Any
) -> None:
    """The caller is told at once; what was sent is not overtaken."""
    manager = await make(store)

    async def slow(name: str) -> None:
        await asyncio.sleep(1)

    store.before = slow
    manager.update_state(retry_count=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await manager.save_state_now()
    assert store.in_flight == {"save_task_state": 1}
    await manager.aclose()
    assert (await backend.persistence.load_task_state("t")).retry_count == 1
    assert store.most_in_flight == 1


@virtually
async def test_a_status_change_is_told_inside_the_update(backend: Backend, store: Any) -> None:
    """Only if it differs, and before a save is scheduled."""
    seen: list[Any] = []

    def changed(old: TaskStatus, new: TaskStatus) -> None:
        seen.append((old, new, manager.is_dirty, manager.status))

    manager = await make(store, on_status_change=changed)
    manager.update_state(status="pending")
    manager.update_state(retry_count=1)
    assert seen == []
    await manager.save_state_now()
    manager.update_state({"status": TaskStatus.RUNNING})
    assert seen == [(TaskStatus.PENDING, TaskStatus.RUNNING, False, TaskStatus.RUNNING)]
    await manager.aclose()


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "x"},
        {"updated_at": None},
        {"unknown": 1},
        {"status": "sleeping"},
        {"context": {"x": math.nan}},
        {"context": {"deep": {"x": b""}}},
        {"context": {1: 2}},
        {"context": {"x": "\ud800"}},
        {"context": {"deep": [{"x": math.inf}]}},
        {"context": {"deep": [{2: 1}]}},
        {"context": {"deep": [(1, 2)]}},
        {"context": {"x": 10**1001}},
        {"context": []},
        {"retry_count": -1},
        {"retry_count": True},
        {"retry_count": 2**63},
        {"start_time": datetime(2026, 1, 1)},  # noqa: DTZ001 - naive on purpose
    ],
    ids=str,
)
async def test_what_cannot_be_stored_is_refused_where_it_is_passed(changes: Any) -> None:
    """And not seconds later, by a save in the background."""
    manager = StateManager("t")
    before = manager.state
    with pytest.raises(InvalidDataError):
        manager.update_state(changes)
    assert manager.state is before


def parts(value: Any) -> set[int]:
    """The identities of all lists and dicts in a value."""
    if not isinstance(value, dict | list):
        return set()
    inner = value.values() if isinstance(value, dict) else value
    return {id(value)}.union(*(parts(item) for item in inner))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"é": "ü"},
        {"x": "ü"},
        {"x": 2**70},
        {"x": -0.0},
        {"x": [1, {"y": None, "z": [True, 1.5]}]},
        {"": ""},
        {"deep": [[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]},
    ],
    ids=str,
)
def test_values_are_taken_as_they_are(value: Any) -> None:
    """Whichever way they are checked."""
    manager = StateManager("t")
    manager.update_state(context=value)
    assert manager.state.context == value
    assert str(manager.state.context) == str(value)
    assert not parts(manager.state.context) & parts(value)


def test_a_state_is_restored_from_strings_or_objects() -> None:
    """Of status and dates; nobody is told, and nothing is saved."""
    told: list[Any] = []
    manager = StateManager("t", on_status_change=lambda old, new: told.append(new))
    when = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
    whole = TaskState(id="t", status=TaskStatus.PAUSED, start_time=when, updated_at=when)
    assert manager.restore_state(whole) == whole
    assert (
        manager.restore_state(
            {
                "status": "paused",
                "start_time": "2026-01-02T04:04:05.000600+01:00",
                "updated_at": when.isoformat(),
            }
        )
        == whole
    )
    assert manager.restore_state({"id": "t", "status": TaskStatus.PAUSED, "start_time": when})
    assert told == []
    assert not manager.is_dirty
    for wrong in (
        {"id": "other"},
        {"status": "x"},
        {"start_time": "yesterday"},
        {"start_time": "2026-01-02"},
        {"nope": 1},
    ):
        with pytest.raises(InvalidDataError):
            manager.restore_state(wrong)


@virtually
async def test_one_timer_serves_any_number_of_updates(backend: Backend, store: Any) -> None:
    """An update arms nothing anew."""
    manager = await make(store)
    loop = asyncio.get_running_loop()
    armed = 0
    call_at = loop.call_at

    def counting(*arguments: Any, **options: Any) -> asyncio.TimerHandle:
        nonlocal armed
        armed += 1
        return call_at(*arguments, **options)

    loop.call_at = counting  # type: ignore[method-assign]
    for number in range(1000):
        manager.update_state(retry_count=number)
    assert armed == 1
    await manager.aclose()
