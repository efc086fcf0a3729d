"""A driver that keeps what registers hold in Redis, by whatever redis-py is found first.

Everything else of it is the memory driver. Run as a program it holds itself to the checks of
cancelled reads and prints what came of them: ``python redis_py.py REDIS_URL``.
"""

import json
import secrets
import sys
from collections.abc import Mapping
from typing import Any

import redis.asyncio
from redis import __version__

import outlast
from outlast.backends.memory import MemoryDriver
from outlast.contracts import DriverBackend
from outlast.driver import Fence, Index, Page, Scope, ScopeKind, Value, Where
from outlast_contract.engine import run_check_sync, select_checks
from outlast_contract.faults.endpoints import moved
from outlast_contract.faults.wires import Address
from outlast_contract.harness import UrlHarness

CHECK = "a_read_cancelled_at_an_exchange_disturbs_no_other"


class Driver(MemoryDriver):
    """Registers hold a name in memory, and the bytes of that name are in Redis."""

    def __init__(self, store: str, url: str, *, namespace: str) -> None:
        super().__init__(store, namespace=namespace)
        self._client: Any = redis.asyncio.Redis.from_url(url)

    async def aclose(self) -> None:
        await self._client.connection_pool.disconnect()

    async def _filled(self, value: Value) -> Value:
        if value.data is None:
            return value
        return value._replace(data=await self._client.get(value.data))

    async def read(self, scope: Scope, register: str) -> Value:
        return await self._filled(await super().read(scope, register))

    async def claim(self, scope: Scope, claim_id: str, **options: Any) -> Value:
        return await self._filled(await super().claim(scope, claim_id, **options))

    async def scan(self, kind: ScopeKind, *, where: Where, after: str | None, limit: int) -> Page:
        page = await super().scan(kind, where=where, after=after, limit=limit)
        items = [item._replace(value=await self._filled(item.value)) for item in page.items]
        return page._replace(items=items)

    async def write(
        self,
        scope: Scope,
        register: str,
        data: bytes | None,
        *,
        fence: Fence | None,
        index: Index | None = None,
        if_version: int | None = None,
    ) -> int:
        name = None
        if data is not None:
            name = f"known-faults:{secrets.token_hex(8)}".encode()
            await self._client.set(name, data, ex=300)
        return await super().write(
            scope, register, name, fence=fence, index=index, if_version=if_version
        )


class Harness(UrlHarness):
    """One store of a random name, in memory and in Redis."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._store = f"known-faults-{secrets.token_hex(8)}"

    async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
        return self._make(str(self.url), namespace, **options)

    async def open_through(
        self, namespace: str, addresses: Mapping[Address, Address], **options: Any
    ) -> outlast.Backend:
        url, _ = moved(str(self.url), {}, addresses)
        return self._make(url, namespace, **options)

    def _make(self, url: str, namespace: str, **options: Any) -> outlast.Backend:
        driver = Driver(self._store, url, namespace=namespace)
        return DriverBackend(driver, namespace=namespace, **options)


def main() -> None:
    """Print version, status, clause and detail as JSON."""
    (check,) = [one for one in select_checks(tiers=["faults"]) if one.name == CHECK]
    result = run_check_sync(check, lambda: Harness(sys.argv[1]))
    found = [__version__, result.status, result.clause, result.detail]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
