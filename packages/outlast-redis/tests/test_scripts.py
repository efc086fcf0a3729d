"""Scripts: checked before the first write, on keys of one slot, whatever the server has cached."""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import key_slot  # pyright: ignore[reportPrivateImportUsage]
from redis_support import Open, Owner, claim_id, client_of

from outlast.driver import MAX_EPOCH, Entry, Fence, Index, Scope, Where
from outlast.errors import (
    CorruptDataError,
    FencedError,
)
from outlast_contract.servers import Server
from outlast_contract.stores.redis import keys_of
from outlast_redis import RedisDriver
from outlast_redis._keys import BUCKETS, Keys

TASK = Scope("task", "t")
BIG = [Entry(f"m{number}", bytes(700_000)) for number in range(3)]
"""More than goes into one script."""


async def owned(driver: RedisDriver, scope: Scope = TASK) -> Owner:
    value = await driver.claim(scope, claim_id(1))
    return Owner(value.epoch, claim_id(1))


Mutation = Callable[[RedisDriver, Fence | None], Awaitable[Any]]
MUTATIONS: dict[str, Mutation] = {
    "write": lambda d, f: d.write(TASK, "state", b"new", fence=f, index=Index("q", "s", 1)),
    "empty": lambda d, f: d.write(TASK, "state", None, fence=f),
    "append": lambda d, f: d.append(TASK, "api", [Entry("new", b"new")], fence=f),
    "replace": lambda d, f: d.replace(TASK, "api", [Entry("new", b"new")], fence=f),
    "replace in pieces": lambda d, f: d.replace(TASK, "api", BIG, fence=f),
    "clear": lambda d, f: d.replace(TASK, "api", [], fence=f),
    "remove": lambda d, f: d.remove(TASK, fence=f),
    "claim": lambda d, f: d.claim(TASK, claim_id(2), parent="q"),
}


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("spoiled", ["head", "index", "empty", "floor", "log:a", "ids:a", "staged"])
async def test_a_key_of_another_type_fails_a_mutation_whole(
    driver: RedisDriver, client: Redis, namespace: str, name: str, spoiled: str
) -> None:
    """H-R4, H-R5: the mutation succeeds (it does not touch the key), or nothing at all changed."""
    fence = (await owned(driver)).fence() if name != "claim" else None
    keys = Keys(namespace)
    scope = keys.of(TASK)
    named = {
        "head": scope.head,
        "index": keys.index(scope.bucket),
        "empty": keys.empty(scope.bucket),
        "floor": keys.floor(scope.bucket),
        "log:a": scope.log("api").entries,
        "ids:a": scope.log("api").ids,
        "staged": keys.staged(scope.bucket),
    }
    await client.delete(named[spoiled])
    if spoiled == "floor":
        await client.rpush(named[spoiled], "x")  # type: ignore[misc]
    else:
        await client.set(named[spoiled], "x")
    before = {key: held async for key, held in keys_of(client, namespace)}
    try:
        await MUTATIONS[name](driver, fence)
    except CorruptDataError:
        after = {key: held async for key, held in keys_of(client, namespace)}
        # What was put aside belongs to nobody, and is swept.
        assert {key: after[key] for key in after if ":staged" not in key} == {
            key: before[key] for key in before if ":staged" not in key
        }


@pytest.mark.parametrize("name", MUTATIONS)
async def test_every_script_survives_a_flushed_cache(
    driver: RedisDriver, client: Redis, name: str
) -> None:
    """H-R8: a server that was restarted or flushed knows no script."""
    fence = (await owned(driver)).fence() if name != "claim" else None
    await client.script_flush()
    await MUTATIONS[name](driver, fence)
    await client.script_flush()
    assert (await driver.read(TASK, "state")).fence is not None
    await client.script_flush()
    await driver.load(TASK, "api")
    page = await driver.scan("task", where=Where(with_empty=True), after=None, limit=10)
    assert [item.id for item in page.items] == ["t"]
    await client.script_flush()
    assert (await driver.sweep(older_than=0, limit=9, dry_run=False, after=None)).next is None


