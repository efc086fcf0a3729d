"""What the tests of this distribution share."""

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from outlast.driver import Driver, Entry, Fence, Index, Scope, Where
from outlast_sql._sqlite import SqliteDriver

Open = Callable[..., Any]
"""The fixture ``open_driver``: ``await open_driver(namespace=, timeout=, create=)``."""


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition of another thread or process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


@contextmanager
def in_a_hurry(driver: SqliteDriver, seconds: float) -> Generator[None]:
    """Calls that begin in here have so little time; opening the driver had more."""
    before = {lane: lane._timeout for lane in driver._lanes}
    for lane in before:
        lane._timeout = seconds
    try:
        yield
    finally:
        for lane, timeout in before.items():
            lane._timeout = timeout


class Owner:
    """A claim as the layer above keeps it: it counts."""

    def __init__(self, epoch: int, claim_id: str) -> None:
        self.epoch = epoch
        self.claim_id = claim_id
        self.seq = 0

    def fence(self) -> Fence:
        self.seq += 1
        return Fence(self.epoch, self.claim_id, self.seq, secrets.token_hex(8))


def claim_id(number: int) -> str:
    return f"{number:032x}"


class Raw:
    """Another user of the database file, by sqlite3 alone."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, timeout=10.0, isolation_level=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.db.close()

    def lock(self) -> None:
        """Take the write lock."""
        self.db.execute("BEGIN IMMEDIATE")

    def unlock(self) -> None:
        self.db.execute("ROLLBACK")

    def ids(self, scope_id: str = "t", log: int = 0) -> list[str]:
        """The entries of a log, in order."""
        rows = self.db.execute(
            "SELECT entry_id FROM outlast_entry e JOIN outlast_scope s ON s.sid = e.sid"
            " WHERE s.id = ? AND log = ? ORDER BY pos",
            (scope_id.encode(), log),
        )
        return [entry_id.decode() for (entry_id,) in rows.fetchall()]


class _CancellingAt:
    """Awaits a coroutine, and cancels the task around it at its await number ``limit``."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], limit: int) -> None:
        self._coroutine = coroutine
        self._left = limit

    def __await__(self) -> Generator[Any, Any, Any]:
        step, argument = self._coroutine.send, None
        while True:
            try:
                awaited = step(argument)
            except StopIteration as stop:
                return stop.value
            self._left -= 1
            if not self._left:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                step, argument = self._coroutine.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - handed on to the coroutine
                step, argument = self._coroutine.throw, error


async def cancelled_at(limit: int, coroutine: Coroutine[Any, Any, object]) -> bool:
    """Run a coroutine in a task that is cancelled at its await number ``limit``, from 1.

    Returns whether it came so far.
    """

    async def counted() -> object:
        return await _CancellingAt(coroutine, limit)

    task = asyncio.create_task(counted())
    await asyncio.wait([task])
    if task.cancelled():
        return True
    task.result()
    return False


async def use_much(driver: Driver) -> None:
    """Calls whose statements read or change many rows."""
    scope = Scope("task", "t")
    # Of several sizes: MariaDB may keep large values apart, and lose the order.
    entries = [Entry(f"{number}", b"x" * (number - 40) ** 2) for number in range(80)]
    more = [Entry("new", b""), entries[60]]
    await driver.append(scope, "api", entries, fence=None)
    assert await driver.append(scope, "api", entries, fence=None) == entries
    assert await driver.append(scope, "api", more, fence=None) == [entries[60]]
    await driver.append(scope, "api", more[:1], fence=None, present=["0", "79"])
    assert await driver.load(scope, "api") == [*entries, more[0]]
    assert await driver.load(scope, "api", last=50) == [*entries[31:], more[0]]

    tasks = [Scope("task", f"{'x' * 100} {number:02}") for number in range(10)]
    for number, task in enumerate(tasks):
        index = Index(parent="p", status=f"{number % 2}")
        assert await driver.write(task, "state", b"", fence=None, index=index) == 1
    odd = [Entry("'\\", b"\0\\")]
    for known in ([], odd):
        answers = await asyncio.gather(
            *(driver.append(task, "user", odd, fence=None) for task in tasks)
        )
        assert answers == [known] * len(tasks)
    assert await driver.load(tasks[1], "user") == odd
    listed = await driver.scan("task", where=Where(parent="p"), after=None, limit=40)
    assert [item.id for item in listed.items] == [task.id for task in tasks]
    assert {item.value.data for item in listed.items} == {b""}
    for task in tasks:
        await driver.remove(task, fence=None)
    page = await driver.sweep(older_than=0.0, limit=40, dry_run=False, after=None)
    assert page.tombstones == len(tasks)
    page = await driver.sweep(older_than=0.0, limit=40, dry_run=False, after=None)
    assert page.tombstones == 0
