"""Writers that die between two requests: S8, S13."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from s3_support import (
    HOST,
    Forward,
    HttpProxy,
    Open,
    Owner,
    Request,
    Store,
    claim_id,
    dropping,
    in_a_hurry,
)

from outlast.driver import Entry, Fence, Scope
from outlast.errors import OutlastError, UnavailableError
from outlast_s3 import S3Driver

pytestmark = [pytest.mark.s3, pytest.mark.server]

TASK = Scope("task", "t")
OLD = [Entry(f"old {number}", b"o" * 3000) for number in range(40)]
NEW = [Entry(f"new {number}", b"n" * 90_000) for number in range(40)]

Mutation = Callable[[S3Driver, Fence], Awaitable[object]]


async def _replace(driver: S3Driver, fence: Fence) -> None:
    await driver.replace(TASK, "api", NEW, fence=fence)


async def _append(driver: S3Driver, fence: Fence) -> None:
    await driver.append(TASK, "api", NEW, fence=fence)


async def _remove(driver: S3Driver, fence: Fence) -> None:
    await driver.remove(TASK, fence=fence)


@pytest.mark.parametrize(
    ("mutation", "after"),
    [(_replace, NEW), (_append, [*OLD, *NEW]), (_remove, [])],
    ids=["replace", "append", "remove"],
)
async def test_a_list_of_several_objects_is_the_old_or_the_new_one(
    server: Store,
    open_driver: Open,
    proxy: HttpProxy,
    prefix: str,
    mutation: Mutation,
    after: list[Entry],
) -> None:
    """Whichever request is the last that the writer sends; a sweep removes what it left."""
    survivor = await open_driver()
    writer = await open_driver(proxy.port)
    gone = writing = 0

    def is_gone(request: Request) -> bool:
        nonlocal writing
        writing += 1
        return writing > gone

    found: list[bool] = []
    while len(found) < 2 or writing > gone:
        gone += 1
        owner = Owner((await survivor.claim(TASK, claim_id(gone))).fence)
        await survivor.replace(TASK, "api", OLD, fence=owner.fence())
        await writer.read(TASK, "state")
        writing = 0
        rule = proxy.always(is_gone, dropping)
        try:
            await mutation(writer, owner.fence())
        except OutlastError:
            assert writing > gone
        finally:
            proxy.stop(rule)
        owner = Owner((await survivor.claim(TASK, claim_id(1000 + gone))).fence)
        left = await survivor.load(TASK, "api")
        assert left in (OLD, after), f"cut after request {gone}"
        found.append(left == after)
    assert found[0] is False
    assert found[-1] is True
    assert len(found) >= 2
    await survivor.remove(TASK, fence=owner.fence())
    place: str | None = None
    while True:
        page = await survivor.sweep(older_than=0, limit=99, dry_run=False, after=place)
        place = page.next
        if place is None:
            break
    kinds = {name.split("/")[-2] for name in server.objects(prefix)}
    assert kinds <= {prefix, "floor"}


@pytest.mark.parametrize("sent", [0, 1, 100], ids="{} bytes".format)
@pytest.mark.parametrize("what", ["/task/", "/piece/", "/floor/"])
async def test_a_body_that_breaks_off_changes_nothing(
    open_driver: Open, proxy: HttpProxy, what: str, sent: int
) -> None:
    """Also if the sender dies behind the headers, for which SeaweedFS stores an empty object."""
    driver, other = await open_driver(proxy.port), await open_driver()

    async def breaking(request: Request, forward: Forward) -> bytes | None:
        reader, writer = await asyncio.open_connection(HOST, server_port)
        lines = [f"{request.method} {request.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + request.body[:sent])
        await writer.drain()
        writer.write_eof()
        await reader.read()
        writer.close()
        return None

    server_port = proxy.target
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)
    await driver.replace(TASK, "api", OLD, fence=owner.fence())
    proxy.once(lambda request: request.method == "PUT" and what in request.path, breaking)
    if what == "/floor/":
        await driver.remove(TASK, fence=owner.fence())
        with pytest.raises(UnavailableError):
            await driver.sweep(older_than=0, limit=9, dry_run=False, after=None)
        assert await _tombstones(other) == 1
        assert (await other.claim(TASK, claim_id(2))).epoch > 1
        return
    with contextlib.suppress(OutlastError):
        await driver.replace(TASK, "api", NEW, fence=owner.fence())
    assert await other.load(TASK, "api") in (OLD, NEW)
    await driver.append(TASK, "user", [Entry("m", b"")], fence=owner.fence())
    assert (await other.claim(TASK, claim_id(2))).epoch == 2


async def _tombstones(driver: S3Driver) -> int:
    """Sweep to the end; the tombstones that were removed."""
    removed = 0
    after: str | None = None
    while True:
        page = await driver.sweep(older_than=0, limit=9, dry_run=False, after=after)
        removed += page.tombstones
        after = page.next
        if after is None:
            return removed


async def test_a_zombie_cannot_bring_back_a_name_that_was_collected(
    server: Store, open_driver: Open, proxy: HttpProxy
) -> None:
    """S8: its creation arrives after the record was swept: the floor is above it by then."""
    zombie, other = await open_driver(proxy.port), await open_driver()
    epochs: list[int] = []

    async def late(request: Request, forward: Forward) -> bytes | None:
        for number in range(3):
            owner = Owner((await other.claim(TASK, claim_id(number))).fence)
            epochs.append(owner.epoch)
        await other.write(TASK, "state", b"x", fence=owner.fence())
        await other.remove(TASK, fence=owner.fence())
        assert await _tombstones(other) == 1
        return await forward(request)

    proxy.once(lambda request: "if-none-match" in request.headers, late)
    claimed = await zombie.claim(TASK, claim_id(9))
    assert epochs == [1, 2, 3]
    assert claimed.epoch > 3


async def test_a_call_that_cannot_be_sent_is_certainly_not_applied(
    open_driver: Open, proxy: HttpProxy
) -> None:
    """Pieces that were not stored leave the head alone."""
    driver = await open_driver(proxy.port)
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)
    rule = proxy.always(lambda request: "/piece/" in request.path, dropping)
    with in_a_hurry(driver, 3.0), pytest.raises(UnavailableError):
        await driver.replace(TASK, "api", NEW, fence=owner.fence())
    proxy.stop(rule)
    assert await driver.load(TASK, "api") == []
