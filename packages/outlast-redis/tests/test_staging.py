"""Long lists are put aside in pieces, become the log at once, and leave nothing behind."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from redis_support import Open, Owner, claim_id

from outlast.driver import Entry, Scope
from outlast.errors import FencedError, UnavailableError
from outlast_contract.servers import Server
from outlast_contract.stores.redis import keys_of
from outlast_redis import RedisDriver, _scripts
from outlast_redis._keys import Keys

TASK = Scope("task", "t")
OLD = [Entry("old", b"old")]
NEW = [Entry(f"m{number}", bytes([number]) * 400_000) for number in range(9)]


async def owned(driver: RedisDriver) -> Owner:
    value = await driver.claim(TASK, claim_id(1))
    return Owner(value.epoch, claim_id(1))


async def staged(client: Redis, namespace: str) -> list[str]:
    return [key async for key, _ in keys_of(client, namespace) if ":staged" in key]


async def test_a_long_list_replaces_the_log(
    driver: RedisDriver, client: Redis, namespace: str
) -> None:
    """Order, ids and payloads are kept; ids that were left out are free again."""
    owner = await owned(driver)
    await driver.replace(TASK, "api", OLD, fence=owner.fence())
    await driver.replace(TASK, "api", NEW, fence=owner.fence())
    assert await driver.load(TASK, "api") == NEW
    assert await driver.append(TASK, "api", [NEW[3]], fence=owner.fence()) == [NEW[3]]
    assert await driver.append(TASK, "api", OLD, fence=owner.fence()) == []
    assert await driver.load(TASK, "api", last=2) == [NEW[-1], *OLD]
    assert await staged(client, namespace) == []


async def test_a_reader_sees_the_old_list_or_the_new_one(driver: RedisDriver) -> None:
    """A7: while pieces arrive, the old list stands."""
    owner = await owned(driver)
    await driver.replace(TASK, "api", OLD, fence=owner.fence())
    replacing = asyncio.create_task(driver.replace(TASK, "api", NEW, fence=owner.fence()))
    seen: set[int] = set()
    while not replacing.done():
        seen.add(len(await driver.load(TASK, "api")))
    await replacing
    assert len(await driver.load(TASK, "api")) == len(NEW)
    assert 1 in seen
    assert seen <= {1, len(NEW)}


async def test_a_fenced_replacement_changes_nothing_and_leaves_nothing(
    driver: RedisDriver, client: Redis, namespace: str
) -> None:
    """The fence is checked in the step that makes the list the log."""
    owner = await owned(driver)
    await driver.replace(TASK, "api", OLD, fence=owner.fence())
    await driver.claim(TASK, claim_id(2))
    with pytest.raises(FencedError, match="superseded"):
        await driver.replace(TASK, "api", NEW, fence=owner.fence())
    assert await driver.load(TASK, "api") == OLD
    assert await staged(client, namespace) == []


async def test_a_repeated_replacement_is_done_once(
    driver: RedisDriver, client: Redis, namespace: str
) -> None:
    """F6: the repetition under the same fence changes nothing, not even if others came between."""
    owner = await owned(driver)
    fence = owner.fence()
    await driver.replace(TASK, "api", NEW, fence=fence)
    await driver.replace(TASK, "api", NEW[:5], fence=fence)
    assert await driver.load(TASK, "api") == NEW
    assert await staged(client, namespace) == []


async def abandon(driver: RedisDriver, count: int) -> None:
    """Put pieces aside as a process would that dies before the flip."""
    keys = Keys(driver._keys.format.decode().partition("{")[2].partition("}")[0])
    bucket = keys.bucket(TASK.id)
    for number in range(count):
        generation = b"%016x" % number
        await _scripts.run(
            driver._open,
            _scripts.STAGE,
            [keys.staged(bucket), *keys.generation(bucket, generation)],
            [generation, 0, b"\0\1a" + b"x" * 1000],
        )


async def test_what_a_crash_put_aside_is_swept(
    driver: RedisDriver, client: Redis, namespace: str
) -> None:
    """C4: not before its time, counted by a dry run, and gone after the sweep."""
    await abandon(driver, 3)
    assert len(await staged(client, namespace)) == 7
    young = await driver.sweep(older_than=3600, limit=100, dry_run=False, after=None)
    assert (young.tombstones, young.debris) == (0, 0)
    dry = await driver.sweep(older_than=0, limit=100, dry_run=True, after=None)
    assert (dry.tombstones, dry.debris) == (0, 3)
    assert len(await staged(client, namespace)) == 7
    swept = await driver.sweep(older_than=0, limit=100, dry_run=False, after=None)
    assert (swept.tombstones, swept.debris, swept.next) == (0, 3, None)
    assert await staged(client, namespace) == []


@pytest.mark.parametrize("swept_before", range(1, 7))
async def test_a_sweep_under_a_replacement_makes_it_fail_whole(
    shared: Server,
    open_driver: Open,
    client: Redis,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    swept_before: int,
) -> None:
    """A replacement whose pieces were swept says that nothing was changed; the old list stands."""
    driver, sweeper = await open_driver(shared.url), await open_driver(shared.url)
    owner = await owned(driver)
    await driver.replace(TASK, "api", OLD, fence=owner.fence())
    await driver.replace(TASK, "user", NEW, fence=owner.fence())  # Every script is known now.
    send = driver._open.send
    count = 0

    async def sweep_and_send(key: bytes, command: Any) -> Any:
        nonlocal count
        count += command[0] != "EVAL"  # Again: another test made the server forget the script.
        if count == swept_before:
            await sweeper.sweep(older_than=0, limit=100, dry_run=False, after=None)
        return await send(key, command)

    with monkeypatch.context() as patch:
        patch.setattr(driver._open, "send", sweep_and_send)
        if swept_before == 1:  # Nothing was put aside yet.
            await driver.replace(TASK, "api", NEW, fence=owner.fence())
        else:
            with pytest.raises(UnavailableError) as caught:
                await driver.replace(TASK, "api", NEW, fence=owner.fence())
            assert caught.value.applied is False
    assert await driver.load(TASK, "api") == (NEW if swept_before == 1 else OLD)
    await sweeper.sweep(older_than=0, limit=100, dry_run=False, after=None)
    assert await staged(client, namespace) == []
