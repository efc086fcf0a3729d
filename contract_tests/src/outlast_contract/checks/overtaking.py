"""A claim and a write of the owner before it, met at every turn of the event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from outlast.errors import OutlastError
from outlast_contract.engine import Context, check_each
from outlast_contract.expect import error_of, expect, expect_equal, fenced
from outlast_contract.mutations import (
    MUTATIONS,
    TASK_MUTATIONS,
    Image,
    Mutation,
    claim,
    expect_image,
    fill,
    image,
)

_OFFSETS = (*range(-16, 17), -60, -40, -28, -20, 20, 28, 40, 60, 90, 140, 220)
"""By how many turns of the loop the claim begins later than the write (negative: earlier)."""


@check_each(MUTATIONS, "F2", "F5", "F11", "F3", tier="race")
async def a_claim_overtakes_a_write(context: Context, mutation: Mutation) -> None:
    """However a claim and a write of the owner before it meet, the write is in what the claim
    returns, or it is refused; it never comes afterwards.
    """
    old, new = await context.open_many(2)
    scope = mutation.scope(context.new_id(mutation.kind))
    newer = await claim(old, scope)
    for offset in _OFFSETS:
        owner = newer
        before = await fill(old, scope, f"base {offset}", owner)
        call = partial(mutation.apply, old, scope.id, f"w {offset}", owner)
        write = asyncio.ensure_future(_after(-offset, call))
        for _ in range(offset):
            await asyncio.sleep(0)
        newer = await claim(new, scope)
        returned = newer.checkpoint
        seen = await image(new, scope)
        error = await write
        what = f"{mutation.name}, overtaken by a claim {offset} turns later"
        final = await image(old, scope)
        if error is None:
            after = mutation.model(before, scope.id, f"w {offset}")
            expect_equal(final, after, f"data after {what}, which was done", clause="F2")
        else:
            expect(getattr(error, "reason", "") == "superseded", f"{what} ended with {error!r}")
            expect_equal(final, before, f"data after {what}, which was refused", clause="F2")
        if mutation.kind == "run":
            text = returned and returned.text
            wanted = final.checkpoint and final.checkpoint.text
            expect_equal(
                text, wanted, f"what the claim returned, and what is left: {what}", clause="F5"
            )
        clause = "F11" if mutation.kind == "task" else "F2"
        expect_equal(
            final, seen, f"what a read behind the claim saw, and later: {what}", clause=clause
        )


async def _after(turns: int, call: Callable[[], Awaitable[object]]) -> OutlastError | None:
    for _ in range(turns):
        await asyncio.sleep(0)
    return await error_of(call())


@check_each({mutation.name: mutation for mutation in TASK_MUTATIONS}, "F11", "F2", "F12")
async def a_claim_guards_the_whole_task(context: Context, mutation: Mutation) -> None:
    """When claim_task has returned, the older claim changes no part of the task, whether it has
    any part yet or not.
    """
    old, new = await context.open_many(2)
    for is_filled in (False, True):
        scope = mutation.scope(context.new_id("task"))
        stale = await claim(old, scope)
        before = await fill(old, scope, "base", stale) if is_filled else Image()
        owner = await claim(new, scope)
        having = "with" if is_filled else "without"
        what = f"{mutation.name} of the claim before, of a task {having} data"
        error = await error_of(mutation.apply(old, scope.id, "late", stale))
        await expect_image(new, scope, before, f"the task after {what}")
        expect(error is not None, f"{what} returned normally")
        written = await fill(new, scope, "next", owner)
        await fenced(mutation.apply(old, scope.id, "late", stale), "superseded", what)
        await expect_image(new, scope, written, f"the task after {what}, again")
