"""A cluster of three masters: slots on the move, a master that dies."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import key_slot  # pyright: ignore[reportPrivateImportUsage]
from redis_support import Open, Owner, claim_id, client_of

from outlast.driver import Entry, Scope, Where
from outlast.errors import ConfigurationError, FencedError, OutcomeUnknownError, UnavailableError
from outlast_contract import Settings
from outlast_contract.harness import UrlHarness
from outlast_contract.mutations import KINDS
from outlast_contract.restarts import Load, survive
from outlast_contract.servers import Server
from outlast_redis import RedisDriver
from outlast_redis._keys import Keys

MOVES = min(10, Settings.from_environment().kills)
"""Fewer in short runs, like kills."""

Start = Callable[..., Server]


@pytest.fixture
def cluster(start: Start) -> Server:
    """A cluster of the test's own."""
    return start("redis-cluster")


@pytest.fixture
async def nodes(cluster: Server) -> AsyncIterator[list[Redis]]:
    """A client of each node."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(Redis(host=host, port=port, decode_responses=True))
            for host, port in cluster.addresses
        ]


async def node_ids(nodes: list[Redis]) -> list[str]:
    return [await node.execute_command("CLUSTER MYID") for node in nodes]


async def owner_of(nodes: list[Redis], slot: int) -> int:
    """Which node has a slot."""
    for number, node in enumerate(nodes):
        for first, last, (_, port, *_), *_ in await node.execute_command("CLUSTER SLOTS"):
            if first <= slot <= last:
                return [int(n.connection_pool.connection_kwargs["port"]) for n in nodes].index(port)
        assert number < 0, "no node has the slot"
    raise AssertionError


async def migrate(nodes: list[Redis], slot: int, source: int, target: int) -> AsyncIterator[None]:
    """Move a slot as redis-cli does; gives control back between the steps."""
    ids = await node_ids(nodes)
    await nodes[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    await nodes[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    yield
    port = nodes[target].connection_pool.connection_kwargs["port"]
    while keys := await nodes[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
        await nodes[source].execute_command(
            "MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys
        )
        yield
    # The source last but for those that have no part in it: a slot never is without an owner.
    for node in (nodes[target], nodes[source], *nodes):
        await node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
    yield


async def test_a_slot_moves_under_an_owner(
    cluster: Server, nodes: list[Redis], open_driver: Open, namespace: str
) -> None:
    """Calls are redirected, or told to come again; nothing is lost, doubled or let past a fence."""
    driver: RedisDriver = await open_driver(cluster.url)
    scope = Scope("task", "t")
    keys = Keys(namespace)
    slot = key_slot(keys.of(scope).head)
    source = await owner_of(nodes, slot)
    target = (source + 1) % 3
    stale = Owner((await driver.claim(scope, claim_id(1))).epoch, claim_id(1))
    owner = Owner((await driver.claim(scope, claim_id(2))).epoch, claim_id(2))
    await driver.write(scope, "state", b"x", fence=owner.fence())
    done: list[str] = []
    number = 0
    refusals: list[UnavailableError] = []
    async for _ in migrate(nodes, slot, source, target):
        for _ in range(3):
            number += 1
            fence = owner.fence()
            try:
                await driver.append(scope, "api", [Entry(f"m{number}", b"x")], fence=fence)
            except UnavailableError as error:
                refusals.append(error)
            else:
                done.append(f"m{number}")
            with pytest.raises((FencedError, UnavailableError)):
                await driver.append(scope, "api", [Entry("stale", b"x")], fence=stale.fence())
    assert await owner_of(nodes, slot) == target
    assert [entry.id for entry in await driver.load(scope, "api")] == done
    assert refusals  # While keys are on both sides, a script cannot run.
    assert all(error.applied is False for error in refusals)
    await driver.append(scope, "api", [Entry("last", b"x")], fence=owner.fence())
    page = await driver.scan("task", where=Where(), after=None, limit=10)
    assert [item.id for item in page.items] == ["t"]
    # A client that starts now finds it at its new place.
    fresh: RedisDriver = await open_driver(cluster.url)
    assert (await fresh.read(scope, "state")).data == b"x"


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_slot_moves_under_load(cluster: Server, nodes: list[Redis], namespace: str) -> None:
    """Owners of one slot go on between all steps of its moves: nothing done is lost, no superseded
    claim writes, and calls fail by documented errors while it moves, not afterwards.
    """
    keys = Keys(namespace)
    slot = key_slot(keys.of(Scope("task", "t")).head)
    made = (Scope(kind, f"{kind}{number}") for number in range(20_000) for kind in KINDS)
    scopes = list(islice((one for one in made if key_slot(keys.of(one).head) == slot), 6))

    async def move(load: Load, _: int) -> None:
        source = await owner_of(nodes, slot)
        with load.disturbed("a slot moves"):
            async for _ in migrate(nodes, slot, source, (source + 1) % 3):
                await load.go_on(3)

    harness = UrlHarness(cluster.url)
    history = await survive(
        move, harness, times=MOVES, scopes=scopes, namespace=namespace, survives=True
    )
    assert {scope.kind for scope in scopes} == set(KINDS)
    assert history.count(error="UnavailableError") > 0  # Keys were on both sides.
    assert history.count(error="FencedError") > 0


@pytest.mark.parametrize("kind", ["unknown-endpoint", "hostname"])
async def test_nodes_without_a_host_are_on_that_of_the_one_that_was_asked(
    cluster: Server, nodes: list[Redis], open_driver: Open, namespace: str, kind: str
) -> None:
    """As where a cluster is behind one address, or its nodes do not know their names."""
    for node in nodes:
        await node.config_set("cluster-preferred-endpoint-type", kind)
    driver: RedisDriver = await open_driver(cluster.url)
    scopes = [Scope("task", f"t{number}") for number in range(12)]
    for scope in scopes:
        await driver.write(scope, "state", scope.id.encode(), fence=None)
    slot = key_slot(Keys(namespace).of(scopes[0]).head)
    source = await owner_of(nodes, slot)
    async for _ in migrate(nodes, slot, source, (source + 1) % 3):
        pass
    for scope in scopes:
        assert (await driver.read(scope, "state")).data == scope.id.encode()


async def test_a_slot_that_moved_is_asked_for_at_its_new_node(
    cluster: Server, nodes: list[Redis], open_driver: Open, namespace: str
) -> None:
    """Told by a redirection or by the end of its old node; else each call would be redirected, or
    fail for ever.
    """
    scopes = [Scope("task", "t"), Scope("task", "u")]
    slots = [key_slot(Keys(namespace).of(scope).head) for scope in scopes]
    told, untold = await open_driver(cluster.url), await open_driver(cluster.url)
    for scope in scopes:
        await told.write(scope, "state", b"x", fence=None)
        await untold.read(scope, "state")
    source = await owner_of(nodes, slots[0])
    target = (source + 1) % 3
    async for _ in migrate(nodes, slots[0], source, target):
        pass
    for _ in range(2):
        assert (await told.read(scopes[0], "state")).data == b"x"
    link: Any = told._link
    # Found at once, without being asked for anew.
    assert [port for first, last, (_, port) in link._slots if first <= slots[0] <= last] == [
        cluster.addresses[target][1]
    ]
    await asyncio.to_thread(cluster.kill, source)
    with pytest.raises(UnavailableError):
        await untold.read(scopes[0], "state")
    assert (await untold.read(scopes[0], "state")).data == b"x"


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_node_that_lost_the_others_is_asked_no_more(
    cluster: Server, nodes: list[Redis], open_driver: Open, namespace: str, calls: int
) -> None:
    """E2: it does nothing, says so, and does not know who has its slots now; the others do."""
    driver: RedisDriver = await open_driver(cluster.url)
    link: Any = driver._link
    keys = Keys(namespace)
    # The first that would be asked.
    first, last, (_, port) = link._slots[0]
    source = [address[1] for address in cluster.addresses].index(port)
    scopes = [Scope("task", f"t{number}") for number in range(200)]
    here = [one for one in scopes if first <= key_slot(keys.of(one).head) <= last][:calls]
    ids = await node_ids(nodes)
    # Not by FORGET, which a node tells the ones that it knows still. A master with keys keeps them.
    await nodes[source].execute_command("FLUSHALL")
    await nodes[source].execute_command("CLUSTER", "RESET")
    for scope in here:
        slot = key_slot(keys.of(scope).head)
        for other in {0, 1, 2} - {source}:
            target = ids[(source + 1) % 3]
            await nodes[other].execute_command("CLUSTER", "SETSLOT", slot, "NODE", target)
    commands = [(keys.of(scope).head, (b"GET", keys.of(scope).head)) for scope in here]
    with pytest.raises(UnavailableError, match="CLUSTERDOWN") as caught:
        await link.send_all(commands)
    assert caught.value.applied is False
    assert await link.send_all(commands) == [None] * calls


async def test_an_importing_node_is_asked_on_the_connection_that_asks(
    cluster: Server, nodes: list[Redis], open_driver: Open, namespace: str
) -> None:
    """ASK: what has moved already is read from the new node, also by many calls at once."""
    driver: RedisDriver = await open_driver(cluster.url)
    keys = Keys(namespace)
    bucket = keys.bucket("t")
    ids = [f"t{n}" for n in range(20_000) if keys.bucket(f"t{n}") == bucket][:40]
    for scope_id in ids:
        await driver.write(Scope("task", scope_id), "state", scope_id.encode(), fence=None)
    slot = key_slot(keys.index(bucket))
    source = await owner_of(nodes, slot)
    moved = scanned = 0
    async for _ in migrate(nodes, slot, source, (source + 1) % 3):
        moved += 1
        with contextlib.suppress(UnavailableError):  # while its keys are on both sides
            page = await driver.scan("task", where=Where(), after=None, limit=100)
            assert sorted(item.id for item in page.items) == sorted(ids)
            scanned += not await nodes[source].execute_command("CLUSTER", "COUNTKEYSINSLOT", slot)
        if moved % 8 == 0:
            values = await asyncio.gather(
                *(driver.read(Scope("task", scope_id), "state") for scope_id in ids)
            )
            assert [value.data for value in values] == [scope_id.encode() for scope_id in ids]
    assert moved >= 40
    assert scanned >= 2  # before the new node has the slot, and after
    page = await driver.scan("task", where=Where(), after=None, limit=100)
    assert sorted(item.id for item in page.items) == sorted(ids)


async def test_a_master_dies_and_comes_back(
    cluster: Server, nodes: list[Redis], open_driver: Open, namespace: str
) -> None:
    """Documented errors only, the other slots go on, and no acknowledged write is missing."""
    driver: RedisDriver = await open_driver(cluster.url)
    keys = Keys(namespace)
    scopes: list[Scope] = []
    here = Counter[int]()
    for scope in (Scope("task", f"t{number}") for number in range(1000)):
        node = await owner_of(nodes, key_slot(keys.of(scope).head))
        if here[node] < 4:
            scopes.append(scope)
            here[node] += 1
        if here.total() == 12:
            break
    owners = {
        scope: Owner((await driver.claim(scope, claim_id(1))).epoch, claim_id(1))
        for scope in scopes
    }
    done: dict[Scope, list[str]] = {scope: [] for scope in scopes}

    async def append_everywhere(name: str) -> int:
        failures = 0
        for scope in scopes:
            try:
                await driver.append(scope, "api", [Entry(name, b"x")], fence=owners[scope].fence())
            except (UnavailableError, OutcomeUnknownError):
                failures += 1
            else:
                done[scope].append(name)
        return failures

    assert await append_everywhere("before") == 0
    await asyncio.to_thread(cluster.kill, 1)
    failures = [await append_everywhere(f"during{number}") for number in range(3)]
    assert all(0 < count < len(scopes) for count in failures)
    await asyncio.to_thread(cluster.restart, 1)
    assert await append_everywhere("after") == 0
    for scope in scopes:
        assert [entry.id for entry in await driver.load(scope, "api")] == done[scope]
        assert (await driver.claim(scope, claim_id(2))).epoch == 2


async def test_a_single_server_link_refuses_a_node_of_a_cluster(
    cluster: Server, open_driver: Open
) -> None:
    """MOVED would be the answer to most calls; the right scheme is named at once."""
    host, port = cluster.addresses[0]
    with pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        await open_driver(f"redis://{host}:{port}")
    await open_driver(f"redis://{host}:{port}?cluster=true")


async def test_a_lent_cluster_client_is_used_and_left_open(cluster: Server, namespace: str) -> None:
    """Whether it decodes answers does not matter."""
    client = client_of(cluster, decode_responses=True)
    driver = RedisDriver.from_client(client, namespace=namespace)
    await driver.setup(create=True)
    scope = Scope("run", "r")
    await driver.write(scope, "checkpoint", b"\xff\0", fence=None)
    assert (await driver.read(scope, "checkpoint")).data == b"\xff\0"
    await driver.aclose()
    assert await client.set("key", "value")
    assert await client.get("key") == "value"
    await client.aclose()
