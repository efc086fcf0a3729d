"""The ways to reach a server: by each driver of ours, and by an engine that is lent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from outlast_contract.servers import Server, ServerUnavailable, shared_server
from outlast_sql import SqlDriver
from outlast_sql._mysql import MysqlDriver


def server_of(kind: str) -> Server:
    """The server of a kind that all tests share."""
    try:
        return shared_server(kind)
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")


SERVERS = {
    "asyncpg": ("postgres", "postgresql"),
    "psycopg": ("postgres", "postgresql+psycopg"),
    "lent asyncpg": ("postgres", "postgresql+asyncpg"),
    "lent psycopg": ("postgres", "postgresql+psycopg"),
    "mariadb": ("mariadb", "mariadb"),
    "mysql": ("mariadb", "mysql"),
    "lent asyncmy": ("mariadb", "mysql+asyncmy"),
}
"""Ways to reach a server: what it is, and the scheme. ``mysql`` stands for MySQL: no compound
statements."""


def url_of(way: str) -> str:
    """The URL of a way of `SERVERS`."""
    kind, scheme = SERVERS[way]
    return f"{scheme}://{server_of(kind).url.partition('://')[2]}"


@asynccontextmanager
async def server_driver(way: str, namespace: str) -> AsyncIterator[SqlDriver]:
    """A driver by a way of `SERVERS`."""
    engine = create_async_engine(url_of(way)) if way.startswith("lent") else None
    if engine is None:
        made = SqlDriver.from_url(url_of(way), namespace=namespace)
    else:
        made = SqlDriver.from_engine(engine, namespace=namespace)
    await made.setup(create=True)
    if way == "mysql":
        assert isinstance(made, MysqlDriver)
        made._compound = False
    yield made
    await made.aclose()
    if engine is not None:
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        await engine.dispose()


ON_SERVERS = [pytest.param(way, marks=pytest.mark.server) for way in SERVERS]
"""`SERVERS` as parameters of a test or fixture."""
