"""Calls that hang, time out or are cancelled have no effect later, and leave nothing open."""

import asyncio
import gc
import threading
from collections.abc import Coroutine, Iterator
from inspect import CORO_CLOSED, getcoroutinestate
from pathlib import Path
from typing import Any

import pytest
from file_kit import TASK, claim, entries, failing_within, files_below, ids_of, wait_until

from outlast.backends._fs import FileSystem, Identity
from outlast.backends._threads import Ticket, Workers
from outlast.backends.file import FileDriver
from outlast.driver import Scope
from outlast.errors import ClosedError, OutcomeUnknownError, UnavailableError


class HangingFileSystem(FileSystem):
    """Hangs in the call of a given name, until released."""

    def __init__(self) -> None:
        self.where = ""
        self.reached = threading.Event()
        self.released = threading.Event()

    def hang(self, where: str) -> None:
        self.where = where
        self.reached.clear()
        self.released.clear()

    def release(self) -> None:
        self.where = ""
        self.released.set()

    def _at(self, call: str) -> None:
        if call == self.where:
            self.where = ""
            self.reached.set()
            assert self.released.wait(30)

    def open(self, path: str) -> int:
        self._at("open")
        return super().open(path)

    def identify(self, file: str | int) -> Identity:
        self._at("identify")
        return super().identify(file)

    def fsync(self, fd: int) -> None:
        self._at("fsync")
        super().fsync(fd)

    def fsync_dir(self, path: str) -> None:
        self._at("fsync_dir")
        super().fsync_dir(path)

    def try_lock(self, fd: int) -> bool:
        if self.where == "try_lock":
            self.reached.set()
            return False
        return super().try_lock(fd)


class HangingDriver(FileDriver):
    def __init__(self, path: Path, timeout: float = 10.0) -> None:
        self.filesystem = self.fs = HangingFileSystem()
        super().__init__(path, namespace="n", timeout=timeout)


