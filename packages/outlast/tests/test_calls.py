"""How calls reach a driver: order, deadlines, retries, outcomes, cancellation, closing."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from outlast import ApiMessage, DriverBackend, TaskState
from outlast.backends.memory import MemoryDriver
from outlast.contracts import Claim
from outlast.driver import Entry, Fence, Index, PreconditionFailedError, Scope, Value
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    FencedError,
    InvalidDataError,
    NotSupportedError,
    OutcomeUnknownError,
    OutlastError,
    StaleWriteError,
    TaskNotFoundError,
    UnavailableError,
)

TIMEOUT = 10.0


def pass_time(seconds: float) -> None:
    """Move the running loop's clock forward: no test depends on how fast a machine is."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


class FaultyDriver(MemoryDriver):
    """The memory driver with faults before or after its step, used up in order.

    ``lose``: apply, then lose the reply; ``drop``: lose the request; ``refuse``: do not apply;
    ``hold``: apply once `release` is set; ``break``: an error of the driver's own; ``busy``: do
    not apply, and take most of the time to find out.
    """

    def __init__(self) -> None:
        super().__init__(namespace="default")
        self.faults: list[str] = []
        self.calls: list[tuple[str, Fence | None]] = []
        self.release = asyncio.Event()
        self.holding = asyncio.Event()

    async def _step(
        self, name: str, fence: Fence | None, apply: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        self.calls.append((name, fence))
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refuse":
            raise UnavailableError("refused")
        if fault == "drop":
            raise OutcomeUnknownError("no reply")
        if fault == "break":
            raise RuntimeError("password=hunter2")
        if fault == "busy":
            pass_time(0.8 * TIMEOUT)  # As long as a driver may wait for a lock.
            raise UnavailableError("locked by another")
        if fault == "hold":
            self.holding.set()
            await self.release.wait()
        answer = await apply()
        if fault == "lose":
            raise OutcomeUnknownError("no reply")
        return answer

    async def write(
        self,
        scope: Scope,
        register: str,
        data: bytes | None,
        *,
        fence: Fence | None,
        index: Index | None = None,
        if_version: int | None = None,
    ) -> int:
        step = super().write
        answer: int = await self._step(
            "write",
            fence,
            lambda: step(scope, register, data, fence=fence, index=index, if_version=if_version),
        )
        return answer

    async def append(
        self, scope: Scope, log: str, entries: Any, *, fence: Fence | None, present: Any = ()
    ) -> list[Entry]:
        step = super().append
        answer: list[Entry] = await self._step(
            "append", fence, lambda: step(scope, log, entries, fence=fence, present=present)
        )
        return answer

    async def claim(
        self, scope: Scope, claim_id: str, *, at_least: int | None = None, parent: str | None = None
    ) -> Value:
        step = super().claim
        answer: Value = await self._step(
            "claim", None, lambda: step(scope, claim_id, at_least=at_least, parent=parent)
        )
        return answer

    async def read(self, scope: Scope, register: str) -> Value:
        step = super().read
        answer: Value = await self._step("read", None, lambda: step(scope, register))
        return answer


@pytest_asyncio.fixture
async def driver() -> FaultyDriver:
    return FaultyDriver()


@pytest_asyncio.fixture
async def backend(driver: FaultyDriver) -> AsyncIterator[DriverBackend]:
    async with DriverBackend(driver, timeout=TIMEOUT) as opened:
        yield opened
        driver.release.set()


def message(name: str, text: str = "") -> ApiMessage:
    return ApiMessage(name, "user", text)


async def ids(backend: DriverBackend) -> list[str]:
    return [stored.id for stored in await backend.persistence.load_api_messages("t")]


@pytest.mark.parametrize("fault", ["lose", "drop", "refuse"])
@pytest.mark.parametrize("times", [1, 4])
async def test_a_claimed_write_is_repeated_with_the_same_fence_and_has_one_effect(
    driver: FaultyDriver, backend: DriverBackend, fault: str, times: int
) -> None:
    claim = await backend.persistence.claim_task("t")
    driver.calls.clear()
    driver.faults = [fault] * times
    await backend.persistence.append_api_message("t", message("a"), claim=claim)
    assert await ids(backend) == ["a"]
    fences = {fence for name, fence in driver.calls if name == "append"}
    assert len(fences) == 1
    assert len(driver.calls) == times + 1


async def test_a_write_that_nothing_answers_is_unknown_and_can_be_repeated(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    claim = await backend.persistence.claim_task("t")
    driver.faults = ["lose"] * 5
    with pytest.raises(OutcomeUnknownError) as caught:
        await backend.persistence.append_api_message("t", message("a"), claim=claim)
    assert caught.value.applied is None
    driver.faults.clear()
    await backend.persistence.append_api_message("t", message("a"), claim=claim)
    assert await ids(backend) == ["a"]


async def test_what_follows_an_unanswered_attempt_is_never_certain(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    """A refusal after a lost reply does not claim that nothing was applied."""
    claim = await backend.persistence.claim_task("t")
    driver.faults = ["lose", *["refuse"] * 4]
    with pytest.raises(OutcomeUnknownError):
        await backend.persistence.save_task_state("t", TaskState("t"), claim=claim)
    other = Scope("task", "t")
    driver.faults = ["drop", "hold"]
    write = asyncio.ensure_future(
        backend.persistence.save_task_state("t", TaskState("t"), claim=claim)
    )
    await driver.holding.wait()
    await MemoryDriver.claim(driver, other, "b" * 32)
    driver.release.set()
    with pytest.raises(FencedError) as caught:
        await write
    assert (caught.value.reason, caught.value.applied) == ("superseded", None)


async def test_an_unclaimed_save_is_not_repeated_after_an_unanswered_attempt(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    driver.faults = ["drop"]
    with pytest.raises(OutcomeUnknownError):
        await backend.persistence.save_task_state("t", TaskState("t"))
    assert [name for name, _ in driver.calls] == ["write"]
    driver.faults = ["refuse"]
    await backend.persistence.save_task_state("t", TaskState("t"))
    assert await backend.persistence.load_task_state("t")


async def test_an_unclaimed_append_is_repeated_and_has_one_effect(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    driver.faults = ["lose"]
    await backend.persistence.append_api_messages("t", [message("a"), message("b")])
    assert await ids(backend) == ["a", "b"]


@pytest.mark.parametrize("fault", ["lose", "drop", "refuse"])
async def test_a_claim_is_repeated_and_taken_once(
    driver: FaultyDriver, backend: DriverBackend, fault: str
) -> None:
    driver.faults = [fault]
    assert (await backend.persistence.claim_task("t")).epoch == 1


async def test_a_foreign_error_is_wrapped_and_its_text_not_shown(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    driver.faults = ["break"]
    with pytest.raises(OutcomeUnknownError) as caught:
        await backend.persistence.save_task_state("t", TaskState("t"))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "hunter2" not in str(caught.value)
    driver.faults = ["break"]
    with pytest.raises(UnavailableError):
        await backend.persistence.load_task_state("t")


async def test_every_call_ends_within_its_timeout(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    claim = await backend.persistence.claim_task("t")
    driver.faults = ["hold"] * 2
    write = asyncio.ensure_future(
        backend.persistence.save_task_state("t", TaskState("t"), claim=claim)
    )
    read = asyncio.ensure_future(backend.persistence.load_task_state("t"))
    while len(driver.calls) < 3:
        await asyncio.sleep(0)
    pass_time(TIMEOUT)
    with pytest.raises(OutcomeUnknownError, match="no answer within 10 s"):
        await write
    with pytest.raises(UnavailableError, match="no answer within 10 s") as caught:
        await read
    assert caught.value.applied is False


@pytest.mark.parametrize("is_read", [False, True], ids=["write", "read"])
async def test_a_busy_store_is_not_asked_again_when_there_is_no_time_for_an_answer(
    driver: FaultyDriver, backend: DriverBackend, is_read: bool
) -> None:
    claim = await backend.persistence.claim_task("t")
    driver.faults = ["busy"] * 5
    driver.calls.clear()
    calls: dict[bool, Callable[[], Coroutine[Any, Any, object]]] = {
        False: lambda: backend.persistence.save_task_state("t", TaskState("t"), claim=claim),
        True: lambda: backend.persistence.load_task_state("t"),
    }
    with pytest.raises(UnavailableError, match="locked by another") as caught:
        await calls[is_read]()
    assert caught.value.applied is False
    assert len(driver.calls) == 1


async def test_mutations_of_a_scope_are_sent_one_at_a_time_in_the_order_called(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    driver.faults = ["hold"]
    writes = [
        asyncio.ensure_future(backend.persistence.append_api_message("t", message(str(number))))
        for number in range(20)
    ]
    await driver.holding.wait()
    assert len(driver.calls) == 1
    driver.release.set()
    await asyncio.gather(*writes)
    assert await ids(backend) == [str(number) for number in range(20)]


async def test_one_claim_is_one_queue_through_every_backend_object(driver: FaultyDriver) -> None:
    async with DriverBackend(driver) as one, DriverBackend(driver) as other:
        claim = await one.persistence.claim_task("t")
        driver.faults = ["hold"]
        driver.calls.clear()
        first = asyncio.ensure_future(
            one.persistence.append_api_message("t", message("1"), claim=claim)
        )
        await driver.holding.wait()
        second = asyncio.ensure_future(
            other.persistence.append_api_message("t", message("2"), claim=claim)
        )
        await asyncio.sleep(0)
        assert len(driver.calls) == 1
        driver.release.set()
        await asyncio.gather(first, second)
        assert await ids(one) == ["1", "2"]


async def test_other_scopes_do_not_wait(driver: FaultyDriver, backend: DriverBackend) -> None:
    driver.faults = ["hold"]
    held = asyncio.ensure_future(backend.persistence.append_api_message("t", message("a")))
    await driver.holding.wait()
    await backend.persistence.append_api_message("other", message("a"))
    driver.release.set()
    await held


async def test_a_cancelled_write_that_was_sent_is_seen_to_its_end_before_the_next(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    driver.faults = ["hold"]
    write = asyncio.ensure_future(
        backend.persistence.save_task_state("t", TaskState("t", retry_count=1))
    )
    await driver.holding.wait()
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    following = asyncio.ensure_future(
        backend.persistence.save_task_state("t", TaskState("t", retry_count=2))
    )
    await asyncio.sleep(0)
    driver.release.set()
    await following
    state = await backend.persistence.load_task_state("t")
    assert state is not None
    assert state.retry_count == 2


async def test_a_cancelled_write_that_still_waits_is_never_sent_and_keeps_the_order(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    driver.faults = ["hold"]
    writes = [
        asyncio.ensure_future(backend.persistence.append_api_message("t", message(name)))
        for name in "abc"
    ]
    await driver.holding.wait()
    writes[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await writes[1]
    assert len(driver.calls) == 1
    driver.release.set()
    await asyncio.gather(writes[0], writes[2])
    assert await ids(backend) == ["a", "c"]


async def test_a_mutation_that_could_not_be_sent_in_time_is_certainly_not_applied(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    driver.faults = ["hold"]
    first = asyncio.ensure_future(backend.persistence.append_api_message("t", message("a")))
    await driver.holding.wait()
    second = asyncio.ensure_future(backend.persistence.append_api_message("t", message("b")))
    await asyncio.sleep(0)
    pass_time(TIMEOUT)
    with pytest.raises(OutcomeUnknownError):
        await first
    with suppress(UnavailableError):
        await second
    assert "a" not in await ids(backend)


async def test_an_update_that_others_always_outrun_does_not_blame_earlier_calls(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    await backend.persistence.save_task_state("t", TaskState("t"))

    async def outrun(*_: object, **__: object) -> int:
        pass_time(TIMEOUT / 8)
        raise PreconditionFailedError("the version is another one")

    driver.write = outrun  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="no answer within") as caught:
        await backend.persistence.update_task_state("t", {"retry_count": 1})
    assert caught.value.applied is False


@pytest.mark.parametrize("step", range(6))
async def test_a_write_cancelled_at_any_await_is_all_or_nothing_and_the_next_works(
    backend: DriverBackend, step: int
) -> None:
    claim = await backend.persistence.claim_task("t")
    write = asyncio.ensure_future(
        backend.persistence.append_api_messages("t", [message("a"), message("b")], claim=claim)
    )
    for _ in range(step):
        await asyncio.sleep(0)
    write.cancel()
    with suppress(asyncio.CancelledError):
        await write
    await backend.persistence.append_api_message("t", message("c"), claim=claim)
    assert await ids(backend) in (["a", "b", "c"], ["c"])


async def test_what_is_changed_while_a_call_waits_is_neither_stored_nor_compared(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    tasks = backend.persistence
    await tasks.save_task_state("t", TaskState(id="t"))
    await tasks.append_api_message("t", ApiMessage(id="m", role="user", content=["said"]))
    given: dict[str, Any] = {"kept": [1]}
    said: list[Any] = ["said"]
    driver.faults = ["hold"]
    calls = [
        asyncio.ensure_future(call)
        for call in (
            tasks.append_user_messages("t", []),
            tasks.update_task_state("t", {"context": given}),
            tasks.append_api_message("t", ApiMessage(id="m", role="user", content=said)),
        )
    ]
    await driver.holding.wait()
    given["kept"].append(float("nan"))  # What could not have been given in the first place, too.
    given["late"] = {1}
    said.append("changed")
    driver.release.set()
    await asyncio.gather(*calls)
    state = await tasks.load_task_state("t")
    assert state is not None
    assert state.context == {"kept": [1]}
    assert [message.content for message in await tasks.load_api_messages("t")] == [["said"]]


async def test_of_two_holders_of_a_claim_one_is_told(backend: DriverBackend) -> None:
    one = await backend.persistence.claim_task("t")
    other = await backend.persistence.claim_task("t", claim_id=one.claim_id)
    assert one == other
    await backend.persistence.append_api_message("t", message("a"), claim=one)
    with pytest.raises(StaleWriteError):
        await backend.persistence.append_api_message("t", message("b"), claim=other)


async def test_an_update_of_what_is_not_there_says_first_who_owns_it(
    backend: DriverBackend,
) -> None:
    update = backend.persistence.update_task_state
    with pytest.raises(TaskNotFoundError):
        await update("t", {"retry_count": 1})
    old = await backend.persistence.claim_task("t")
    with pytest.raises(FencedError, match="claimed"):
        await update("t", {"retry_count": 1})
    with pytest.raises(TaskNotFoundError):
        await update("t", {"retry_count": 1}, claim=old)
    await backend.persistence.claim_task("t")
    with pytest.raises(FencedError, match="superseded"):
        await update("t", {"retry_count": 1}, claim=old)


async def test_a_lost_fence_is_logged_at_error_level(
    backend: DriverBackend, caplog: pytest.LogCaptureFixture
) -> None:
    claim = await backend.persistence.claim_task("t")
    forged = Claim(claim.scope, claim.epoch + 5, claim.claim_id)
    with pytest.raises(FencedError, match="lost"):
        await backend.persistence.append_api_message("t", message("a"), claim=forged)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


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


async def test_a_flag_that_is_no_bool_is_refused_before_anything_is_sent(
    driver: FaultyDriver, backend: DriverBackend
) -> None:
    flag: Any = "false"
    driver.calls.clear()
    for call, name in (
        (backend.persistence.delete_task("t", force=flag), "force"),
        (backend.checkpoints.delete_thread("t", force=flag), "force"),
        (backend.sweep(older_than=timedelta(0), dry_run=flag), "dry_run"),
    ):
        with pytest.raises(InvalidDataError, match=f"{name} must be a bool, not str"):
            await call
    assert not driver.calls
    for options in ({"setup": flag}, {"strict": flag}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(options))} must be a bool"):
            DriverBackend(driver, **options)


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
