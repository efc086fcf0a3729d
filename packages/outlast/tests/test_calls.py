"""How calls reach a driver: order, deadlines, retries, outcomes, cancellation."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from faulty_driver import TIMEOUT, FaultyDriver, ids, message, pass_time

from outlast import ApiMessage, DriverBackend, TaskState
from outlast.backends.memory import MemoryDriver
from outlast.contracts import Claim
from outlast.driver import PreconditionFailedError, Scope
from outlast.errors import (
    ConfigurationError,
    FencedError,
    InvalidDataError,
    OutcomeUnknownError,
    StaleWriteError,
    TaskNotFoundError,
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
    # Others may be logged about: what the garbage collector finds of tests before.
    told = [record for record in caplog.records if record.name.startswith("outlast")]
    assert [record.levelname for record in told] == ["ERROR"]


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
