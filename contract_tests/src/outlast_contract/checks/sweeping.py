"""Sweeps beside writers, the age from which they count, and the floor they leave (C4, C5, F1)."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

import outlast
from outlast.driver import Scope, ScopeKind
from outlast.errors import FencedError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import NotRun, Violation, error_of, expect, expect_equal
from outlast_contract.mutations import (
    KINDS,
    MUTATIONS,
    bare,
    checkpoint_of,
    claim,
    expect_image,
    fill,
)

_NOW = timedelta(0)

_HOLDS = {"task": MUTATIONS["save_task_input"], "run": MUTATIONS["put"]}
_REMOVES = {"task": MUTATIONS["delete_task"], "run": MUTATIONS["delete"]}


async def _beside_sweeps(
    sweepers: list[outlast.Backend], work: Callable[[int], Awaitable[None]], workers: int
) -> None:
    """Run the workers to their end while others sweep without a pause."""
    finished = asyncio.Event()

    async def sweep(client: outlast.Backend) -> None:
        while not finished.is_set():
            await client.sweep(older_than=_NOW)
            await asyncio.sleep(0)

    async def all_work() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(workers):
                    group.create_task(_run(work, number))
        finally:
            finished.set()

    async with asyncio.TaskGroup() as group:
        for client in sweepers:
            group.create_task(sweep(client))
        group.create_task(all_work())


async def _run(work: Callable[[int], Awaitable[None]], number: int) -> None:
    await work(number)


@check("C4", "C5", "F4", "A1")
async def a_sweep_beside_running_owners_disturbs_nobody(context: Context) -> None:
    """While owners write, replace and read, sweeps with no retention time remove nothing that
    is referenced.
    """
    client, sweeper = await context.open_many(2)

    async def own(number: int) -> None:
        task = Scope("task", f"task {number}")
        run = Scope("run", f"run {number}")
        # With data from the start: an empty claim may be swept at any time here.
        await fill(client, task, "start")
        for turn in range(6):
            owner = await claim(client, task)
            written = await fill(client, task, str(turn), owner)
            await client.checkpoints.put(checkpoint_of(run.id, str(turn)))
            for part in range(3):
                message = outlast.ApiMessage(id=f"{turn}.{part}", role="u", content="x" * 3000)
                await client.persistence.append_api_message(task.id, message, claim=owner)
                written = msgspec.structs.replace(written, api=[*written.api, message])
                await expect_image(client, task, written, "a task beside sweeps")
            found = await client.checkpoints.get(run.id)
            expect_equal(bare(found), checkpoint_of(run.id, str(turn)), "a run beside sweeps")

    await _beside_sweeps([sweeper], own, 4)


@check("C4", "A1", "A7", "S3")
async def a_sweep_takes_nothing_that_a_write_has_prepared(context: Context) -> None:
    """Long lists and large values are saved beside sweeps with no retention time: what a write has
    stored ahead, and refers to only in its last step, is there when it is done.
    """
    client, *sweepers = await context.open_many(3)
    tasks = client.persistence

    async def own(number: int) -> None:
        task = Scope("task", f"task {number}")
        await fill(client, task, "start")
        owner = await claim(client, task)
        for turn in range(4):
            messages = [
                outlast.ApiMessage(id=f"{turn}.{part}", role="u", content=f"{part}" * 15_000)
                for part in range(40)
            ]
            large = outlast.TaskInput(message=f"{turn}" * 200_000)
            await tasks.save_api_messages(task.id, messages, claim=owner)
            await tasks.save_task_input(task.id, large, claim=owner)
            what = f"beside sweeps, after save {turn}"
            error = await error_of(tasks.load_api_messages(task.id, last=1))
            expect(error is None, f"messages {what}: {error!r}")
            expect_equal(list(await tasks.load_api_messages(task.id)), messages, f"messages {what}")
            error = await error_of(tasks.load_task_input(task.id))
            expect(error is None, f"a large value {what}: {error!r}")
            expect_equal(await tasks.load_task_input(task.id), large, f"a large value {what}")

    await _beside_sweeps(sweepers, own, 2)


_WAITS = (0.3, 4.0)
"""Seconds between two changes; the next one is tried where the one before does not tell."""


@check_each(KINDS, "C5")
async def a_change_renews_the_age(context: Context, kind: ScopeKind) -> None:
    """The retention time of a record without data counts from its last change: a new claim and a
    repeated deletion renew it.
    """
    client = await context.open()
    found = _SLOW
    for wait in _WAITS:
        found = await _sweep_between(context, client, kind, wait)
        if not found:
            return
    raise (Violation if found != _SLOW else NotRun)(found)


_SLOW = "the store is too slow: all records were too old before the sweep was done"


async def _sweep_between(
    context: Context, client: outlast.Backend, kind: ScopeKind, wait: float
) -> str:
    """What is wrong with a sweep of records of which some were changed ``wait`` seconds later."""
    loop = asyncio.get_running_loop()
    remove = MUTATIONS["delete_task" if kind == "task" else "delete"]
    left, claimed, emptied, again = (Scope(kind, context.new_id(kind)) for _ in range(4))
    owners = {scope: await claim(client, scope) for scope in (left, claimed, emptied, again)}
    for scope in (left, emptied, again):
        await fill(client, scope, "m", owners[scope])
        await remove.apply(client, scope.id, "", owners[scope])
    made = loop.time()
    await asyncio.sleep(wait)
    changed = loop.time()
    for scope in (claimed, emptied):
        owners[scope] = await claim(client, scope)
    await remove.apply(client, again.id, "", owners[again])
    now = loop.time()
    retention = ((now - changed) + (now - made)) / 2
    await client.sweep(older_than=timedelta(seconds=retention))
    if loop.time() - changed >= retention:
        return _SLOW
    changes = {claimed: "claimed again", emptied: "claimed since", again: "deleted again"}
    for scope, change in changes.items():
        error = await error_of(client.persistence.check_claim(owners[scope]))
        if error is not None:
            return (
                f"a record without data, {change} {loop.time() - changed:.2f} s ago, was swept "
                f"with a retention time of {retention:.2f} s: {error!r}"
            )
    error = await error_of(client.persistence.check_claim(owners[left]))
    if not isinstance(error, FencedError):
        return (
            f"a tombstone that was made {loop.time() - made:.2f} s ago was not swept with a "
            f"retention time of {retention:.2f} s: check_claim got {error!r}"
        )
    return ""


_HIGH = 40
_LOW = 32
"""Scopes of high and of low epochs: a store may keep a floor for each of some hundred buckets, and
some of both must meet in one.
"""


def spread(label: str, count: int) -> list[Scope]:
    """Tasks and runs with ids in the order of their numbers, of which not even a checksum has an
    order.
    """
    digests = (hashlib.sha256(f"{label} {number}".encode()).hexdigest() for number in range(count))
    return [
        Scope("run" if number % 2 else "task", f"{label} {number:02} {digest[:16]}")
        for number, digest in enumerate(digests)
    ]


@check("F1", "C5")
async def a_sweep_of_low_epochs_leaves_high_ones_used(context: Context) -> None:
    """Records of many epochs are swept, the highest neither first nor last, in several sweeps, of
    which the last finds low ones only: whoever claims again gets an epoch that was never used.
    """
    client = await context.open()
    high, low = spread("high", _HIGH), spread("low", _LOW)
    limit = asyncio.Semaphore(16)

    async def hand_out(scope: Scope, at_least: int | None) -> outlast.Claim:
        async with limit:
            return await claim(client, scope, at_least=at_least)

    async def hold(scope: Scope) -> outlast.Claim:
        owner = await hand_out(scope, None)
        async with limit:
            await _HOLDS[scope.kind].apply(client, scope.id, "m", owner)
        return owner

    async def let_go(owner: outlast.Claim) -> None:
        async with limit:
            await _REMOVES[owner.scope.kind].apply(client, owner.scope.id, "", owner)

    # Rising, then falling: no end of the order in which a store goes through them is the highest.
    epochs = [1000 - 10 * abs(number - 25) for number in range(_HIGH)]
    highest = await asyncio.gather(*map(hand_out, high, epochs))
    # With data, they outlive the first two sweeps.
    lowest = await asyncio.gather(*map(hold, low))
    await client.sweep(older_than=_NOW, limit=_HIGH // 2 - 3)
    await client.sweep(older_than=_NOW)
    await asyncio.gather(*map(let_go, lowest))
    await client.sweep(older_than=_NOW)
    again = await asyncio.gather(*(hand_out(scope, None) for scope in (*high, *low)))
    for old, new in zip((*highest, *lowest), again, strict=True):
        text = (
            f"{old.scope.id!r} had epoch {old.epoch}, was swept, and was then given {new.epoch}: "
            "the floor was not above all swept epochs"
        )
        expect(new.epoch > old.epoch, text)
