"""Stores that have no room for anything new: no memory, no disk (E1, E2, D1, S3, C8)."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import outlast
from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast_contract.engine import Context, check
from outlast_contract.expect import NotRun, expect
from outlast_contract.faults.endings import (
    PATIENCE,
    Prepared,
    ends,
    judge,
    prepare,
    serves_again,
)
from outlast_contract.harness import Harness
from outlast_contract.mutations import expect_image, image
from outlast_contract.recording import begun, watched
from outlast_contract.stores import harness_for
from outlast_contract.workers import Workers


@check("E1", "E2", "D1", "S3", "C8", tier="faults")
async def a_server_without_room_says_so(context: Context) -> None:
    """While the server has no room, a mutation is done or raises UnavailableError and leaves the
    old data; everything can be read; when there is room again, every owner goes on.
    """
    async with _with_shortages(context) as harness:
        for name, shortage in harness.shortages().items():
            async with (
                watched(await harness.open_with(context.namespace)) as plain,
                await context.open_impatient(PATIENCE, harness) as client,
            ):
                prepared = await prepare(context, plain)
                async with shortage():
                    end = begun(f"store without {name}")
                    refused = await _without_room(client, plain, prepared, name)
                    expect(refused > 0, f"a store was asked to take data without {name}, and did")
                    for one in prepared:
                        await image(plain, one.scope)
                end()
                await serves_again(client, plain, prepared, f"when there is {name} again")


@asynccontextmanager
async def _with_shortages(context: Context) -> AsyncGenerator[Harness]:
    if not context.harness.shortages():
        raise NotRun("needs Harness.shortages(): nothing is known that takes such a store's room")
    if context.harness.server_kind is None:
        if not context.settings.server_faults:
            raise NotRun("it leaves other users of the server without room, too: --server-faults")
        yield context.harness
        return
    server = await context.harness.start_server()
    try:
        yield harness_for(server.url, **server.options)()
    finally:
        await asyncio.to_thread(server.close)


async def _without_room(
    client: outlast.Backend, plain: outlast.Backend, prepared: Sequence[Prepared], what: str
) -> int:
    """Call every mutation; how many were refused."""
    refused = 0
    for one in prepared:
        name = f"{one.name} without {what}"
        error = await ends(name, one.mutation.apply(client, one.scope.id, "new", one.owner))
        told = error is None or isinstance(error, UnavailableError | OutcomeUnknownError)
        expect(told, f"{name} raised {error!r}", clause="E2")
        after = one.mutation.model(one.before, one.scope.id, "new")
        judge(name, error, await image(plain, one.scope), one.before, after)
        refused += error is not None
    return refused


@check("E1", "E2", "D1", "S3", "C8", tier="faults", needs=["same store in processes"])
async def a_process_that_can_store_no_more_says_so(context: Context) -> None:
    """A process that cannot make a file any longer, as on a full disk, is told so at each mutation
    that needs room, and leaves the old data; it still reads, and goes on when there is room.
    """
    try:
        context.harness.endpoints()
    except NotRun:
        pass
    else:
        raise NotRun("for stores whose files this host's processes write themselves")
    plain = await context.open()
    async with Workers(context.harness, context.namespace) as workers:
        worker = await workers.spawn()
        prepared = [one for one in await prepare(context, plain) if one.owner is not None]
        for one in prepared:
            assert one.owner is not None
            await worker.done(
                "claim", kind=one.scope.kind, id=one.scope.id, claim_id=one.owner.claim_id
            )
        await worker.done("limit", file_size=0)
        end = begun("process that can make no file")
        refused = 0
        for one in prepared:
            what = f"{one.name} without room"
            answer = await worker.call(
                "apply", mutation=one.mutation.name, id=one.scope.id, mark="new", owned=True
            )
            error = answer.get("error")
            told = error in (None, "UnavailableError", "OutcomeUnknownError")
            expect(told, f"{what} raised {answer}", clause="E2")
            after = one.mutation.model(one.before, one.scope.id, "new")
            found = await image(plain, one.scope)
            if error is None:
                expect(found == after, f"{what}, which was done, left {found}", clause="E2")
            else:
                refused += 1
                allowed = (one.before, after)[: 1 if answer["applied"] is False else 2]
                expect(found in allowed, f"{what}, which was told {answer}, left {found}")
        if not refused:  # Whatever was done was there.
            raise NotRun("its processes make no files of this host")
        await worker.done("limit", file_size=None)
        end()
        for one in prepared:
            if one.mutation.removes:
                continue
            before = await image(plain, one.scope)
            await worker.done(
                "apply", mutation=one.mutation.name, id=one.scope.id, mark="late", owned=True
            )
            now = one.mutation.model(before, one.scope.id, "late")
            await expect_image(plain, one.scope, now, f"{one.name} with room again")
