"""Calls that are cancelled, late or in each other's way: no late write, and the next call works."""

import asyncio
import gc
import itertools
import random
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from sql_support import Open, Owner, Raw, cancelled_at, claim_id, in_a_hurry

from outlast.driver import Driver, Entry, Fence, Index, Scope, Where
from outlast.errors import (
    FencedError,
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    UnavailableError,
)
from outlast_contract.stopwatch import Stopwatch
from outlast_sql import SqlDriver
from outlast_sql._reads import Database
from outlast_sql._sqlite import SqliteDriver

pytestmark = [pytest.mark.sql, pytest.mark.sqlite]

TASK = Scope("task", "t")


def entry(number: int) -> Entry:
    return Entry(str(number), b"x" * 100)


CALLS: dict[str, Callable[[Driver, Fence], Coroutine[Any, Any, object]]] = {
    "claim": lambda driver, fence: driver.claim(Scope("task", "u"), claim_id(7)),
    "write": lambda driver, fence: driver.write(TASK, "state", b"n", fence=fence, index=Index()),
    "append": lambda driver, fence: driver.append(TASK, "api", [entry(1), entry(2)], fence=fence),
    "replace": lambda driver, fence: driver.replace(TASK, "api", [entry(3)], fence=fence),
    "remove": lambda driver, fence: driver.remove(TASK, fence=fence),
    "sweep": lambda driver, fence: driver.sweep(older_than=0, limit=9, dry_run=False, after=None),
    "read": lambda driver, fence: driver.read(TASK, "state"),
    "load": lambda driver, fence: driver.load(TASK, "api"),
    "scan": lambda driver, fence: driver.scan("task", where=Where(), after=None, limit=9),
    "ping": lambda driver, fence: driver.ping(),
}


def dump(raw: Raw) -> list[Any]:
    """All rows, without times."""
    return [
        raw.db.execute(
            "SELECT id, epoch, claim_id, seq, op FROM outlast_scope ORDER BY id"
        ).fetchall(),
        raw.db.execute("SELECT sid, register, version, data FROM outlast_register").fetchall(),
        raw.db.execute("SELECT sid, log, pos, entry_id FROM outlast_entry ORDER BY pos").fetchall(),
    ]


@pytest.mark.parametrize("name", CALLS)
async def test_cancelled_at_any_await_it_is_done_or_never_will_be(
    open_driver: Open, path: Path, name: str
) -> None:
    """X1, X2, C8, H-Q20: what is stored at the moment of the CancelledError is final."""
    driver = await open_driver()
    await driver.claim(Scope("task", "old"), claim_id(1))
    value = await driver.claim(TASK, claim_id(1))
    owner = Owner(value.fence.epoch, value.fence.claim_id)
    await driver.append(TASK, "api", [entry(0)], fence=owner.fence())
    with Raw(path) as raw:
        limit = 1
        while True:
            fence = owner.fence()
            came_so_far = await cancelled_at(limit, CALLS[name](driver, fence))
            seen = dump(raw)
            await driver.ping()
            assert dump(raw) == seen
            if not came_so_far:
                break
            # Another task's call gets its own answer.
            assert (await driver.read(TASK, "state")).epoch == 1
            limit += 1
    assert limit > 1
    assert await driver.append(TASK, "user", [entry(9)], fence=owner.fence()) == []


async def test_cancelled_at_any_moment_a_batch_is_whole_or_absent(
    open_driver: Open, path: Path
) -> None:
    """A4, X1: 300 batches, each cancelled about when it is stored, none of them late."""
    driver = await open_driver()
    rng = random.Random(11)
    span = 0.001
    both: dict[bool, int] = {True: 0, False: 0}
    with Raw(path) as raw:
        for number in range(300):
            batch = [Entry(f"{number}.{part}", b"x") for part in range(3)]
            task = asyncio.create_task(driver.append(TASK, "api", batch, fence=None))
            await asyncio.sleep(0)
            until = time.perf_counter() + rng.uniform(0, span)
            while time.perf_counter() < until:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            stored = [name for name in raw.ids() if name.startswith(f"{number}.")]
            assert stored in ([], [entry.id for entry in batch])
            if not task.cancelled():
                assert stored
            both[bool(stored)] += 1
            # As long as this machine takes just now: about every other batch is stored.
            span = max(1e-5, span * (0.8 if stored else 1.25))
            marker = Entry(f"after {number}", b"")
            assert await driver.append(TASK, "user", [marker], fence=None) == []
            assert [name for name in raw.ids() if name.startswith(f"{number}.")] == stored
    assert min(both.values()) > 10, f"the moments were ill chosen: {both}"