async def test_epochs_are_compared_as_numbers_and_kept_exactly(driver: RedisDriver) -> None:
    """H-R6: 9 is below 10, and 2**52 differs from its neighbours."""
    for epoch in (9, 10, 2**52 - 1, MAX_EPOCH):
        value = await driver.claim(TASK, secrets.token_hex(16), at_least=epoch)
        assert value.epoch == epoch
        with pytest.raises(FencedError):
            await driver.claim(TASK, secrets.token_hex(16), at_least=epoch)
    value = await driver.claim(TASK, claim_id(7))
    assert value.epoch == MAX_EPOCH + 1
    stale = Fence(MAX_EPOCH, claim_id(7), 1, "0" * 16)
    with pytest.raises(FencedError, match="superseded"):
        await driver.write(TASK, "state", b"late", fence=stale)
    await driver.write(TASK, "state", b"new", fence=stale._replace(epoch=MAX_EPOCH + 1))
    assert (await driver.read(TASK, "state")).data == b"new"


async def test_payloads_are_opaque_bytes(driver: RedisDriver) -> None:
    """H-R7: nothing is parsed, decoded or cut; Lua's numbers, tables and NUL have no meaning."""
    payloads = [bytes(range(256)), b"", b"\0", b"[]", b"1.0", b"12345678901234567890", b"\xed\xa0"]
    entries = [Entry(f"{number}\0é{{}}", data) for number, data in enumerate(payloads)]
    await driver.append(TASK, "user", entries, fence=None)
    assert await driver.load(TASK, "user") == entries
    assert await driver.load(TASK, "user", last=2) == entries[-2:]
    for data in payloads:
        await driver.write(TASK, "input", data, fence=None)
        assert (await driver.read(TASK, "input")).data == data


ODD = ["{}", "}{", "a{b}c", "{", "}", "{{a}}", "", "a.00", "é", "\0", "a}", "%7B"]


@pytest.mark.parametrize("name", ODD, ids=repr)
def test_all_keys_of_a_scope_lie_in_one_slot(name: str) -> None:
    """H-R9: whatever braces namespace and id hold, and different names make different keys."""
    keys = Keys(name)
    scope = keys.of(Scope("task", name))
    bucket = scope.bucket
    together = {
        *scope.record,
        *scope.log("api"),
        *scope.log("user"),
        keys.staged(bucket),
        *keys.generation(bucket, b"0" * 16),
    }
    assert len(together) == 11
    assert len({key_slot(key) for key in together}) == 1
    others = {
        key for other in ODD if other != name for key in Keys(other).of(Scope("task", name)).record
    }
    assert not together & others


def test_ids_are_spread_over_all_buckets() -> None:
    """A cluster's nodes share the load of one namespace."""
    keys = Keys("n")
    assert {keys.bucket(f"task-{number}") for number in range(4000)} == set(range(BUCKETS))
    assert len({key_slot(keys.index(bucket)) for bucket in range(BUCKETS)}) > BUCKETS * 0.9


async def test_no_key_expires(driver: RedisDriver, client: Redis, namespace: str) -> None:
    """H-R16: no TTL can take a fence along."""
    owner = await owned(driver)
    for name, mutation in MUTATIONS.items():
        if name != "claim":
            await mutation(driver, owner.fence())
            keys = [key.encode("latin-1") async for key, _ in keys_of(client, namespace)]
            assert keys
            assert {await client.ttl(key) for key in keys} == {-1}


async def test_appends_cost_the_same_whatever_the_log_holds(
    start: Callable[..., Server], open_driver: Open
) -> None:
    """A9: the number of commands in an append to 5,000 entries is that of one to none."""
    server = start()  # of its own: nobody else's commands are counted
    driver = await open_driver(server.url)
    client = client_of(server)

    async def calls() -> int:
        stats = await client.info("commandstats")
        return sum(stat["calls"] for name, stat in stats.items() if name != "cmdstat_info")

    owner = await owned(driver)
    counts: list[int] = []
    for size in (0, 5000):
        await driver.replace(
            TASK, "api", [Entry(f"{n}", b"x") for n in range(size)], fence=owner.fence()
        )
        before = await calls()
        await driver.append(TASK, "api", [Entry("new", b"x")], fence=owner.fence())
        counts.append(await calls() - before)
    await client.aclose()
    # The first append moves the record out of the list of empty ones.
    assert counts[1] <= counts[0]