def _threads() -> list[threading.Thread]:
    """The threads of drivers, of whichever test."""
    return [thread for thread in threading.enumerate() if "outlast" in thread.name]


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fails if threads or open files are left when the test is over."""
    gc.collect()
    files = sorted(Path("/proc/self/fd").iterdir())
    before = set(_threads())
    yield
    gc.collect()
    assert set(_threads()) <= before
    assert sorted(Path("/proc/self/fd").iterdir()) == files


pytestmark = [pytest.mark.file, pytest.mark.usefixtures("no_leaks")]


async def _opened(path: Path, timeout: float = 10.0) -> HangingDriver:
    driver = HangingDriver(path, timeout)
    await driver.setup(create=True)
    return driver


async def _released(driver: HangingDriver) -> None:
    """Let what hangs go on, and wait for its end."""
    driver.fs.release()
    await wait_until(lambda: not driver._workers._steps)


async def test_a_call_that_hangs_before_its_effect_is_certainly_not_applied(tmp_path: Path) -> None:
    driver = await _opened(tmp_path, timeout=1.5)
    for where in ("open", "fsync"):

        async def hang(where: str = where) -> None:
            driver.fs.hang(where)
            await driver.append(TASK, "api", entries("a"), fence=None)

        error = await failing_within(1.5, UnavailableError, hang, lambda: _released(driver))
        assert error.applied is False
        assert await driver.load(TASK, "api") == []
    assert not [path for path in files_below(tmp_path) if path.suffix == ".tmp"]
    assert await driver.append(TASK, "api", entries("b"), fence=None) == []
    await driver.aclose()


async def test_a_call_that_hangs_after_its_effect_is_unknown_and_was_applied(
    tmp_path: Path,
) -> None:
    driver = await _opened(tmp_path, timeout=1.5)
    tried: list[str] = []

    async def hang() -> None:
        tried.append(f"a{len(tried)}")
        driver.fs.hang("fsync_dir")
        await driver.append(TASK, "api", entries(tried[-1]), fence=None)

    await failing_within(1.5, OutcomeUnknownError, hang, lambda: _released(driver))
    assert ids_of(await driver.load(TASK, "api"))[-1] == tried[-1]
    await driver.aclose()


@pytest.mark.parametrize("where", ["identify", "fsync", "try_lock"])
async def test_a_call_cancelled_before_its_effect_ends_at_once_and_has_none(
    where: str, tmp_path: Path
) -> None:
    driver = await _opened(tmp_path)
    mine = await claim(driver, TASK)
    driver.fs.hang(where)
    call = asyncio.create_task(driver.append(TASK, "api", entries("a"), fence=mine.fence()))
    await wait_until(driver.fs.reached.is_set)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert call.cancelled()
    driver.fs.release()
    await wait_until(lambda: not driver._workers._steps)
    assert await driver.load(TASK, "api") == []
    assert not [path for path in files_below(tmp_path) if path.suffix == ".tmp"]
    assert await driver.append(TASK, "api", entries("b"), fence=mine.fence()) == []
    assert ids_of(await driver.load(TASK, "api")) == ["b"]
    await driver.aclose()


async def test_a_call_cancelled_after_its_effect_is_seen_to_its_end(tmp_path: Path) -> None:
    driver = await _opened(tmp_path)
    mine = await claim(driver, TASK)
    driver.fs.hang("fsync_dir")
    call = asyncio.create_task(driver.append(TASK, "api", entries("a"), fence=mine.fence()))
    await wait_until(driver.fs.reached.is_set)
    call.cancel()
    done, _ = await asyncio.wait([call], timeout=0.05)
    assert not done
    driver.fs.release()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not driver._workers._steps
    assert ids_of(await driver.load(TASK, "api")) == ["a"]
    await driver.aclose()


async def test_a_call_cancelled_twice_ends_at_once(tmp_path: Path) -> None:
    driver = await _opened(tmp_path)
    driver.fs.hang("fsync_dir")
    call = asyncio.create_task(driver.append(TASK, "api", entries("a"), fence=None))
    await wait_until(driver.fs.reached.is_set)
    call.cancel()
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    driver.fs.release()
    await driver.aclose()


async def test_a_deadline_of_the_caller_is_a_cancellation(tmp_path: Path) -> None:
    driver = await _opened(tmp_path)
    driver.fs.hang("fsync")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await driver.append(TASK, "api", entries("a"), fence=None)
    driver.fs.release()
    await wait_until(lambda: not driver._workers._steps)
    assert await driver.load(TASK, "api") == []
    await driver.aclose()


async def test_every_call_can_be_cancelled_at_any_moment(tmp_path: Path) -> None:
    driver = await _opened(tmp_path)
    mine = await claim(driver, TASK)
    tried: list[str] = []
    for turns in range(60):
        entry_id = f"m{turns}"
        tried.append(entry_id)
        call = asyncio.create_task(
            driver.append(TASK, "api", entries(entry_id), fence=mine.fence())
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        log = ids_of(await driver.load(TASK, "api"))
        assert [name for name in tried if name in log] == log
        if not call.cancelled():
            assert entry_id in log
    await driver.aclose()
    assert not [path for path in files_below(tmp_path) if path.suffix == ".tmp"]


async def test_many_calls_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    driver = await _opened(tmp_path)
    scopes = [Scope("task", f"t{number}") for number in range(60)]
    await asyncio.gather(
        *(driver.write(scope, "state", scope.id.encode(), fence=None) for scope in scopes)
    )
    values = await asyncio.gather(*(driver.read(scope, "state") for scope in scopes))
    assert [value.data for value in values] == [scope.id.encode() for scope in scopes]
    await asyncio.gather(
        *(driver.append(TASK, "api", entries(f"m{number}"), fence=None) for number in range(40))
    )
    assert sorted(ids_of(await driver.load(TASK, "api"))) == sorted(f"m{n}" for n in range(40))
    await driver.aclose()


async def test_two_drivers_on_one_path_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    drivers = [await _opened(tmp_path) for _ in range(4)]
    await asyncio.gather(
        *(
            driver.append(TASK, "api", entries(f"{number}.{place}"), fence=None)
            for number, driver in enumerate(drivers)
            for place in range(20)
        )
    )
    log = ids_of(await drivers[0].load(TASK, "api"))
    assert len(log) == len(set(log)) == 80
    for driver in drivers:
        await driver.aclose()


async def test_closing_waits_for_what_runs_and_refuses_what_comes(tmp_path: Path) -> None:
    driver = await _opened(tmp_path)
    driver.fs.hang("fsync")
    call = asyncio.create_task(driver.append(TASK, "api", entries("a"), fence=None))
    await wait_until(driver.fs.reached.is_set)
    closing = asyncio.create_task(driver.aclose())
    await asyncio.sleep(0)
    with pytest.raises(ClosedError):
        await driver.load(TASK, "api")
    assert not closing.done()
    driver.fs.release()
    await closing
    assert await call == []
    await driver.aclose()
    with pytest.raises(ClosedError):
        await driver.ping()


async def test_closing_does_not_wait_for_ever(tmp_path: Path) -> None:
    before = set(_threads())
    driver = await _opened(tmp_path, timeout=1.0)
    driver.fs.hang("fsync")
    call = asyncio.create_task(driver.append(TASK, "api", entries("a"), fence=None))
    await wait_until(driver.fs.reached.is_set)
    async with asyncio.timeout(25):  # Before the file system lets go by itself.
        await driver.aclose()
    with pytest.raises(UnavailableError):
        await call
    await _released(driver)
    await wait_until(lambda: set(_threads()) <= before)


async def test_a_driver_that_is_forgotten_leaves_no_threads(tmp_path: Path) -> None:
    before = set(_threads())
    driver = await _opened(tmp_path)
    await driver.load(TASK, "api")
    del driver
    gc.collect()
    await wait_until(lambda: set(_threads()) <= before)


def test_a_driver_whose_loop_ended_amid_calls_is_closed_in_another(tmp_path: Path) -> None:
    driver = FileDriver(tmp_path, timeout=30)

    async def use() -> None:
        await driver.setup(create=True)
        calls = [
            asyncio.ensure_future(driver.append(TASK, "api", entries(str(number)), fence=None))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        del calls

    asyncio.run(use())
    asyncio.run(asyncio.wait_for(driver.aclose(), 20))


def test_what_was_cancelled_is_ended_though_its_loop_does_not_go_on() -> None:
    """Else Python warns of a coroutine that was never awaited, whenever it finds it."""
    workers = Workers(10.0, "outlast-file")
    reached, released = threading.Event(), threading.Event()
    operations: list[Coroutine[Any, Any, None]] = []

    async def hang() -> None:
        reached.set()
        assert released.wait(30)

    def start(ticket: Ticket) -> Coroutine[Any, Any, None]:
        operations.append(hang())
        return operations[-1]

    async def begin() -> None:
        calls = [asyncio.ensure_future(workers.run(start)) for _ in range(20)]
        await wait_until(reached.is_set)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    released.set()
    asyncio.run(wait_until(lambda: {*map(getcoroutinestate, operations)} == {CORO_CLOSED}))
    loop.close()
    asyncio.run(workers.aclose())


def test_a_driver_works_in_a_second_loop(tmp_path: Path) -> None:
    driver = HangingDriver(tmp_path)

    async def use(entry_id: str) -> list[str]:
        await driver.setup(create=True)
        await driver.append(TASK, "api", entries(entry_id), fence=None)
        return ids_of(await driver.load(TASK, "api"))

    assert asyncio.run(use("a")) == ["a"]
    assert asyncio.run(use("b")) == ["a", "b"]
    asyncio.run(driver.aclose())