@pytest.mark.parametrize("name", ["setup", "aclose"])
async def test_cancelled_at_any_await_nothing_stays_open(path: Path, name: str) -> None:
    """C7: opening or closing that is cancelled leaves no connection behind after aclose."""
    limit = 1
    while True:
        driver = SqlDriver.from_url(f"sqlite:///{path}", namespace="test")
        if name == "aclose":
            await driver.setup(create=True)
            came_so_far = await cancelled_at(limit, driver.aclose())
        else:
            came_so_far = await cancelled_at(limit, driver.setup(create=True))
        await driver.aclose()
        if not came_so_far:
            break
        limit += 1
    assert limit > (3 if name == "setup" else 1)


async def test_waiting_for_the_lock_it_lets_go_at_once(open_driver: Open, path: Path) -> None:
    """H-Q20: the cancelled call returns without the lock, and writes nothing when it comes free."""
    driver = await open_driver()
    with Raw(path) as raw:
        raw.lock()
        task = asyncio.create_task(driver.append(TASK, "api", [entry(1)], fence=None))
        await asyncio.sleep(0.05)
        assert not task.done()
        with Stopwatch() as watch:
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()
        assert watch.seconds < 0.5
        raw.unlock()
        assert await driver.append(TASK, "api", [entry(2)], fence=None) == []
        assert raw.ids() == ["2"]


async def test_behind_another_call_it_is_never_sent(open_driver: Open, path: Path) -> None:
    """A call that is cancelled in the queue does not disturb the one that runs."""
    driver = await open_driver()
    with Raw(path) as raw:
        raw.lock()
        tasks = [
            asyncio.create_task(driver.append(TASK, "api", [entry(number)], fence=None))
            for number in range(5)
        ]
        await asyncio.sleep(0.02)
        for number in (1, 3):
            tasks[number].cancel()
            await asyncio.wait([tasks[number]])
        raw.unlock()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [False, True, False, True, False]
        assert raw.ids() == ["0", "2", "4"]


async def test_a_busy_database_is_unavailable_in_time(open_driver: Open, path: Path) -> None:
    """H-Q3, E6: after less than the timeout, never earlier, and not applied; reads go on."""
    driver = await open_driver()
    await driver.append(TASK, "api", [entry(1)], fence=None)
    with Raw(path) as raw:
        raw.lock()
        begin = time.monotonic()
        with in_a_hurry(driver, 1.0), Stopwatch() as watch:
            with pytest.raises(UnavailableError) as caught:
                await driver.append(TASK, "api", [entry(2)], fence=None)
            assert watch.seconds < 1.0
            assert time.monotonic() - begin > 0.7
            # Nothing is left of its time to say why, if this process did not run when it was over.
            assert "locked" in caught.value.message or watch.late > 0.05
        assert caught.value.applied is False
        assert await driver.load(TASK, "api") == [entry(1)]
        raw.unlock()
    assert await driver.append(TASK, "api", [entry(2)], fence=None) == []


ENDLESS = """
WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 10000000000)
SELECT count(*) FROM n
"""


@pytest.mark.parametrize("step", ["one statement", "many rows"])
async def test_a_long_step_is_broken_off(open_driver: Open, step: str) -> None:
    """A cancelled call does not hold its connection until a big step is through."""
    driver = await open_driver()

    def run(db: Database) -> None:
        if step == "one statement":
            db.execute(ENDLESS).fetchone()
        else:
            rows = ((b"%d" % number, 0, 0) for number in itertools.count())
            db.executemany("INSERT INTO outlast_floor VALUES (?, ?, ?)", rows)

    task = asyncio.create_task(driver._mutate(run))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    append = driver.append(TASK, "api", [entry(1)], fence=None)
    assert await asyncio.wait_for(append, 5) == []


async def test_a_step_that_takes_too_long_is_unavailable_in_time(open_driver: Open) -> None:
    """E2, E6: it is broken off, and those behind it get what is left of their time."""
    driver = await open_driver()
    await driver.append(TASK, "api", [entry(1)], fence=None)

    def run(db: Database) -> None:
        db.execute("DELETE FROM outlast_entry")
        db.execute(ENDLESS).fetchone()

    with in_a_hurry(driver, 1.5), Stopwatch() as watch:
        with pytest.raises(UnavailableError, match="no answer within") as caught:
            await driver._mutate(run)
        assert watch.seconds < 1.5
    assert caught.value.applied is False
    assert await driver.load(TASK, "api") == [entry(1)]
    with in_a_hurry(driver, 1.5):
        long, short = (
            asyncio.create_task(call)
            for call in (driver._mutate(run), driver.append(TASK, "api", [entry(2)], fence=None))
        )
        await asyncio.wait([long, short])
    assert isinstance(long.exception(), UnavailableError)
    stored = await driver.load(TASK, "api")
    if short.exception() is not None:
        assert isinstance(short.exception(), UnavailableError)
        assert stored == [entry(1)]
    else:
        assert stored == [entry(1), entry(2)]


