"""Lists of tasks and of checkpoints (L1 to L4)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import outlast
from outlast.errors import InvalidDataError, InvalidIdError
from outlast_contract.engine import Context, check
from outlast_contract.expect import expect, expect_equal, refused
from outlast_contract.mutations import checkpoint_of, state_of

_AT_ONCE = 32


async def at_once(calls: Iterable[Any]) -> None:
    """Await many calls, a few at a time; the first error ends it, and no further call is made."""
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(work())


async def _ids(states: AsyncIterator[outlast.TaskState]) -> list[str]:
    return [state.id async for state in states]


def _once(found: list[str], wanted: Iterable[str], what: str) -> None:
    doubled = [name for name, count in Counter(found).items() if count > 1]
    expect(not doubled, f"{what}: listed more than once: {doubled[:5]}", clause="L2")
    missing = sorted(set(wanted) - set(found))
    expect(
        not missing, f"{what}: {len(missing)} of {len(set(wanted))} missing, such as {missing[:3]}"
    )


@check("L1", "L2", "L4", heavy=True)
async def long_lists_are_complete(context: Context) -> None:
    """1,500 tasks are listed as 1,500 tasks, at once, one by one, and page by page."""
    client, other = await context.open_many(2)
    names = [f"task {number:05}" for number in range(context.settings.listed)]
    await at_once(client.persistence.save_task_state(name, state_of(name, "m")) for name in names)
    listed = [state.id for state in await other.persistence.list_task_states()]
    _once(listed, names, "list_task_states")
    expect_equal(sorted(listed), names, "the listed ids")
    again = [state.id for state in await client.persistence.list_task_states()]
    expect_equal(again, listed, "the order of a second list", clause="L4")
    iterated = await _ids(other.persistence.iter_task_states())
    expect_equal(iterated, listed, "iter_task_states beside list_task_states")
    size = max(7, len(names) // 9)
    pages: list[str] = []
    while True:
        page = await client.persistence.list_task_states(
            after=pages[-1] if pages else None, limit=size
        )
        expect(len(page) <= size, f"a page of {len(page)} with limit={size}", clause="L4")
        pages += [state.id for state in page]
        if len(page) < size:
            break
    expect_equal(pages, listed, f"pages of {size}", clause="L4")


@check("L1", "L2", "L3", heavy=True)
async def long_lists_of_checkpoints_are_complete(context: Context) -> None:
    """The checkpoints of a third of 1,500 runs, and of all of them, are listed completely."""
    client = await context.open()
    names = [f"run {number:05}" for number in range(context.settings.listed)]
    threads = {name: f"thread {number % 3}" for number, name in enumerate(names)}
    await at_once(client.checkpoints.put(checkpoint_of(name, "m", threads[name])) for name in names)
    everything = [point.run_id async for point in client.checkpoints.iter_checkpoints()]
    _once(everything, names, "iter_checkpoints")
    expect_equal(sorted(everything), names, "the listed runs")
    for thread in sorted(set(threads.values())):
        found = [point async for point in client.checkpoints.iter_checkpoints(thread_id=thread)]
        wanted = [name for name in names if threads[name] == thread]
        expect_equal(sorted(point.run_id for point in found), wanted, f"runs of {thread!r}")


@check("L2", "L3")
async def a_task_that_stays_is_listed_once(context: Context) -> None:
    """While others are created and deleted, each task that stays appears exactly once, filtered
    or not.
    """
    client, other = await context.open_many(2)
    staying = [f"{number:03}" for number in range(0, 250, 2)]
    await at_once(other.persistence.save_task_state(name, state_of(name, "m")) for name in staying)
    finished = asyncio.Event()

    async def disturb() -> None:
        number = 1
        while not finished.is_set():
            name = f"{number % 250:03}"
            await other.persistence.save_task_state(name, state_of(name, "guest"))
            gone = f"{(number - 20) % 250:03}"
            if int(gone) % 2:
                await other.persistence.delete_task(gone)
            number += 2
            await asyncio.sleep(0)

    async def watch() -> None:
        try:
            for _ in range(6 if context.settings.thorough else 3):
                found = await _ids(client.persistence.iter_task_states())
                _once(found, staying, "iter_task_states beside creation and deletion")
                running = await client.persistence.list_task_states(
                    status=outlast.TaskStatus.RUNNING
                )
                _once([state.id for state in running], staying, "a filtered list")
                pages: list[str] = []
                while page := await client.persistence.list_task_states(
                    after=pages[-1] if pages else None, limit=11
                ):
                    pages += [state.id for state in page]
                _once(pages, staying, "pages beside creation and deletion")
        finally:
            finished.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(disturb())
        group.create_task(watch())


@check("L3")
async def filters_give_what_matches(context: Context) -> None:
    """Status, parent and time filters, alone and together, follow every save, update and
    deletion.
    """
    client, other = await context.open_many(2)
    tasks = client.persistence
    statuses = list(outlast.TaskStatus)
    states: dict[str, outlast.TaskState] = {}
    for number in range(42):
        name = context.new_id("task")
        parent = (None, "p", "P", "p/q")[number % 4]
        states[name] = outlast.TaskState(
            id=name, status=statuses[number % len(statuses)], parent_id=parent
        )
        await tasks.save_task_state(name, states[name])
    for number, name in enumerate(list(states)):
        if number % 5 == 0:
            await tasks.update_task_state(
                name, {"status": outlast.TaskStatus.FAILED, "parent_id": "p"}
            )
            states[name] = outlast.TaskState(
                id=name, status=outlast.TaskStatus.FAILED, parent_id="p"
            )
        elif number % 7 == 0:
            await tasks.delete_task_state(name)
            del states[name]
        elif number % 11 == 0:
            await tasks.delete_task(name)
            del states[name]
    for status in (None, *statuses):
        for parent in (None, "p", "P", "p/q", "q", "nobody"):
            found = await other.persistence.list_task_states(status=status, parent_id=parent)
            wanted = [
                state.id
                for state in states.values()
                if status in (None, state.status) and parent in (None, state.parent_id)
            ]
            expect_equal(
                sorted(state.id for state in found),
                sorted(wanted),
                f"status={status} parent_id={parent!r}",
            )
            for state in found:
                expect_equal(state.status, states[state.id].status, f"status of {state.id!r}")
    text: Any = "failed"
    by_text = await tasks.list_task_states(status=text)
    failed = [name for name, state in states.items() if state.status == outlast.TaskStatus.FAILED]
    expect_equal(sorted(state.id for state in by_text), sorted(failed), "a status given as text")
    bad: list[dict[str, Any]] = [
        {"status": "sleeping"},
        {"limit": -1},
        {"limit": 1.5},
        {"limit": True},
        {"updated_before": datetime(2026, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"updated_before": "yesterday"},
    ]
    for options in bad:
        await refused(tasks.list_task_states(**options), InvalidDataError, f"a list with {options}")
    bad = [{"parent_id": ""}, {"after": ""}, {"parent_id": 7}]
    for options in bad:
        await refused(tasks.list_task_states(**options), InvalidIdError, f"a list with {options}")


@check("L3", "V7")
async def updated_before_compares_the_time_of_the_last_write(context: Context) -> None:
    """updated_before gives exactly what was last written strictly before that instant."""
    client = await context.open()
    stamps: dict[str, datetime] = {}
    points: dict[str, datetime] = {}
    for _ in range(8):
        name = context.new_id("id")
        await client.persistence.save_task_state(name, state_of(name, "m"))
        await client.checkpoints.put(checkpoint_of(name, "m"))
        await asyncio.sleep(0.001)  # so that most instants differ; nothing depends on it
    for state in await client.persistence.list_task_states():
        assert state.updated_at is not None
        stamps[state.id] = state.updated_at
    async for point in client.checkpoints.iter_checkpoints():
        assert point.updated_at is not None
        points[point.run_id] = point.updated_at
    instants = [*stamps.values(), *points.values()]
    for instant in (
        *instants,
        instants[0] + timedelta(microseconds=1),
        instants[0] - timedelta(days=1),
        datetime.now(UTC) + timedelta(days=1),
        instants[3].astimezone(_zone(5.5)),
    ):
        found = await client.persistence.list_task_states(updated_before=instant)
        wanted = sorted(name for name, stamp in stamps.items() if stamp < instant)
        expect_equal(sorted(state.id for state in found), wanted, f"tasks before {instant}")
        runs = [
            point.run_id
            async for point in client.checkpoints.iter_checkpoints(updated_before=instant)
        ]
        wanted = sorted(name for name, stamp in points.items() if stamp < instant)
        expect_equal(sorted(runs), wanted, f"checkpoints before {instant}")


def _zone(hours: float) -> Any:
    from datetime import timezone

    return timezone(timedelta(hours=hours))


@check("L4")
async def a_list_goes_on_behind_any_id(context: Context) -> None:
    """after= goes on in the list's own order, behind an id that is there, gone, or never was."""
    client = await context.open()
    tasks = client.persistence
    names = [f"n{number}" for number in range(30)] + [
        "N1",
        "é1",
        "e\u03011",
        "z",
        " ",
        "\x00",
        "😀",
    ]
    await at_once(tasks.save_task_state(name, state_of(name, "m")) for name in names)
    order = [state.id for state in await tasks.list_task_states()]
    expect_equal(sorted(order), sorted(names), "the listed ids")
    for place, name in enumerate(order):
        rest = [state.id for state in await tasks.list_task_states(after=name)]
        expect_equal(rest, order[place + 1 :], f"after={name!r}")
        for limit in (0, 1, 2, 100):
            some = [state.id for state in await tasks.list_task_states(after=name, limit=limit)]
            expect_equal(some, order[place + 1 :][:limit], f"after={name!r}, limit={limit}")
    for place in (3, 10, 20):
        gone = order[place]
        await tasks.delete_task(gone)
        rest = [state.id for state in await tasks.list_task_states(after=gone)]
        expect_equal(rest, order[place + 1 :], f"after={gone!r}, which was deleted")
        await client.sweep(older_than=timedelta(0))
        rest = [state.id for state in await tasks.list_task_states(after=gone)]
        expect_equal(rest, order[place + 1 :], f"after={gone!r}, which was deleted and swept")
        await tasks.save_task_state(gone, state_of(gone, "back"))
        now = [state.id for state in await tasks.list_task_states()]
        expect_equal(now, order, f"the order after {gone!r} came back")
    for stranger in ("n", "n05", "zz", "\uffff", "~", "!"):
        rest = [state.id for state in await tasks.list_task_states(after=stranger)]
        expect(
            rest == order[len(order) - len(rest) :],
            f"after={stranger!r}, which never was, gave {rest}, not an end of {order}",
        )
    every = [state.id async for state in tasks.iter_task_states(after=order[5])]
    expect_equal(every, order[6:], "iter_task_states(after=)")


@check("L2", "L3")
async def checkpoints_are_listed_once_beside_changes(context: Context) -> None:
    """Runs that keep their checkpoint are listed once while others are put and deleted."""
    client, other = await context.open_many(2)
    staying = [f"{number:03}" for number in range(0, 120, 2)]
    await at_once(other.checkpoints.put(checkpoint_of(name, "m", "t")) for name in staying)
    finished = asyncio.Event()

    async def disturb() -> None:
        number = 1
        while not finished.is_set():
            name = f"{number % 120:03}"
            await other.checkpoints.put(checkpoint_of(name, "guest", "t"))
            await other.checkpoints.delete(f"{(number - 10) % 120:03}")
            number += 2
            await asyncio.sleep(0)

    async def watch() -> None:
        try:
            for thread in (None, "t") * 5:
                points = client.checkpoints.iter_checkpoints(thread_id=thread)
                found = [point.run_id async for point in points]
                _once(found, staying, f"iter_checkpoints(thread_id={thread!r})")
        finally:
            finished.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(disturb())
        group.create_task(watch())
