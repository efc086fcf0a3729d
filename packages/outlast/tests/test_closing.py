"""Opening, closing, event loops and forks: what becomes of calls that are under way."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from faulty_driver import TIMEOUT, FaultyDriver, ids, message

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
    async def broken() -> None:
        raise RuntimeError("password=hunter2")

    async def hanging() -> None:
        await asyncio.Event().wait()

    for release, cause in ((broken, RuntimeError), (hanging, TimeoutError)):
        backend = DriverBackend(FaultyDriver(), timeout=0.1)
        await backend.open()
        backend.driver.aclose = release  # type: ignore[method-assign]
        with pytest.raises(UnavailableError, match=cause.__name__) as caught:
            await backend.aclose()
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
    asyncio.run(asyncio.wait_for(backend.aclose(), 5))


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
