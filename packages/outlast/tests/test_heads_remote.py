"""The estimate of a store's clock, calls that are under way together, and calls seen through."""

import asyncio
import gc
import random
import time
from typing import Any

import pytest

from outlast.heads import Shield, StoreClock, clock, gather_some, moment


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The moment that the clock sees, in a list of one, to be changed."""
    now = [1000.0]
    monkeypatch.setattr(clock, "moment", lambda: now[0])
    return now


def test_a_clock_that_was_told_nothing_has_to_ask() -> None:
    assert StoreClock(resolution=0, max_age=60).now() is None


def test_it_has_to_ask_again_when_what_it_knows_is_old(at: list[float]) -> None:
    told = StoreClock(resolution=0, max_age=60)
    told.tell(5.0, sent=1000.0, received=1000.0)
    at[0] = 1060.0
    assert told.now() == 65.0
    at[0] = 1060.5
    assert told.now() is None


@pytest.mark.parametrize("resolution", [0.0, 0.001, 1.0])
def test_the_estimate_is_off_by_less_than_one_answer_allows(
    at: list[float], resolution: float
) -> None:
    """Whatever the round trips, it stays within what the quickest answer says, and drifts."""
    rng = random.Random(7)
    ahead = 1_700_000_000.123
    told = StoreClock(resolution=resolution, max_age=60)
    widest = float("inf")
    for _ in range(200):
        there, back = rng.uniform(0.0, 0.2), rng.uniform(0.0, 0.2)
        sent = at[0]
        seconds = sent + there + ahead
        if resolution:
            seconds -= seconds % resolution
        at[0] = sent + there + back
        told.tell(seconds, sent=sent, received=at[0])
        widest = min(widest, there + back + resolution)
        now = told.now()
        assert now is not None
        assert abs(now - (at[0] + ahead)) <= widest / 2 + 0.02
        at[0] += rng.uniform(0.0, 0.3)


def test_many_coarse_answers_tell_more_than_one(at: list[float]) -> None:
    """Whole seconds, told at different times within the second, give parts of a second."""
    told = StoreClock(resolution=1.0, max_age=60)
    for _ in range(40):
        told.tell(float(int(at[0] + 500.75)), sent=at[0], received=at[0])
        at[0] += 0.13
    now = told.now()
    assert now is not None
    assert abs(now - (at[0] + 500.75)) < 0.1


def test_a_clock_that_was_set_is_believed_at_once(at: list[float]) -> None:
    told = StoreClock(resolution=0.001, max_age=60)
    told.tell(5000.0, sent=1000.0, received=1000.0)
    told.tell(9000.0, sent=1000.0, received=1000.0)
    now = told.now()
    assert now is not None
    assert abs(now - 9000.0) < 0.01


def test_the_clock_of_this_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    told = StoreClock(resolution=0, max_age=60)
    before = moment()
    told.tell(77.0, sent=before, received=before)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    now = told.now()
    assert now is not None
    assert 77.0 <= now < 87.0


async def test_results_come_in_the_order_of_the_calls_and_so_many_at_once() -> None:
    running = most = 0

    def call(number: int) -> "asyncio.Future[int]":
        async def work() -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(1 + number % 4):
                await asyncio.sleep(0)
            running -= 1
            return number

        return asyncio.ensure_future(work())

    calls = [lambda number=number: call(number) for number in range(30)]
    assert await gather_some(calls, 4) == list(range(30))
    assert most == 4
    assert await gather_some([], 4) == []


@pytest.mark.parametrize("how", ["error", "cancelled"])
async def test_an_error_or_a_cancellation_ends_all_calls(how: str) -> None:
    ended: list[int] = []
    started = asyncio.Event()

    async def wait(number: int) -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async def fail() -> None:
        raise ValueError("no")

    calls = [lambda number=number: wait(number) for number in range(3)]
    if how == "error":
        with pytest.raises(ValueError, match="no"):
            await gather_some([*calls, fail, *calls], 4)
    else:
        task = asyncio.ensure_future(gather_some(calls, 4))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sorted(ended) == [0, 1, 2]
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancelled_caller_is_told_at_once_and_the_call_goes_on() -> None:
    shield = Shield()
    begun, go_on = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def call() -> str:
        begun.set()
        await go_on.wait()
        ended.append("call")
        return "answer"

    caller = asyncio.ensure_future(shield.run(call()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    drained = asyncio.ensure_future(shield.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    go_on.set()
    await drained
    assert ended == ["call"]
    assert await shield.run(call()) == "answer"


async def test_errors_of_calls_reach_those_who_wait() -> None:
    shield = Shield()

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await shield.run(fail())
    await shield.drain()


async def test_an_error_that_nobody_waits_for_any_more_is_not_reported_as_unhandled() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    shield, go_on = Shield(), asyncio.Event()

    async def fail() -> None:
        await go_on.wait()
        raise ValueError("no")

    caller = asyncio.ensure_future(shield.run(fail()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    go_on.set()
    await shield.drain()
    del caller
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []
