"""Cancelling a call wherever it waits (X1, X2, C8)."""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any

import outlast
from outlast.contracts import DriverBackend
from outlast.contracts.claim import new_claim_id
from outlast.driver import Entry, Scope
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import begin, expect, expect_equal
from outlast_contract.mutations import (
    MUTATIONS,
    Image,
    Mutation,
    claim,
    expect_image,
    fill,
    image,
)

_MOST = 4000
"""Turns of the event loop after which a call that has not ended is left alone."""


def _moments() -> Iterator[int]:
    """After how many turns of the event loop to cancel: every one at first, then ever fewer."""
    turns = 0.0
    while turns < _MOST:
        yield int(turns)
        turns = turns + 1 if turns < 12 else turns * 1.5


async def cancelled_after(call: Coroutine[Any, Any, Any], turns: int) -> bool:
    """Start a call, cancel it after so many turns of the loop, and tell whether that struck it.

    Raises:
        Violation: The cancellation was swallowed.
    """
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        if task.done():
            break
        await asyncio.sleep(0)
    struck = task.cancel()
    await asyncio.wait([task], timeout=20)
    expect(task.done(), f"a call that was cancelled after {turns} turns still runs", clause="X1")
    if task.cancelled():
        return True
    error = task.exception()
    expect(error is None, f"a cancelled call ended with {error!r}", clause="X1")
    # Done in the very turn in which it was cancelled is fine only if it had nothing to wait for.
    expect(not struck, f"a call swallowed its cancellation after {turns} turns", clause="X1")
    return False


@check_each(MUTATIONS, "X1", "X2", "C8", "F6")
async def a_cancelled_mutation_is_all_or_nothing(context: Context, mutation: Mutation) -> None:
    """Cancelled at any moment, a mutation reaches its caller as cancelled, is in or not, and never
    comes after the next one of its claim.
    """
    client, other = await context.open_many(2)
    witness = Scope("task", context.new_id("witness"))
    known = await fill(client, witness, "witness")
    after = MUTATIONS["put" if mutation.kind == "run" else "save_task_input"]
    for owned in (True, False):
        scope = mutation.scope(context.new_id(mutation.kind))
        owner = await claim(client, scope) if owned else None
        for number, turns in enumerate(_moments()):
            before = await fill(client, scope, f"base {number}", owner)
            mark = f"cut {number}"
            struck = await cancelled_after(_apply(client, mutation, scope, mark, owner), turns)
            # The very next call, on another scope, must get its own answer.
            await expect_image(client, witness, known, "another task, read next", clause="X2")
            what = f"{mutation.name}, cancelled after {turns} turns"
            applied = mutation.model(before, scope.id, mark)
            await after.apply(client, scope.id, f"next {number}", owner)
            found = await image(other, scope)
            outcomes = [
                after.model(one, scope.id, f"next {number}")
                for one in ((before, applied) if struck else (applied,))
            ]
            expect(found in outcomes, f"{what}, and the next write left {found}", clause="X2")
            await client.ping()
            expect_equal(await image(client, scope), found, f"data a moment after {what}")
            if not struck:
                break


async def _apply(
    client: outlast.Backend,
    mutation: Mutation,
    scope: Scope,
    mark: str,
    owner: outlast.Claim | None,
) -> None:
    await mutation.apply(client, scope.id, mark, owner)


@check("X2", "X1", "C8")
async def a_cancelled_read_disturbs_no_other(context: Context) -> None:
    """Reads cancelled at any moment, alone and among others, leave every call its own answer."""
    client = await context.open()
    images: dict[Scope, Image] = {}
    for number in range(4):
        scope = Scope("task", context.new_id("task"))
        images[scope] = await fill(client, scope, f"mark {number}")
    run = Scope("run", context.new_id("run"))
    images[run] = await fill(client, run, "run")
    tasks = client.persistence
    first = next(iter(images)).id
    reads: list[Callable[[], Awaitable[object]]] = [
        lambda: tasks.load_task_state(first),
        lambda: tasks.load_api_messages(first, last=1),
        tasks.list_task_states,
        lambda: client.checkpoints.get(run.id),
        client.ping,
        lambda: tasks.claim_task(context.new_id("new")),
    ]

    for read in reads:
        for turns in _moments():
            struck = await cancelled_after(begin(read), turns)
            scope = context.rng.choice(list(images))
            await expect_image(client, scope, images[scope], f"a read after one cut at {turns}")
            if not struck:
                break
    for turns in (*range(8), 16, 32):
        others = [asyncio.ensure_future(image(client, scope)) for scope in (*images, *images)]
        victims = [asyncio.ensure_future(begin(read)) for read in reads[:4]]
        for _ in range(turns):
            await asyncio.sleep(0)
        for victim in victims:
            victim.cancel()
        await asyncio.wait(victims)
        found = await asyncio.gather(*others)
        expect_equal(found, [*images.values(), *images.values()], "reads beside cancelled ones")


