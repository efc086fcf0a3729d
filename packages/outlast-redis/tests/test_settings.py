"""Memory limits and persistence: what is declared, what is reported, what survives."""

from collections.abc import Awaitable, Callable

import pytest
from redis_support import Open, Owner, claim_id, client_of

import outlast
from outlast.driver import Entry, Scope
from outlast.errors import ConfigurationError, UnavailableError
from outlast_contract.servers import Server

Start = Callable[..., Server]
LONG = [Entry(f"{number}", bytes(2**19)) for number in range(4)]
POOR: dict[str, tuple[tuple[str, ...], str]] = {
    "evicting": (("--maxmemory-policy", "allkeys-lru", "--maxmemory", "8mb"), "noeviction"),
    "evicting without a limit yet": (("--maxmemory-policy", "allkeys-random"), "not set"),
    "snapshots only": (("--appendonly", "no", "--save", "900 1"), "last snapshot"),
    "log written later": (("--appendfsync", "everysec"), "appendfsync is everysec"),
    "log paused at times": (("--no-appendfsync-on-rewrite", "yes"), "no-appendfsync-on-rewrite"),
    "memory only": (("--appendonly", "no", "--save", ""), "everything"),
}


@pytest.mark.parametrize("name", POOR)
async def test_a_server_that_loses_writes_silently_is_reported(
    start: Start, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """D2, H-R10, H-R12: a warning by default, refused if strict; durability is not declared."""
    arguments, advice = POOR[name]
    server = start("redis", *arguments)
    async with outlast.open_backend(server.url) as backend:
        assert advice in caplog.text
        if "append" in arguments[0]:
            assert backend.capabilities.data_survives == {"process"}
            assert backend.capabilities.fences_survive == {"process"}
    with pytest.raises(ConfigurationError, match=advice):
        await outlast.open_backend(server.url, strict=True).open()


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
async def test_a_server_that_keeps_what_has_no_ttl_is_fine(start: Start, policy: str) -> None:
    """No key of ours has a TTL, so the policies on keys with one leave them alone."""
    server = start("redis", "--maxmemory-policy", policy, "--maxmemory", "64mb")
    async with outlast.open_backend(server.url, strict=True) as backend:
        assert backend.capabilities.data_survives == {"process", "server"}
        assert backend.capabilities.fences_survive == {"process", "server"}
        assert "failover" not in backend.capabilities.fences_survive  # H-R11


async def test_before_opening_only_what_always_holds_is_declared(shared: Server) -> None:
    """The server's settings are known once it was asked."""
    backend = outlast.open_backend(shared.url)
    assert backend.capabilities.data_survives == {"process"}
    async with backend:
        assert backend.capabilities.data_survives == {"process", "server"}


async def test_a_full_server_refuses_loudly_and_whole(start: Start, open_driver: Open) -> None:
    """H-R10: nothing is half applied, fences stand, and removing still works."""
    server = start("redis", "--maxmemory", "6mb")
    driver = await open_driver(server.url)
    scope = Scope("task", "t")
    owner = Owner((await driver.claim(scope, claim_id(1))).epoch, claim_id(1))
    stored: list[str] = []

    async def fill() -> None:
        for number in range(1000):
            entries = [Entry(f"m{number}", bytes(20_000)), Entry(f"m{number}b", b"x")]
            await driver.append(scope, "api", entries, fence=owner.fence())
            stored.extend(entry.id for entry in entries)

    with pytest.raises(UnavailableError, match="memory") as caught:
        await fill()
    assert caught.value.applied is False
    assert [entry.id for entry in await driver.load(scope, "api")] == stored
    async with client_of(server) as admin:
        await admin.config_set("maxmemory", "1mb")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: driver.claim(scope, claim_id(2)),
        lambda: driver.write(scope, "state", b"x", fence=owner.fence()),
        lambda: driver.replace(scope, "user", [Entry("u", b"x")], fence=owner.fence()),
        lambda: driver.replace(scope, "api", LONG, fence=owner.fence()),
    ]
    for call in calls:
        with pytest.raises(UnavailableError, match="memory") as caught:
            await call()
        assert caught.value.applied is False
    assert [entry.id for entry in await driver.load(scope, "api")] == stored
    await driver.remove(scope, fence=owner.fence())
    assert await driver.load(scope, "api") == []
    async with client_of(server) as admin:
        await admin.config_set("maxmemory", "0")
    value = await driver.claim(scope, claim_id(2))
    assert value.epoch == owner.epoch + 1


async def test_a_full_server_can_be_swept(start: Start, open_driver: Open) -> None:
    """C3: tombstones and their index go, although the server takes no more data."""
    server = start("redis")
    driver = await open_driver(server.url)
    for number in range(50):
        await driver.claim(Scope("task", f"t{number}"), claim_id(1))
    async with client_of(server) as admin:
        await admin.config_set("maxmemory", "1mb")
        with pytest.raises(UnavailableError):
            await driver.claim(Scope("task", "more"), claim_id(1))
        page = await driver.sweep(older_than=0, limit=100, dry_run=False, after=None)
        assert (page.tombstones, page.next) == (50, None)
        await admin.config_set("maxmemory", "0")
    assert (await driver.claim(Scope("task", "t1"), claim_id(2))).epoch == 2
