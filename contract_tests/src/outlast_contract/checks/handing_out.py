"""Who else hands out epochs: claims that depend on a look, and calls that claim by themselves (F1).

Between a look and the claim that follows from it, sweeps may remove the record, and others may make
it anew: the next epoch is known to the store alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import outlast
from outlast.contracts import DriverBackend
from outlast.driver import MAX_EPOCH, Driver, Scope, ScopeKind, Value
from outlast.errors import FencedError, InvalidDataError, OutlastError
from outlast_contract.checks.races import at_once
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import Violation, error_of, expect, expect_equal, fenced, refused
from outlast_contract.mutations import (
    KINDS,
    Image,
    checkpoint_of,
    claim,
    expect_image,
    fill,
    state_of,
)
from outlast_contract.recording import watched
from outlast_contract.tampered import Step, TamperedDriver

_NOW = timedelta(0)


@check_each(KINDS, "F1", "F3", "F10", "F13")
async def a_claim_if_epoch_is_refused_once_the_epoch_is_another(
    context: Context, kind: ScopeKind
) -> None:
    """A claim with if_epoch gets the next epoch if the scope has that one still, and otherwise
    changes nothing: not the fence, and no record is made. After a sweep, too, the new epoch is
    above all that were handed out.
    """
    client = await context.open()
    scope = Scope(kind, context.new_id(kind))
    first = await claim(client, scope, if_epoch=0)
    written = await fill(client, scope, "first", first)
    for other in (0, first.epoch + 1, MAX_EPOCH):
        await refused(
            claim(client, scope, if_epoch=other),
            FencedError,
            f"a claim with if_epoch={other} at epoch {first.epoch}",
        )
        await expect_image(client, scope, written, "data after a refused claim", clause="F3")
        await client.persistence.check_claim(first)
    claim_id = f"{context.rng.getrandbits(128):032x}"
    second = await claim(client, scope, claim_id=claim_id, if_epoch=first.epoch)
    expect(second.epoch > first.epoch, f"epoch {second.epoch} after {first.epoch}")
    try:
        again = await claim(client, scope, claim_id=claim_id, if_epoch=first.epoch)
    except FencedError as error:
        raise Violation(f"the same claim, repeated, got {error!r}", "F10") from error
    expect_equal(again.epoch, second.epoch, "the same claim, repeated", clause="F10")
    late = claim(client, scope, if_epoch=first.epoch)
    await fenced(
        late, "superseded", f"a claim with if_epoch={first.epoch} at {second.epoch}", clause="F1"
    )
    highest = await claim(client, scope, at_least=MAX_EPOCH)
    await fenced(
        claim(client, scope, if_epoch=MAX_EPOCH - 1),
        "superseded",
        "if_epoch=2**52-1 at 2**52",
        clause="F1",
    )
    newest = await claim(client, scope, if_epoch=highest.epoch)
    expect(newest.epoch > MAX_EPOCH, f"epoch {newest.epoch} after 2**52")
    for bad in (-1, 2**53 + 1, True, 1.5, "9"):
        await refused(
            claim(client, scope, if_epoch=bad), InvalidDataError, f"a claim with if_epoch={bad!r}"
        )
    await expect_image(client, scope, written, "data after claims", clause="F3")


@check_each(KINDS, "F1", "F3", "F13", "C5")
async def a_claim_if_epoch_finds_out_that_the_scope_was_swept(
    context: Context, kind: ScopeKind
) -> None:
    """A claim that depends on an epoch of a scope that was swept since is refused and makes no
    record; one that depends on there being none gets an epoch above it.
    """
    client = await context.open()
    scope = Scope(kind, context.new_id(kind))
    seen = [await claim(client, scope) for _ in range(3)][-1]
    await client.sweep(older_than=_NOW)
    late = claim(client, scope, if_epoch=seen.epoch)
    await fenced(
        late, "no_record", "a claim of a scope that was swept since it was seen", clause="F1"
    )
    swept = await client.sweep(older_than=_NOW)
    expect_equal(swept.tombstones, 0, "records that a refused claim has made")
    written = await fill(client, scope, "unclaimed")
    late = claim(client, scope, if_epoch=seen.epoch)
    await fenced(late, "no_record", "a claim of a scope that was swept and made anew", clause="F1")
    await expect_image(client, scope, written, "data after a refused claim", clause="F3")
    anew = await claim(client, scope, if_epoch=0)
    expect(anew.epoch > seen.epoch, f"epoch {anew.epoch} after {seen.epoch} was swept")
    await expect_image(client, scope, written, "data after a claim", clause="F3")


@check_each(KINDS, "F1", "F13", tier="race")
async def one_of_those_who_saw_the_same_claims(context: Context, kind: ScopeKind) -> None:
    """Of contenders that claim if the epoch is the one that all have seen, exactly one does, also
    beside sweeps that take the record away.
    """
    clients = await context.open_many(context.settings.contenders)

    async def attempt(client: outlast.Backend, scope: Scope, seen: int) -> outlast.Claim | None:
        try:
            return await claim(client, scope, if_epoch=seen)
        except FencedError as error:
            expect(error.reason in ("superseded", "no_record"), f"a claim got {error!r}")
            return None

    async def sweep() -> None:
        await clients[0].sweep(older_than=_NOW)

    scope = Scope(kind, context.new_id(kind))
    seen = highest = 0
    for turn in range(context.settings.rounds):
        calls: list[Callable[[], Awaitable[Any]]] = [
            partial(attempt, client, scope, seen) for client in clients
        ]
        is_swept = turn % 3 == 2
        answers = await at_once([*calls, sweep] if is_swept else calls)
        epochs = [one.epoch for one in answers if one is not None]
        expect(
            len(epochs) == 1 or (is_swept and not epochs),
            f"contenders that saw epoch {seen} got {epochs}",
        )
        expect(all(epoch > highest for epoch in epochs), f"epochs {epochs} after {highest}")
        highest = max([highest, *epochs])
        seen = highest
        if is_swept:
            seen = highest = (await claim(clients[0], scope)).epoch
            expect(not epochs or seen > epochs[0], f"epoch {seen} after {epochs}")


class _HandedOut(NamedTuple):
    epoch: int
    began: float
    ended: float


class _Epochs:
    """All epochs that drivers handed out, to whomever, by scope and claim."""

    def __init__(self) -> None:
        self._found: dict[Scope, dict[str, _HandedOut]] = {}

    async def record(self, scope: Scope, claim_id: str, call: Awaitable[Value]) -> Value:
        now = asyncio.get_running_loop().time
        began = now()
        value = await call
        found = self._found.setdefault(scope, {})
        first = found.get(claim_id)
        if first is None:
            found[claim_id] = _HandedOut(value.epoch, began, now())
        return value

    def check(self) -> None:
        for scope, found in self._found.items():
            story = sorted(found.values(), key=lambda one: one.began)
            epochs = [one.epoch for one in story]
            told = f"of one {scope.kind} the epochs {epochs} were handed out"
            expect(len(set(epochs)) == len(epochs), f"{told}: one of them twice", clause="F1")
            for one in story:
                for other in story:
                    expect(
                        not (one.ended < other.began and one.epoch > other.epoch),
                        f"{told}: {other.epoch} after {one.epoch}",
                        clause="F1",
                    )


class _Counted(TamperedDriver):
    """Tells of every claim that it passes on, also of those that a deletion takes."""

    def __init__(self, inner: Driver, epochs: _Epochs, step: Step | None = None) -> None:
        super().__init__(inner, step)
        self._epochs = epochs

    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        call = super().claim(scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent)
        return await self._epochs.record(scope, claim_id, call)


async def _counting(
    context: Context, driver: Driver, epochs: _Epochs, step: Step | None = None
) -> DriverBackend:
    backend = watched(DriverBackend(_Counted(driver, epochs, step), namespace=context.namespace))
    await backend.open()
    return backend


def _expect_fenced(error: OutlastError | None, what: str) -> None:
    """Whoever may have been superseded, or swept, is told that or writes; a fence is not lost."""
    expect(
        error is None
        or (isinstance(error, FencedError) and error.reason in ("superseded", "no_record")),
        f"{what} got {error!r}",
        clause="F13",
    )


_Deletion = Callable[[outlast.Backend, str, outlast.Claim], Awaitable[object]]
_DELETIONS: dict[str, _Deletion] = {
    "delete_thread by force": lambda client, id, _: client.checkpoints.delete_thread(
        id, force=True
    ),
    "delete_task by force": lambda client, id, _: client.persistence.delete_task(id, force=True),
    "delete_task by its owner": lambda client, id, owner: client.persistence.delete_task(
        id, claim=owner
    ),
}


@check_each(_DELETIONS, "F1", "F13", "C1", needs=["driver"])
async def a_deletion_hands_out_no_epoch_again(context: Context, delete: _Deletion) -> None:
    """If sweeps and new owners come between any two steps of a deletion, what it claims by itself
    is above all that was handed out, and no owner hears that the store lost a fence.
    """
    for after in range(1, 6):
        for sweeps in (2, 1):
            await _delete_beside_others(context, delete, after, sweeps)


async def _delete_beside_others(
    context: Context, delete: _Deletion, after: int, sweeps: int
) -> None:
    plain = await context.open()
    driver = await context.driver(plain)
    epochs = _Epochs()
    task_id, run_id = context.new_id("task"), context.new_id("run")
    others = await _counting(context, driver, epochs)
    owners: list[outlast.Claim] = []
    count = 0

    async def intrude(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal count
        count += 1
        is_mine = count == after
        answer = await call()
        if is_mine:
            await plain.sweep(older_than=_NOW)
            owners.extend(
                [await others.checkpoints.claim(run_id, thread_id=task_id) for _ in range(3)]
            )
            if sweeps == 2:
                await plain.sweep(older_than=_NOW)
        return answer

    async with others, await _counting(context, driver, epochs, intrude) as backend:
        await others.checkpoints.claim(run_id, thread_id=task_id)
        task_owner = await others.persistence.claim_task(task_id)
        state = state_of(task_id, "m")
        await others.persistence.save_task_state(task_id, state, claim=task_owner)
        error = await error_of(delete(backend, task_id, task_owner))
        what = f"a deletion with others behind its driver call {after}"
        epochs.check()
        expect(error is None, f"{what} got {error!r}", clause="C1")
        for owner in owners:
            late = others.checkpoints.put(checkpoint_of(run_id, "late", task_id), claim=owner)
            _expect_fenced(await error_of(late), f"an owner of a run beside {what}")


@check("F1", "F2", "F13", "C1", "C5", tier="race", needs=["driver"])
async def deletions_by_force_race_with_owners_and_sweeps(context: Context) -> None:
    """Owners of a task and of its runs, deletions by force and sweeps at once: no epoch is handed
    out twice or below one before it, the deletions get their way, and nobody hears that the store
    lost a fence.
    """
    epochs = _Epochs()
    clients = [await _counting(context, await context.driver(), epochs) for _ in range(8)]

    async def pause() -> None:
        for _ in range(context.rng.randrange(6)):
            await asyncio.sleep(0)

    async def write(call: Awaitable[object], what: str) -> bool:
        error = await error_of(call)
        _expect_fenced(error, what)
        return error is None

    async def run(client: outlast.Backend, task_id: str, run_id: str) -> None:
        for _ in range(4):
            owner = await client.checkpoints.claim(run_id, thread_id=task_id)
            for number in range(4):
                point = checkpoint_of(run_id, f"{owner.epoch}.{number}", task_id)
                if not await write(client.checkpoints.put(point, claim=owner), "a run's owner"):
                    break
                await pause()

    async def work(client: outlast.Backend, task_id: str) -> None:
        for _ in range(3):
            owner = await client.persistence.claim_task(task_id)
            state = state_of(task_id, str(owner.epoch))
            await write(
                client.persistence.save_task_state(task_id, state, claim=owner), "a task's owner"
            )
            await pause()

    async def delete(what: str, call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(2):
            await pause()
            error = await error_of(call())
            expect(error is None, f"{what} by force got {error!r}", clause="C1")

    async def sweep(client: outlast.Backend) -> None:
        for _ in range(3):
            await client.sweep(older_than=_NOW)
            await pause()

    try:
        for _ in range(context.settings.rounds):
            task_id = context.new_id("task")
            runs = [context.new_id("run") for _ in range(2)]
            for run_id in runs:
                await clients[0].checkpoints.put(checkpoint_of(run_id, "m", task_id))
            first, second = clients[4:6]
            await at_once(
                [
                    partial(run, clients[0], task_id, runs[0]),
                    partial(run, clients[1], task_id, runs[1]),
                    partial(run, clients[2], task_id, runs[0]),
                    partial(work, clients[3], task_id),
                    partial(
                        delete,
                        "delete_thread",
                        partial(first.checkpoints.delete_thread, task_id, force=True),
                    ),
                    partial(
                        delete,
                        "delete_task",
                        partial(second.persistence.delete_task, task_id, force=True),
                    ),
                    partial(sweep, clients[6]),
                    partial(sweep, clients[7]),
                ]
            )
            epochs.check()
            await clients[0].persistence.delete_task(task_id, force=True)
            for run_id in runs:
                await expect_image(
                    clients[1], Scope("run", run_id), Image(), "a run of a deleted task"
                )
    finally:
        for client in clients:
            await client.aclose()