@check("X1", "F6", "F10", "C8")
async def a_cancelled_claim_can_be_repeated(context: Context) -> None:
    """A claim cancelled at any moment and repeated with its claim_id is one claim, and it works."""
    client, other = await context.open_many(2)
    for kind in ("task", "run"):
        scope = Scope("task" if kind == "task" else "run", context.new_id(kind))
        epoch = (await claim(client, scope)).epoch
        for turns in _moments():
            chosen = f"{context.rng.getrandbits(128):032x}"
            struck = await cancelled_after(_claim(client, scope, chosen), turns)
            owner = await claim(other, scope, claim_id=chosen)
            again = await claim(client, scope, claim_id=chosen)
            what = f"a claim cut after {turns} turns"
            expect(owner.epoch > epoch, f"{what} got {owner.epoch} after {epoch}", clause="F1")
            expect_equal(again.epoch, owner.epoch, f"epoch of {what}, repeated", clause="F10")
            written = await fill(client, scope, f"after {turns}", owner)
            await expect_image(other, scope, written, "written through the repeated claim")
            epoch = owner.epoch
            if not struck:
                break


async def _claim(client: outlast.Backend, scope: Scope, claim_id: str) -> None:
    await claim(client, scope, claim_id=claim_id)


@check("X2", "C7", "F6")
async def many_cancelled_appends_leave_a_clean_log(context: Context) -> None:
    """Of many appends at once, some cancelled, every done one is there once, and repeating all of
    them makes the log complete without doubling.
    """
    client, other = await context.open_many(2)
    for owned in (True, False):
        task_id = context.new_id("task")
        owner = await client.persistence.claim_task(task_id) if owned else None
        messages = [
            outlast.ApiMessage(id=f"m{number}", role="u", content=str(number))
            for number in range(40)
        ]
        calls = [
            asyncio.ensure_future(
                begin(partial(client.persistence.append_api_message, task_id, message, claim=owner))
            )
            for message in messages
        ]
        for place in context.rng.sample(range(40), 15):
            for _ in range(context.rng.randrange(30)):
                await asyncio.sleep(0)
            calls[place].cancel()
        await asyncio.wait(calls)
        done = [
            message.id
            for message, call in zip(messages, calls, strict=True)
            if not call.cancelled()
        ]
        failed = [call for call in calls if not call.cancelled() and call.exception() is not None]
        expect(not failed, f"an append beside cancelled ones: {failed[:1]}")
        found = [message.id for message in await other.persistence.load_api_messages(task_id)]
        expect(len(found) == len(set(found)), f"messages are doubled: {found}", clause="A2")
        expect_equal([name for name in found if name in done], done, "done appends in the log")
        await client.persistence.append_api_messages(task_id, messages, claim=owner)
        found = [message.id for message in await other.persistence.load_api_messages(task_id)]
        wanted = sorted(message.id for message in messages)
        expect_equal(sorted(found), wanted, "the log after repeating all", clause="A2")


@check("X1", "C7")
async def a_refusal_that_nobody_waits_for_is_not_unhandled(context: Context) -> None:
    """A call that is refused after its caller was cancelled is no unhandled error of the loop."""
    client, other = await context.open_many(2)
    scope = Scope("task", context.new_id("task"))
    stale = await claim(client, scope)
    await claim(other, scope)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: client.persistence.save_task_input(
            scope.id, outlast.TaskInput(message="late"), claim=stale
        ),
        lambda: client.persistence.claim_task(scope.id, at_least=stale.epoch),
    ]
    if isinstance(client, DriverBackend):
        # The layer above cancels its driver only at the end of a call's time.
        driver = client.driver
        calls += [
            lambda: driver.write(scope, "input", b"late", fence=stale.next_fence()),
            lambda: driver.append(scope, "api", [Entry("m", b"")], fence=stale.next_fence()),
            lambda: driver.claim(scope, new_claim_id(), at_least=stale.epoch),
        ]
    with _unhandled() as reports:
        for call in calls:
            await _cancel_everywhere(call)
            await client.ping()
        await client.aclose()
        gc.collect()
        await asyncio.sleep(0)
    expect_equal(reports, [], "reports of unhandled errors after cancelled calls were refused")


async def _cancel_everywhere(call: Callable[[], Awaitable[object]]) -> None:
    """Cancel a call at one moment after the other, until it ends before that."""
    for turns in _moments():
        task = asyncio.ensure_future(begin(call))
        for _ in range(turns):
            await asyncio.sleep(0)
        struck = task.cancel()
        await asyncio.wait([task], timeout=20)
        expect(task.done(), f"a call cancelled after {turns} turns still runs")
        if not task.cancelled():
            task.exception()  # The refusal itself, or Python reports it as ours.
        if not struck:
            break


@contextlib.contextmanager
def _unhandled() -> Generator[list[str]]:
    """What the running loop is told of errors that nobody took."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    reports: list[str] = []

    def report(_: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        reports.append(f"{about.get('message')}: {about.get('exception')!r}")

    loop.set_exception_handler(report)
    try:
        yield reports
    finally:
        loop.set_exception_handler(before)
