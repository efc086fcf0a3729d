"""Opening, closing, event loops and forks: what becomes of calls that are under way."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from faulty_driver import TIMEOUT, FaultyDriver, ids, message, pass_time
from runtime_kit import now, run_virtually

from outlast import DriverBackend
from outlast.backends.memory import MemoryDriver
from outlast.driver import Scope
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    NotSupportedError,
    OutlastError,
    UnavailableError,
)


@pytest_asyncio.fixture
async def driver() -> FaultyDriver:
    return FaultyDriver()


@pytest_asyncio.fixture
async def backend(driver: FaultyDriver) -> AsyncIterator[DriverBackend]:
    async with DriverBackend(driver, timeout=TIMEOUT) as opened:
        yield opened
        driver.release.set()


async def test_closing_waits_for_what_was_sent_and_lets_nothing_more_through(
    driver: FaultyDriver,
) -> None:
    backend = DriverBackend(driver)
    with pytest.raises(ClosedError, match="not open yet"):
        await backend.ping()
    await backend.open()
    await backend.open()
    driver.faults = ["hold"]
    write = asyncio.ensure_future(backend.persistence.append_api_message("t", message("a")))
    await driver.holding.wait()
    write.cancel()
    closing = asyncio.ensure_future(backend.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    for call in (backend.ping, lambda: backend.persistence.load_task_state("t")):
        with pytest.raises(ClosedError):
            await call()
    driver.release.set()
    await closing
    await backend.aclose()
    assert [entry.id for entry in await driver.load(Scope("task", "t"), "api")] == ["a"]
    with pytest.raises(ClosedError):
        await backend.open()


async def test_what_a_driver_cannot_release_is_told_as_an_error_of_outlast(
    driver: FaultyDriver,
) -> None:
    begun = asyncio.Event()

    async def broken() -> None:
        begun.set()
        raise RuntimeError("password=hunter2")

    async def hanging() -> None:
        begun.set()
        await asyncio.Event().wait()

    for release, cause in ((broken, RuntimeError), (hanging, TimeoutError)):
        backend = DriverBackend(FaultyDriver(), timeout=TIMEOUT)
        await backend.open()
        backend.driver.aclose = release  # type: ignore[method-assign]
        closing = asyncio.ensure_future(backend.aclose())
        while not begun.is_set():
            await asyncio.sleep(0)
        begun.clear()
        pass_time(2 * TIMEOUT)
        with pytest.raises(UnavailableError, match=cause.__name__) as caught:
            await closing
        assert isinstance(caught.value.__cause__, cause)
        assert (caught.value.operation, "hunter2" in str(caught.value)) == ("aclose", False)
        await backend.aclose()


def test_a_backend_whose_loop_has_ended_can_be_closed_in_another(driver: FaultyDriver) -> None:
    backend = DriverBackend(driver)

    async def first() -> None:
        await backend.open()
        driver.faults = ["hold"]
        abandoned = asyncio.ensure_future(backend.persistence.append_api_message("t", message("a")))
        await driver.holding.wait()
        del abandoned

    asyncio.run(first())
    asyncio.run(asyncio.wait_for(backend.aclose(), 20))


async def test_a_backend_is_not_closed_elsewhere_while_calls_are_under_way(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    driver.faults = ["hold"]
    write = asyncio.ensure_future(backend.persistence.append_api_message("t", message("a")))
    await driver.holding.wait()

    async def elsewhere() -> None:
        with pytest.raises(NotSupportedError, match="under way in another event loop"):
            await backend.aclose()

    await asyncio.to_thread(asyncio.run, elsewhere())
    driver.release.set()
    await write
    assert await ids(backend) == ["a"]


async def test_nothing_is_left_behind(driver: FaultyDriver, backend: DriverBackend) -> None:
    before = asyncio.all_tasks()
    claim = await backend.persistence.claim_task("t")
    for number in range(5):
        await backend.persistence.append_api_message("t", message(str(number)), claim=claim)
    driver.faults = ["refuse"] * 5
    with pytest.raises(OutlastError):
        await backend.persistence.append_api_message("t", message("x"), claim=claim)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert not backend._calls._turns
    gc.collect()


async def test_another_loop_gets_a_clear_error(backend: DriverBackend) -> None:
    claim = await backend.persistence.claim_task("t")
    await backend.persistence.append_api_message("t", message("a"), claim=claim)

    async def elsewhere() -> None:
        with pytest.raises(NotSupportedError, match="another event loop"):
            await backend.persistence.load_task_state("t")
        async with DriverBackend(MemoryDriver()) as other:
            with pytest.raises(NotSupportedError, match="claim belongs to another event loop"):
                await other.persistence.append_api_message("t", message("b"), claim=claim)

    await asyncio.to_thread(asyncio.run, elsewhere())


async def test_a_backend_is_not_opened_again_in_another_loop(backend: DriverBackend) -> None:
    """Its end there would close it for its owner."""

    async def elsewhere() -> None:
        with pytest.raises(NotSupportedError, match="another event loop"):
            async with backend:
                pass

    await asyncio.to_thread(asyncio.run, elsewhere())
    await backend.open()
    await backend.ping()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_forked_child_gets_a_clear_error() -> None:
    async def parent() -> None:
        async with DriverBackend(MemoryDriver()) as backend:
            load = backend.persistence.load_task_state("t")
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    load.send(None)
                except NotSupportedError as error:
                    status = 0 if "forked" in str(error) else 2
                finally:
                    os._exit(status)
            load.close()
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222

    asyncio.run(parent())


async def test_closing_waits_for_calls_of_many_steps(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    for number in range(450):
        await backend.persistence.claim_task(f"t{number}")
    sweeping = asyncio.ensure_future(backend.sweep(older_than=timedelta(0)))
    listing = asyncio.ensure_future(backend.persistence.list_task_states())
    deleting = asyncio.ensure_future(backend.checkpoints.delete_thread("t", force=True))
    await asyncio.sleep(0)
    await backend.aclose()
    assert (await sweeping).tombstones == 450
    assert (await listing, await deleting) == ([], 0)
    with pytest.raises(ClosedError):
        await backend.sweep(older_than=timedelta(0))


async def test_why_opening_failed_is_not_hidden_by_what_closing_adds() -> None:
    """A driver that can neither be set up nor closed is reported for the first of these."""

    class Unusable(MemoryDriver):
        async def setup(self, *, create: bool) -> None:
            raise ConfigurationError("the reason")

        async def aclose(self) -> None:
            raise UnavailableError("something else")

    backend = DriverBackend(Unusable(namespace="default"))
    with pytest.raises(ConfigurationError, match="the reason"):
        await backend.open()
    with pytest.raises(ClosedError):
        await backend.ping()


class Unanswered(MemoryDriver):
    """Its store does not answer while it is set up, or answers `error`; neither in closing."""

    def __init__(self, error: OutlastError | None = None) -> None:
        super().__init__(namespace="default")
        self.error = error
        self.asked = self.released = 0
        self.silence = asyncio.Event()

    async def setup(self, *, create: bool) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        await self.silence.wait()

    async def aclose(self) -> None:
        await self.silence.wait()
        self.released += 1


async def _all_but_this() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_all_who_wait_for_an_opening_are_told_why_it_failed() -> None:
    driver = Unanswered(ConfigurationError("the reason"))
    driver.silence.set()
    backend = DriverBackend(driver)
    opened = await asyncio.gather(*(backend.open() for _ in range(3)), return_exceptions=True)
    assert [str(error).rpartition(": ")[2] for error in opened] == ["the reason"] * 3
    assert (driver.asked, driver.released) == (1, 1)
    with pytest.raises(ClosedError, match="make a new one"):
        await backend.open()


async def test_a_cancelled_opening_ends_at_once_and_closing_waits_for_what_it_left() -> None:
    """X1, C7: whatever a driver does with a store that says nothing."""
    driver = Unanswered()
    backend = DriverBackend(driver, timeout=1000)
    opening = asyncio.ensure_future(backend.open())
    while not driver.asked:
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening], timeout=30)
    assert opening.cancelled()
    for call in (backend.open, backend.ping):
        with pytest.raises(ClosedError):
            await call()
    closing = asyncio.ensure_future(backend.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    driver.silence.set()
    await closing
    assert driver.released == 1
    assert not await _all_but_this()


async def test_an_opening_goes_on_while_somebody_waits_for_it() -> None:
    driver = Unanswered()
    backend = DriverBackend(driver, timeout=1000)
    first, second = (asyncio.ensure_future(backend.open()) for _ in range(2))
    while not driver.asked:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    driver.silence.set()
    await second
    assert first.cancelled()
    await backend.ping()
    await backend.aclose()
    assert (driver.asked, driver.released) == (1, 1)
    assert not await _all_but_this()


async def test_an_opening_that_is_cancelled_when_it_is_done_is_not_left_open() -> None:
    """Nobody would know that it is open."""
    driver = Unanswered()
    backend = DriverBackend(driver, timeout=1000)
    opening = asyncio.ensure_future(backend.open())
    while not driver.asked:
        await asyncio.sleep(0)
    driver.silence.set()
    while not (set_up := backend._opening) or not set_up.done():
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert driver.released == 1
    assert not await _all_but_this()


def test_opening_and_the_release_after_it_failed_have_the_time_of_one_call() -> None:
    """E6: the time for both is that of one call."""

    async def main() -> None:
        driver = Unanswered()
        backend = DriverBackend(driver, timeout=0.2)
        began = now()
        with pytest.raises(UnavailableError, match="no answer within"):
            await backend.open()
        assert now() - began == pytest.approx(0.2)
        driver.silence.set()
        await backend.aclose()
        assert driver.released == 1

    run_virtually(main())


async def test_an_opening_in_another_loop_is_not_waited_for() -> None:
    driver = Unanswered()
    backend = DriverBackend(driver, timeout=1000)
    opening = asyncio.ensure_future(backend.open())
    while not driver.asked:
        await asyncio.sleep(0)

    async def elsewhere() -> None:
        with pytest.raises(NotSupportedError, match="being opened in another event loop"):
            await backend.open()

    await asyncio.to_thread(asyncio.run, elsewhere())
    driver.silence.set()
    await opening
    await backend.aclose()
