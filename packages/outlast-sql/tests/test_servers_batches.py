"""Mutations of many scopes called at once, which go to a server together (E2, X1, X2, C8)."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from server_support import Admin, root_of, until
from server_ways import SERVERS, server_driver, url_of
from sql_support import Open, Owner, cancelled_at, claim_id

from outlast.driver import Entry, Index, Scope, Where
from outlast.errors import FencedError, OutcomeUnknownError, UnavailableError
from outlast_sql import SqlDriver
from outlast_sql._batches import MOST, Parameters
from outlast_sql._server import ServerDriver

pytestmark = [pytest.mark.sql, pytest.mark.server]

TOGETHER = [way for way in SERVERS if way != "mysql"]
"""Ways that send mutations together."""


@pytest.fixture(params=TOGETHER)
async def driver(request: pytest.FixtureRequest, namespace: str) -> AsyncIterator[ServerDriver]:
    """A driver, by each way."""
    async with server_driver(request.param, namespace) as opened:
        assert isinstance(opened, ServerDriver)
        yield opened


class Sent:
    """What a driver sends together."""

    def __init__(self, driver: ServerDriver) -> None:
        self.batches: list[Sequence[Parameters]] = []
        for batches in driver._batches.values():
            batches._send = self._seen(batches._send)

    def _seen(self, send: Any) -> Any:
        async def seen(link: Any, calls: Sequence[Parameters]) -> Any:
            self.batches.append(calls)
            return await send(link, calls)

        return seen

    @property
    def most(self) -> int:
        """Mutations in the largest batch."""
        return max(map(len, self.batches), default=0)


class Task:
    """A claimed task, and what it holds."""

    def __init__(self, driver: SqlDriver, name: str, owner: Owner) -> None:
        self.driver = driver
        self.scope = Scope("task", name)
        self.owner = owner
        self.done: list[Entry] = []

    @classmethod
    async def many(cls, driver: SqlDriver, count: int) -> "list[Task]":
        found: list[Task] = []
        for number in range(count):
            scope = Scope("task", f"t{number}")
            claimed = await driver.claim(scope, claim_id(number + 1))
            found.append(cls(driver, scope.id, Owner(claimed.epoch, claim_id(number + 1))))
        return found

    async def append(self) -> None:
        entry = Entry(secrets.token_hex(4), secrets.token_bytes(20))
        assert await self.driver.append(self.scope, "api", [entry], fence=self.owner.fence()) == []
        self.done.append(entry)

    async def save(self) -> int:
        return await self.driver.write(
            self.scope, "state", self.scope.id.encode(), fence=self.owner.fence(), index=Index("p")
        )

    async def loaded(self) -> list[Entry]:
        return await self.driver.load(self.scope, "api")


async def locked(admin: Admin, task: Task, namespace: str = "test") -> None:
    """Lock the row of a task, and no other, in a transaction."""
    await admin.run("BEGIN")
    await admin.rows(
        f"SELECT sid FROM outlast_scope WHERE namespace = '{namespace}' AND kind = 0"
        f" AND id = '{task.scope.id}' FOR UPDATE"
    )


async def test_what_is_called_at_once_goes_together_and_a_lone_call_by_itself(
    driver: ServerDriver,
) -> None:
    """Every scope gets its own, in order, whatever is in a batch with it."""
    tasks = await Task.many(driver, 2 * MOST + 5)
    sent = Sent(driver)
    await tasks[0].append()
    assert not sent.batches
    for number in range(1, 5):
        await asyncio.gather(*(task.append() for task in tasks))
        versions = await asyncio.gather(*(task.save() for task in tasks))
        assert versions == [number] * len(tasks)
    assert 1 < sent.most <= MOST
    for task in tasks:
        assert await task.loaded() == task.done
        read = await driver.read(task.scope, "state")
        assert (read.data, read.version) == (task.scope.id.encode(), 4)
        assert read.fence is not None
        assert read.fence.seq == task.owner.seq
    page = await driver.scan("task", where=Where(), after=None, limit=1000)
    assert {item.id for item in page.items} == {task.scope.id for task in tasks}


async def test_what_is_refused_spoils_nothing_for_others(driver: ServerDriver) -> None:
    """E2, A8: a stale claim, a scope that is gone and a known id, each told so."""
    tasks = await Task.many(driver, 12)
    stale, gone, repeated = tasks[3], tasks[6], tasks[9]
    await asyncio.gather(*(task.append() for task in tasks))
    for with_repeated in (False, True):
        calls: list[Any] = [task.append() for task in tasks if task not in (stale, gone, repeated)]
        calls += [
            driver.append(stale.scope, "api", [Entry("x", b"")], fence=Owner(0, "").fence()),
            driver.append(
                Scope("task", "gone"), "api", [Entry("x", b"")], fence=gone.owner.fence()
            ),
        ]
        again = [Entry(repeated.done[0].id, b"another")]
        if with_repeated:
            calls.append(driver.append(repeated.scope, "api", again, fence=repeated.owner.fence()))
        sent = Sent(driver)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sent.most > 2
        assert answers[:9] == [None] * 9
        for error, reason in zip(answers[9:11], ("superseded", "no_record"), strict=True):
            assert isinstance(error, FencedError)
            assert error.reason == reason
        if with_repeated:
            assert answers[11] == repeated.done
    for task in tasks:
        assert await task.loaded() == task.done


async def test_a_scope_that_is_locked_holds_up_no_other(
    driver: ServerDriver, namespace: str
) -> None:
    """Whoever locks it, and however long."""
    admin = await Admin.on(root_of(url_of("asyncpg" if driver.name == "postgresql" else "mariadb")))
    tasks = await Task.many(driver, 6)
    await locked(admin, tasks[3], namespace)
    sent = Sent(driver)
    calls = [asyncio.ensure_future(task.append()) for task in tasks]
    await asyncio.wait([*calls[:3], *calls[4:]])
    assert sent.most > 2
    assert not calls[3].done()
    await admin.run("COMMIT")
    await calls[3]
    for task in tasks:
        assert await task.loaded() == task.done
    await admin.close()


async def test_cancelling_one_of_many_leaves_the_others_alone(driver: ServerDriver) -> None:
    """X1, X2, C8: at every await of it; it is in or not, and never comes later."""
    tasks = await Task.many(driver, 5)
    for victim in (tasks[0], tasks[2], tasks[4]):
        step = 1
        while True:
            entry = Entry(f"cut {step}", b"1")
            cut = driver.append(victim.scope, "api", [entry], fence=victim.owner.fence())
            calls: list[Any] = [task.append() for task in tasks if task is not victim]
            calls.insert(tasks.index(victim), cancelled_at(step, cut))
            struck = (await asyncio.gather(*calls))[tasks.index(victim)]
            await victim.append()
            (*before, last) = await victim.loaded()
            assert last == victim.done[-1]
            assert before in (victim.done[:-1], [*victim.done[:-1], entry])
            assert struck or before[-1] == entry
            victim.done = [*before, last]
            for task in tasks:
                assert await task.loaded() == task.done
            if not struck:
                break
            step += 1
        assert step > 1


async def test_cancelling_all_of_many_leaves_nothing_behind(driver: ServerDriver) -> None:
    """X1, C7, C8: after whatever number of turns of the loop."""
    tasks = await Task.many(driver, 12)
    admin = await Admin.on(root_of(url_of("asyncpg" if driver.name == "postgresql" else "mariadb")))
    for turns in (*range(8), 12, 20, 40):
        calls = [asyncio.ensure_future(task.append()) for task in tasks]
        for _ in range(turns):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await asyncio.gather(*(task.append() for task in tasks))
        for task in tasks:
            loaded = await task.loaded()
            assert loaded[-1:] == task.done[-1:]
            assert [entry for entry in loaded if entry in task.done] == task.done
    await admin.see_idle_transactions_end()
    await admin.close()


async def test_a_batch_that_a_stranger_cancels_tells_all_its_callers(driver: ServerDriver) -> None:
    """E2, E6: an application that cancels all tasks it finds, say; nobody waits in vain."""
    tasks = await Task.many(driver, 12)
    struck = 0
    for turns in range(12):
        calls = [asyncio.ensure_future(task.append()) for task in tasks]
        for _ in range(turns):
            await asyncio.sleep(0)
        found = [task for task in asyncio.all_tasks() if task.get_name() == "outlast-batch"]
        struck += sum(task.cancel() for task in found)
        async with asyncio.timeout(5):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        wrong = [one for one in outcomes if one and not isinstance(one, OutcomeUnknownError)]
        assert not wrong
    assert struck


@pytest.mark.parametrize("way", TOGETHER)
async def test_batches_of_two_processes_never_meet_in_a_deadlock(way: str, namespace: str) -> None:
    """Over the same scopes in opposite orders; nothing is lost, doubled or out of place."""
    async with server_driver(way, namespace) as one, server_driver(way, namespace) as other:
        scopes = [Scope("task", f"t{number}") for number in range(20)]
        for scope in scopes:
            await one.append(scope, "api", [Entry("first", b"")], fence=None)

        async def append(driver: SqlDriver, scope: Scope, name: str) -> None:
            assert await driver.append(scope, "api", [Entry(name, name.encode())], fence=None) == []

        async def work(driver: SqlDriver, order: list[Scope], who: str) -> None:
            for number in range(15):
                await asyncio.gather(*(append(driver, scope, f"{who} {number}") for scope in order))

        async with asyncio.timeout(60):
            await asyncio.gather(work(one, scopes, "a"), work(other, scopes[::-1], "b"))
        for scope in scopes:
            names = [entry.id for entry in await one.load(scope, "api")]
            for who in "ab":
                assert [name for name in names if name.startswith(who)] == [
                    f"{who} {number}" for number in range(15)
                ]
            assert len(names) == 31


async def test_a_batch_has_each_scope_once_and_no_more_bytes_than_a_few(
    driver: ServerDriver,
) -> None:
    """What is too much, or of a scope that is in it, is in the next one."""
    tasks = await Task.many(driver, 8)
    sent = Sent(driver)
    both = [
        driver.append(task.scope, "api", [Entry(name, b"1")], fence=task.owner.fence())
        for name in "ab"
        for task in tasks
    ]
    await asyncio.gather(*both, return_exceptions=True)
    assert sent.most > 1
    for batch in sent.batches:
        assert len({tuple(call[:3]) for call in batch}) == len(batch)
    sent.batches.clear()
    large = [
        driver.append(task.scope, "user", [Entry("c", bytes(size))], fence=task.owner.fence())
        for task, size in zip(tasks, [1, *[100_000] * 6, 2**20], strict=True)
    ]
    await asyncio.gather(*large)
    assert sent.most > 1
    for batch in sent.batches:
        assert sum(len(value) for call in batch for value in call if type(value) is bytes) < 2**18
    for task, size in zip(tasks, [1, *[100_000] * 6, 2**20], strict=True):
        assert await driver.load(task.scope, "user") == [Entry("c", bytes(size))]


async def test_those_who_find_no_connection_are_each_told_so(admin: Admin, open_on: Open) -> None:
    """E2, E6: nothing was sent; and those who come later have their own time."""
    driver = await open_on(timeout=4.0, pool_size=1)
    tasks = await Task.many(driver, 6)
    await locked(admin, tasks[0])
    root = await Admin.on(root_of(admin.url))
    first = asyncio.ensure_future(tasks[0].append())

    async def waits() -> bool:
        return await root.waiting() > 0

    await until(waits)
    early = [asyncio.ensure_future(task.append()) for task in tasks[1:4]]
    # Waits for nothing: that these come a while later is what the test is about.
    await asyncio.sleep(2.0)
    late = [asyncio.ensure_future(task.append()) for task in tasks[4:]]
    await asyncio.wait(early)
    errors = [call.exception() for call in early]
    assert len(set(map(id, errors))) == 3
    for error in errors:
        assert isinstance(error, UnavailableError)
        assert "pool_size" in error.message
    assert not any(call.done() for call in late)
    await admin.run("COMMIT")
    await asyncio.gather(first, *late)
    for task in tasks:
        assert await task.loaded() == task.done
    await root.close()


async def test_a_caller_that_leaves_while_all_wait_is_not_waited_for(
    admin: Admin, open_on: Open
) -> None:
    """X1, C7: nobody takes a connection for it, and closing does not wait."""
    driver = await open_on(pool_size=1)
    tasks = await Task.many(driver, 3)
    await locked(admin, tasks[0])
    first = asyncio.ensure_future(tasks[0].append())
    await asyncio.sleep(0)
    for task in tasks[1:]:
        call = asyncio.ensure_future(task.append())
        for _ in range(5):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await asyncio.sleep(0)
        assert not [one for one in asyncio.all_tasks() if one.get_name() == "outlast-batch"]
    await admin.run("COMMIT")
    await first
    await asyncio.gather(*(task.append() for task in tasks))
    for task in tasks:
        assert await task.loaded() == task.done
