"""One plain durable write, and one plain read of many rows, with the driver of each store.

This is what outlast is measured against: the same bytes, an open connection, the same server and
durability, and none of the promises.
"""

import abc
import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from outlast.url import scheme_of


class Raw(abc.ABC):
    """A raw driver on an open connection, with a place of its own in the store.

    Attributes:
        pool: How many connections outlast uses at most, where one serves one caller at a time.
    """

    pool: int = 1

    def __init__(self) -> None:
        """Choose the place's name."""
        self.name: str = f"outlast_bench_{secrets.token_hex(4)}"

    @abc.abstractmethod
    async def open(self) -> None:
        """Connect, and make the table, list or folder."""

    @abc.abstractmethod
    async def write(self, data: bytes) -> None:
        """One durable write, as plain as it can be."""

    @abc.abstractmethod
    async def fill(self, rows: Sequence[bytes]) -> None:
        """Put rows where `read` finds them."""

    @abc.abstractmethod
    async def read(self) -> int:
        """Read the rows of `fill` in one request, in order; return their number."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Remove everything and disconnect."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def write_all(connections: Sequence[Raw], writers: int, each: Sequence[bytes]) -> None:
    """Writers at once, each with its own writes one behind the other, over some connections."""
    free: asyncio.Queue[Raw] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    is_shared = len(connections) == 1

    async def writer() -> None:
        for data in each:
            if is_shared:
                await connections[0].write(data)
                continue
            connection = await free.get()
            try:
                await connection.write(data)
            finally:
                free.put_nowait(connection)

    await asyncio.gather(*(writer() for _ in range(writers)))


_MODULES: Mapping[str, str] = {
    "file": "outlast.cli.bench.raw_embedded:RawFile",
    "sqlite": "outlast.cli.bench.raw_embedded:RawSqlite",
    "postgresql": "outlast.cli.bench.raw_servers:RawPostgres",
    "mysql": "outlast.cli.bench.raw_servers:RawMysql",
    "mariadb": "outlast.cli.bench.raw_servers:RawMysql",
    "redis": "outlast.cli.bench.raw_servers:RawRedis",
    "rediss": "outlast.cli.bench.raw_servers:RawRedis",
    "valkey": "outlast.cli.bench.raw_servers:RawRedis",
    "valkeys": "outlast.cli.bench.raw_servers:RawRedis",
    "mongodb": "outlast.cli.bench.raw_servers:RawMongodb",
    "s3": "outlast.cli.bench.raw_servers:RawS3",
}


def raw_for(url: str, options: Mapping[str, Any] | None = None) -> Callable[[], Raw] | None:
    """Makes raw drivers for a store; ``None`` for a store of others, in memory, or a cluster."""
    from importlib import import_module

    scheme, _, variant = scheme_of(url).partition("+")
    if scheme not in _MODULES or variant == "cluster":
        return None
    module, _, name = _MODULES[scheme].partition(":")
    kind: type[Any] = getattr(import_module(module), name)
    return lambda: kind(url, **(options or {}))


__all__ = ["Raw", "raw_for", "write_all"]