class SlowDisk:
    """Holds up the commits of a driver until it is told not to, as a disk does that is slow to
    sync.
    """

    def __init__(self, driver: SqliteDriver) -> None:
        self._begun = threading.Event()
        self._released = threading.Event()
        driver._lanes[0]._db.set_trace_callback(self._trace)

    def _trace(self, statement: str) -> None:
        if statement == "COMMIT":
            self._begun.set()
            self._released.wait(60)

    async def commit_begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, 60)

    def release(self) -> None:
        self._released.set()


async def test_a_commit_that_takes_too_long_is_unknown_in_time(open_driver: Open) -> None:
    """E2, E6: nobody can take it back; it is in later, as the caller was warned."""
    driver = await open_driver()
    disk = SlowDisk(driver)
    begin = time.monotonic()
    with in_a_hurry(driver, 1.5), Stopwatch() as watch:
        with pytest.raises(OutcomeUnknownError, match="commit is not confirmed") as caught:
            await driver.append(TASK, "api", [entry(1)], fence=None)
        assert watch.seconds < 1.5
        assert time.monotonic() - begin > 1.3
    assert caught.value.applied is None
    disk.release()
    assert await driver.append(TASK, "api", [entry(2)], fence=None) == []
    assert await driver.load(TASK, "api") == [entry(1), entry(2)]


@pytest.mark.parametrize("impatient", [False, True])
async def test_a_cancelled_commit_is_seen_to_its_end(
    open_driver: Open, path: Path, impatient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: unless it is cancelled a second time."""
    monkeypatch.setattr("outlast_sql._lane._SETTLE", 60.0)
    driver = await open_driver()
    disk = SlowDisk(driver)
    with Raw(path) as raw:
        task = asyncio.create_task(driver.append(TASK, "api", [entry(1)], fence=None))
        await disk.commit_begun()
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
        assert not task.done()
        if impatient:
            task.cancel()
            await asyncio.wait([task])
            assert raw.ids() == []
            disk.release()
        else:
            disk.release()
            await asyncio.wait([task])
            assert raw.ids() == ["1"]
        assert task.cancelled()
        assert await driver.append(TASK, "api", [entry(2)], fence=None) == []
        assert raw.ids() == ["1", "2"]


@pytest.fixture
def sharing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits may join a transaction, however slow this machine is just then."""
    monkeypatch.setattr("outlast_sql._calls._SHARING_SECONDS", getattr(request, "param", 60.0))


class Shared:
    """Calls that wait for the same commit, since the database was busy when they came."""

    def __init__(self, driver: SqliteDriver, raw: Raw) -> None:
        self.driver = driver
        self.raw = raw
        self.commits = 0
        driver._lanes[0]._db.set_trace_callback(self._trace)
        raw.lock()

    def _trace(self, statement: str) -> None:
        self.commits += statement == "COMMIT"

    async def run(self, *calls: Awaitable[Any]) -> list[Any]:
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0.02)
        self.raw.unlock()
        return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("sharing", "commits"),
    [(60.0, 1), (0.0, 40)],
    ids=["in time", "too late"],
    indirect=["sharing"],
)
@pytest.mark.usefixtures("sharing")
async def test_calls_that_wait_share_a_commit(open_driver: Open, path: Path, commits: int) -> None:
    """P1: in the order in which they were called; none joins a transaction that is too old."""
    driver = await open_driver()
    with Raw(path) as raw:
        shared = Shared(driver, raw)
        calls = [driver.append(TASK, "api", [entry(number)], fence=None) for number in range(40)]
        assert await shared.run(*calls) == [[]] * 40
        assert shared.commits == commits
        assert raw.ids() == [str(number) for number in range(40)]


@pytest.mark.usefixtures("sharing")
async def test_a_refused_sharer_is_undone_alone(open_driver: Open, path: Path) -> None:
    """E2: the others are done; the refused one changed nothing."""
    driver = await open_driver()
    await driver.claim(Scope("task", "owned"), claim_id(1))
    with Raw(path) as raw:
        shared = Shared(driver, raw)
        answers = await shared.run(
            driver.append(TASK, "api", [entry(1)], fence=None),
            driver.append(Scope("task", "owned"), "api", [entry(1)], fence=None),
            driver.append(TASK, "api", [entry(2)], fence=None),
        )
        assert [type(answer) for answer in answers] == [list, FencedError, list]
        assert shared.commits == 1
        assert raw.ids() == ["1", "2"]
        assert raw.ids("owned") == []


