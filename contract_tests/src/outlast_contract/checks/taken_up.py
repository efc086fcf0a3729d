"""Claims taken up by their claim_id after other scopes were swept (F10, F9, F1)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import TypeVar

import outlast
from outlast.driver import Scope
from outlast.errors import FencedError
from outlast_contract.checks.sweeping import spread
from outlast_contract.engine import Context, check
from outlast_contract.expect import NotRun, Violation, error_of, expect, expect_equal
from outlast_contract.mutations import MUTATIONS, claim

ResultT = TypeVar("ResultT")

_WAITS = (1.0, 5.0)
"""Seconds between the scopes that are swept and those that are not; the next one is tried where the
store was too slow for the one before.
"""

_SWEPT = 48
_HELD = 32
"""Scopes: a store may keep a floor for each of some hundred buckets, and some must meet in one."""


async def _all(calls: Iterable[Callable[[], Awaitable[ResultT]]]) -> list[ResultT]:
    limit = asyncio.Semaphore(16)

    async def run(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        async with limit:
            return await call()

    return await asyncio.gather(*(run(call) for call in calls))


async def _claim(client: outlast.Backend, scope: Scope, at_least: int | None) -> outlast.Claim:
    try:
        return await claim(client, scope, at_least=at_least)
    except FencedError as error:
        text = f"{scope.id!r} was refused at_least={at_least}, above its epoch: {error!r}"
        raise Violation(text, "F9") from error


@check("F10", "F9", "F1", "C5")
async def a_claim_is_the_same_after_others_were_swept(context: Context) -> None:
    """Scopes are claimed, with at_least and without; before anything is written, others are swept
    whose epochs were higher. The same claims, repeated, keep their epochs, and who held them writes
    on; the next number of an outside issuer is accepted.
    """
    client, other = await context.open_many(2)
    for number, wait in enumerate(_WAITS):
        owners = await _sweep_others(client, other, f"round {number}", wait)
        if owners is None:
            continue
        await _take_up(client, other, owners)
        await _take_up_at_once(client, other, f"round {number}")
        return
    raise NotRun("the store is too slow: all records were too old before the sweep was done")


async def _sweep_others(
    client: outlast.Backend, other: outlast.Backend, label: str, wait: float
) -> list[outlast.Claim] | None:
    """Claims of scopes that were not written yet, when others were swept; ``None``: too slow."""
    loop = asyncio.get_running_loop()

    gone = spread(f"others {label}", _SWEPT)
    await _all([partial(_claim, client, scope, 1000) for scope in gone])
    made = loop.time()
    await asyncio.sleep(wait)
    started = loop.time()
    held = spread(f"held {label}", _HELD)
    numbers = [None if number // 2 % 3 else number + 1 for number in range(_HELD)]
    claims = zip(held, numbers, strict=True)
    owners = await _all([partial(_claim, client, scope, at_least) for scope, at_least in claims])
    now = loop.time()
    retention = ((now - started) + (now - made)) / 2
    report = await other.sweep(older_than=timedelta(seconds=retention))
    if report.tombstones < _SWEPT or loop.time() - started >= retention:
        return None
    return owners


async def _take_up(
    client: outlast.Backend, other: outlast.Backend, owners: list[outlast.Claim]
) -> None:
    async def take_up(owner: outlast.Claim) -> None:
        error = await error_of(client.persistence.check_claim(owner))
        text = f"{owner.scope.id!r}, claimed within the retention time: {error!r} after the sweep"
        expect(error is None, text, clause="C5")
        what = f"epoch of {owner.scope.id!r}, claimed again after others were swept"
        for through in (other, client):
            again = await claim(through, owner.scope, claim_id=owner.claim_id)
            expect_equal(again.epoch, owner.epoch, what, clause="F10")
        again = await claim(
            other, owner.scope, claim_id=owner.claim_id, at_least=owner.epoch + 2000
        )
        expect_equal(again.epoch, owner.epoch, f"{what}, with at_least", clause="F10")
        error = await error_of(client.persistence.check_claim(owner))
        expect(error is None, f"check_claim of a claim that was taken up: {error!r}", clause="F10")
        name = "put" if owner.scope.kind == "run" else "save_task_state"
        await MUTATIONS[name].apply(client, owner.scope.id, "m", owner)
        again = await claim(other, owner.scope, claim_id=owner.claim_id)
        expect_equal(again.epoch, owner.epoch, f"{what} and written", clause="F10")

    await _all([partial(take_up, owner) for owner in owners])


async def _take_up_at_once(client: outlast.Backend, other: outlast.Backend, label: str) -> None:
    """With numbers from outside, which no sweep has to do with (F9)."""

    async def attempt(scope: Scope) -> None:
        for number in (1, 2, 3):
            what = f"{scope.id!r}, attempt {number}, below what was swept"
            owner = await _claim(client, scope, number)
            expect_equal(owner.epoch, number, f"epoch of {what}", clause="F9")
            again = await claim(other, scope, claim_id=owner.claim_id)
            expect_equal(again.epoch, number, f"epoch of {what}, taken up", clause="F10")

    scopes = spread(f"later {label}", _HELD)
    await _all([partial(attempt, scope) for scope in scopes])
