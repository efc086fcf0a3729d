"""What the tests of this distribution share: harnesses, clients, a look past the driver."""

import asyncio
import atexit
import functools
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar

from redis.asyncio import Redis, RedisCluster

import outlast
import outlast_contract.stores.redis
from outlast.driver import Fence
from outlast_contract.faults.wires import Address
from outlast_contract.harness import Endpoints, Harness
from outlast_contract.servers import Server, shared_server, start_server
from outlast_redis import RedisBackend


class Owner:
    """A claim as the layer above keeps it: it counts."""

    def __init__(self, epoch: int, claim_id: str) -> None:
        self.epoch = epoch
        self.claim_id = claim_id
        self.seq = 0

    def fence(self) -> Fence:
        self.seq += 1
        return Fence(self.epoch, self.claim_id, self.seq, secrets.token_hex(8))


def claim_id(number: int) -> str:
    return f"{number:032x}"


def client_of(server: Server, **options: Any) -> "Redis | RedisCluster":
    """A client of redis-py, as an application would make it."""
    host, port = server.addresses[0]
    if len(server.addresses) > 1:
        return RedisCluster(host=host, port=port, **options)
    return Redis(host=host, port=port, **options)


class RedisHarness(outlast_contract.stores.redis.RedisHarness):
    """The shared Redis server, by URL."""

    kind: ClassVar[str] = "redis"

    def __init__(self) -> None:
        super().__init__("redis://")  # Known once it runs.

    async def start(self) -> None:
        self.server = await asyncio.to_thread(shared_server, self.kind)
        self.url = self.server.url
        self.server_kind = self.kind
        self.is_temporary = not self.server.is_external


class PasswordHarness(outlast_contract.stores.redis.RedisHarness):
    """A server that asks for a password, one for all tests of a process."""

    is_temporary = True

    def __init__(self) -> None:
        super().__init__("redis://")  # Known once it runs.

    async def start(self) -> None:
        host, port = (await asyncio.to_thread(_guarded_server)).addresses[0]
        self.url = f"redis://:{PASSWORD}@{host}:{port}/0"


PASSWORD = secrets.token_hex(12)


@functools.cache
def _guarded_server() -> Server:
    server = start_server("redis", "--requirepass", PASSWORD)
    atexit.register(server.close)
    return server


class ValkeyHarness(RedisHarness):
    """The shared Valkey server, by URL."""

    kind = "valkey"


class ClusterHarness(RedisHarness):
    """The shared cluster of three nodes, by URL."""

    kind = "redis-cluster"


class ClosingBackend(RedisBackend):
    """Closes the client that it was given, as its application would."""

    def __init__(self, client: "Redis | RedisCluster", **options: Any) -> None:
        super().__init__(client=client, **options)
        self._client = client
        self._process = os.getpid()

    async def open(self) -> None:
        try:
            await super().open()
        except outlast.NotSupportedError:
            raise  # To another event loop than the one that has it open.
        except Exception:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await super().aclose()
        if self._process == os.getpid():
            await self._client.aclose()


class LentHarness(Harness):
    """Clients of one server that an application made, which has their answers decoded."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        client = client_of(self._server, decode_responses=True)
        return ClosingBackend(client, namespace=namespace, **options)


class DecodingHarness(RedisHarness):
    """Ready clients that decode answers and repeat what failed: neither may show."""

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        client = client_of(self.server, decode_responses=True)
        return ClosingBackend(client, namespace=namespace, **options)

    async def start(self) -> None:
        await super().start()
        self.url = None

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        return await self._by_url.raw(namespace)

    async def wipe(self, namespace: str) -> None:
        await self._by_url.wipe(namespace)

    def server_faults(self) -> Mapping[str, Callable[[], Awaitable[object]]]:
        return self._by_url.server_faults()

    @property
    def _by_url(self) -> outlast_contract.stores.redis.RedisHarness:
        return outlast_contract.stores.redis.RedisHarness(self.server.url)

    def endpoints(self) -> Endpoints:
        return Endpoints(tuple(self.server.addresses), "redis")

    async def open_through(
        self, namespace: str, moved: Mapping[Address, Address], **options: Any
    ) -> outlast.Backend:
        host, port = moved[self.server.addresses[0]]
        client = Redis(host=host, port=port, decode_responses=True)
        return ClosingBackend(client, namespace=namespace, **options)


Open = Callable[..., Any]
"""The fixture ``open_driver``: ``await open_driver(url, namespace=, create=, ...)``."""
