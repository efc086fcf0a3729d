"""Requests that the network delivers after their callers gave up (F2, F5, F6, F7, F10, F12)."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import outlast
from outlast.driver import Scope
from outlast.errors import FencedError, OutcomeUnknownError, OutlastError, UnavailableError
from outlast_contract.engine import Context, check_each
from outlast_contract.expect import Violation, error_of, expect, expect_equal
from outlast_contract.faults import Hold
from outlast_contract.faults.strikes import places
from outlast_contract.mutations import (
    KINDS,
    MUTATIONS,
    Image,
    Mutation,
    claim,
    expect_image,
    fill,
    image,
)

PATIENCE: Final = 1.0
"""Seconds that a call of a client may take whose requests are held."""


async def _claimed(plain: outlast.Backend, scope: Scope, owner: outlast.Claim) -> Image:
    await claim(plain, scope)
    return await image(plain, scope)


async def _written(plain: outlast.Backend, scope: Scope, owner: outlast.Claim) -> Image:
    return await fill(plain, scope, "newer", await claim(plain, scope))


async def _emptied(plain: outlast.Backend, scope: Scope, owner: outlast.Claim) -> Image:
    newer = await claim(plain, scope)
    name = "delete" if scope.kind == "run" else "delete_task"
    await MUTATIONS[name].apply(plain, scope.id, "", newer)
    return Image()


async def _swept(plain: outlast.Backend, scope: Scope, owner: outlast.Claim) -> Image:
    await _emptied(plain, scope, owner)
    await plain.sweep(older_than=timedelta(0))
    return Image()


async def _gone_on(plain: outlast.Backend, scope: Scope, owner: outlast.Claim) -> Image:
    # Every part is written anew, so whatever the held mutation writes would show.
    return await fill(plain, scope, "next", owner)


Meanwhile = Callable[[outlast.Backend, Scope, outlast.Claim], Awaitable[Image]]
"""What happens before a held request is released; returns what the scope reads as then."""

_SAME_CLAIM: Final = "later writes of the same claim"
_MEANWHILE: Final[dict[str, tuple[str, Meanwhile]]] = {
    "a newer claim": ("F5", _claimed),
    "a newer owner's writes": ("F2", _written),
    "a newer owner's deletion": ("F7", _emptied),
    "a newer owner's deletion and a sweep": ("F12", _swept),
    _SAME_CLAIM: ("F6", _gone_on),
}


_ALWAYS: Final = ("a newer owner's writes", _SAME_CLAIM)


@check_each(MUTATIONS, "F2", "F5", "F6", "F7", "F12", "E6", tier="faults", needs=["endpoints"])
async def a_late_request_changes_nothing(context: Context, mutation: Mutation) -> None:
    """A claimed mutation that the network delivers late, after a newer claim, its writes or its
    deletion, or after later writes of the same claim, changes nothing, whichever of its requests
    was held.
    """
    plain = await context.open()
    network = await context.network()
    patient = await context.open_through(network)
    hasty = await context.open_impatient(PATIENCE, network)
    loop = asyncio.get_running_loop()
    others = [name for name in _MEANWHILE if name not in _ALWAYS]
    if not context.settings.thorough:
        others = [others[list(MUTATIONS).index(mutation.name) % len(others)]]
    for name in (*_ALWAYS, *others):
        # A later write of the same claim is sent only when the held one has had its time.
        client = hasty if name == _SAME_CLAIM else patient
        for at in places(3):
            if at > 9 and not context.settings.thorough:
                break
            hold = Hold()
            shot = network.script.arm(hold, at=at)
            began = loop.time()
            await _hold(context, plain, client, mutation, name, at, hold)
            network.script.disarm()
            is_slow = loop.time() - began > 2 * PATIENCE  # the others had to wait for it
            if is_slow and not context.settings.thorough:
                return
            if not shot.hits:
                break


async def _hold(
    context: Context,
    plain: outlast.Backend,
    client: outlast.Backend,
    mutation: Mutation,
    name: str,
    at: int,
    hold: Hold,
) -> None:
    clause, meanwhile = _MEANWHILE[name]
    scope = mutation.scope(context.new_id(mutation.kind))
    owner = await claim(plain, scope)
    await fill(plain, scope, "base", owner)
    call = asyncio.ensure_future(error_of(mutation.apply(client, scope.id, "late", owner)))
    await hold.arrived_or(call)
    if not hold.has_arrived:
        await call
        return
    what = f"{mutation.name}, its request {at} held until after {name}"
    if name == _SAME_CLAIM:
        await _expect_given_up(call, what)
    try:
        seen = await meanwhile(plain, scope, owner)
    except (OutcomeUnknownError, UnavailableError) as error:
        await hold.release()
        await asyncio.wait([call], timeout=20)
        if plain.capabilities.stopped_writer_blocks:
            context.note(f"{what}: others were held up so long, as declared")
            return
        raise Violation(
            f"{what}: it kept others out ({error!r}), and the backend does not declare "
            "stopped_writer_blocks",
            "E6",
        ) from error
    await hold.release()
    await asyncio.wait([call], timeout=20)
    expect(call.done(), f"{what}, has not ended after 20 s", clause="E6")
    if name != _SAME_CLAIM:
        kinds = (FencedError, OutcomeUnknownError, UnavailableError)
        told = call.result() is None or isinstance(call.result(), kinds)
        expect(told, f"{what}, ended with {call.result()!r}", clause="F13")
    await expect_image(plain, scope, seen, f"data after {what}", clause=clause)
    newest = await claim(plain, scope)
    written = await fill(plain, scope, "newest", newest)
    await expect_image(plain, scope, written, f"data written after {what}", clause=clause)


async def _expect_given_up(call: "asyncio.Future[OutlastError | None]", what: str) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.wait([call], timeout=20)
    expect(call.done(), f"{what}, has not ended after 20 s of {PATIENCE:g} s", clause="E6")
    error = call.result()
    # A client that repeats what only reads, on another connection, is done in time.
    expected = error is None or isinstance(error, OutcomeUnknownError | UnavailableError)
    expect(expected, f"{what}, ended with {error!r}", clause="E2")
    seconds = loop.time() - began
    expect(seconds < 2 * PATIENCE + 5, f"{what}, took {seconds:.1f} s", clause="E6")


@check_each(KINDS, "F10", "F2", "F1", "F5", tier="faults", needs=["endpoints"])
async def a_late_claim_may_fence_but_not_write(context: Context, kind: str) -> None:
    """A claim that the network delivers after its caller gave up and another one claimed takes at
    most the newest epoch: the other one then is refused as superseded, and claims again; nothing
    that was written is lost.
    """
    plain = await context.open()
    network = await context.network()
    slow = await context.open_impatient(PATIENCE, network)
    for at in places(3):
        scope = Scope("task" if kind == "task" else "run", context.new_id(kind))
        base = await fill(plain, scope, "base", await claim(plain, scope))
        hold = Hold()
        shot = network.script.arm(hold, at=at)
        call = asyncio.ensure_future(error_of(claim(slow, scope)))
        await hold.arrived_or(call)
        if not shot.hits:
            await call
            return
        what = f"a claim of a {kind}, its request {at} held until after another one's writes"
        await _expect_given_up(call, what)
        network.script.disarm()
        other = await claim(plain, scope)
        expect_equal(await image(plain, scope), base, f"data before {what}", clause="F3")
        written = await fill(plain, scope, "other", other)
        await hold.release()
        await expect_image(plain, scope, written, f"data after {what}", clause="F3")
        name = "put" if kind == "run" else "save_task_state"
        error = await error_of(MUTATIONS[name].apply(plain, scope.id, "again", other))
        if error is None:
            written = MUTATIONS[name].model(written, scope.id, "again")
        else:
            reason = getattr(error, "reason", "")
            expect(reason == "superseded", f"the owner after {what}, got {error!r}", clause="F13")
        await expect_image(plain, scope, written, f"data after {what}", clause="F2")
        newest = await claim(plain, scope)
        expect(newest.epoch > other.epoch, f"epoch {newest.epoch} came after {what}", clause="F1")
        await expect_image(plain, scope, written, f"data after {what} and a new claim")
        written = await fill(plain, scope, "newest", newest)
        await expect_image(plain, scope, written, f"data of the newest claim after {what}")