@pytest.mark.usefixtures("sharing")
@pytest.mark.parametrize("shares", [False, True], ids=["alone", "shared"])
async def test_a_batch_that_fails_halfway_leaves_no_part(
    open_driver: Open, path: Path, shares: bool
) -> None:
    """A4: in a transaction of its own, and in a savepoint of another's."""
    driver = await open_driver()
    driver._lanes[0]._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    with Raw(path) as raw:
        shared = Shared(driver, raw)
        batch = [entry(1), entry(2), Entry("big", bytes(100_001)), entry(3)]
        calls = [driver.append(TASK, "api", batch, fence=None)]
        if shares:
            calls.insert(0, driver.append(TASK, "user", [entry(0)], fence=None))
            calls.append(driver.append(TASK, "api", [entry(4)], fence=None))
        answers = await shared.run(*calls)
        kinds = [type(answer) for answer in answers]
        assert kinds == ([list, PayloadTooLargeError, list] if shares else [PayloadTooLargeError])
        assert raw.ids() == (["4"] if shares else [])
        assert shared.commits == shares


@pytest.mark.usefixtures("sharing")
async def test_a_sharer_that_rolls_everything_back_costs_the_others_nothing(
    open_driver: Open, path: Path
) -> None:
    """SQLite ends the whole transaction when the disk is full: the others run again without it."""
    driver = await open_driver()
    with Raw(path) as raw:
        (pages,) = raw.db.execute("PRAGMA page_count").fetchone()
        driver._lanes[0]._db.execute(f"PRAGMA max_page_count = {pages + 20}")
        shared = Shared(driver, raw)
        answers = await shared.run(
            driver.append(TASK, "api", [entry(1)], fence=None),
            driver.append(TASK, "api", [entry(2)], fence=None),
            driver.append(TASK, "api", [Entry("big", bytes(1_000_000))], fence=None),
            driver.append(TASK, "api", [entry(3)], fence=None),
        )
        assert [type(answer) for answer in answers] == [list, list, UnavailableError, list]
        assert "full" in str(answers[2])
        assert answers[2].applied is False
        assert raw.ids() == ["1", "2", "3"]
        assert await driver.append(TASK, "api", [entry(4)], fence=None) == []


async def test_a_cancelled_sharer_is_left_out(open_driver: Open, path: Path) -> None:
    """The first of them, too, on whose turn the others wait."""
    driver = await open_driver()
    with Raw(path) as raw:
        raw.lock()
        tasks = [
            asyncio.create_task(driver.append(TASK, "api", [entry(number)], fence=None))
            for number in range(3)
        ]
        await asyncio.sleep(0.02)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        raw.unlock()
        assert await asyncio.gather(*tasks[1:]) == [[], []]
        assert tasks[0].cancelled()
        assert raw.ids() == ["1", "2"]


async def test_a_load_never_sees_half_of_a_replacement(open_driver: Open) -> None:
    """A7: from another connection, while lists of two kinds take turns."""
    writer, reader = await open_driver(), await open_driver()
    lists = [[Entry(f"{kind}{n}", kind.encode() * 500) for n in range(200)] for kind in "ab"]
    await writer.replace(TASK, "api", lists[0], fence=None)
    seen: set[str] = set()

    async def write() -> None:
        for number in range(10_000):
            await writer.replace(TASK, "api", lists[number % 2], fence=None)
            if number > 60 and len(seen) == 2:
                break

    writing = asyncio.create_task(write())
    while not writing.done():
        found = await reader.load(TASK, "api")
        assert found in lists
        seen.add(found[0].id)
        assert (await reader.load(TASK, "api", last=3)) in [part[-3:] for part in lists]
    await writing
    assert seen == {"a0", "b0"}


@pytest.fixture
def junk(path: Path) -> Path:
    """A file that is no database."""
    path.write_bytes(random.Random(1).randbytes(10_000))
    return path


async def test_a_cancelled_opening_that_fails_is_no_unhandled_error(junk: Path) -> None:
    """X1: whoever was to be told is gone, and the loop is told nothing."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    for turns in range(0, 50, 7):
        driver = SqlDriver.from_url(f"sqlite:///{junk}", namespace="test")
        task = asyncio.ensure_future(driver.setup(create=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or isinstance(task.exception(), OutlastError)
        await driver.aclose()
    del task, driver
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []
