"""Broken drivers that copy what they write to where no reader of theirs looks, on real stores."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import pytest

import outlast
from outlast.contracts import DriverBackend
from outlast_contract.engine import Settings, run_check, select_checks
from outlast_contract.servers import Server, ServerUnavailable, shared_server, start_server
from outlast_contract.stores import harness_for

Copy = Callable[[bytes], Awaitable[object]]
Place = Callable[[str, Mapping[str, str], str], contextlib.AbstractAsyncContextManager[Copy]]
"""Keeps copies in the store of a URL and its options, under a name, until it is left."""


@contextlib.asynccontextmanager
async def in_keys(url: str, options: Mapping[str, str], name: str) -> AsyncGenerator[Copy]:
    from redis.asyncio import Redis, RedisCluster

    kind: Any = RedisCluster if "+cluster" in url else Redis
    client = kind.from_url(f"redis://{url.partition('://')[2]}")
    yield lambda data: client.rpush(name, data)
    await client.delete(name)
    await client.aclose()


@contextlib.asynccontextmanager
async def in_a_table(url: str, options: Mapping[str, str], name: str) -> AsyncGenerator[Copy]:
    asyncpg: Any = import_module("asyncpg")
    connection: Any = await asyncpg.connect(url)
    lock = asyncio.Lock()
    await connection.execute(f"CREATE TABLE {name} (data bytea)")

    async def copy(data: bytes) -> None:
        async with lock:
            await connection.execute(f"INSERT INTO {name} VALUES ($1)", data)

    yield copy
    await connection.execute(f"DROP TABLE {name}")
    await connection.close()


@contextlib.asynccontextmanager
async def in_a_mysql_table(url: str, options: Mapping[str, str], name: str) -> AsyncGenerator[Copy]:
    asyncmy: Any = import_module("asyncmy")
    parts = urlsplit(url)
    connection: Any = await asyncmy.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=parts.password or "",
        database=parts.path[1:],
        autocommit=True,
    )
    lock = asyncio.Lock()

    async def run(*statement: object) -> None:
        async with lock, connection.cursor() as cursor:
            await cursor.execute(*statement)

    await run(f"CREATE TABLE {name} (data longblob)")
    yield lambda data: run(f"INSERT INTO {name} VALUES (%s)", (data,))
    await run(f"DROP TABLE {name}")
    await connection.ensure_closed()


@contextlib.asynccontextmanager
async def in_a_collection(url: str, options: Mapping[str, str], name: str) -> AsyncGenerator[Copy]:
    from pymongo import AsyncMongoClient

    async with AsyncMongoClient[dict[str, Any]](url) as client:
        collection = client.get_default_database("outlast")[name]
        yield lambda data: collection.insert_one({"data": data})
        await collection.drop()


@contextlib.asynccontextmanager
async def in_documents(url: str, options: Mapping[str, str], name: str) -> AsyncGenerator[Copy]:
    """Among those of outlast."""
    from pymongo import AsyncMongoClient

    async with AsyncMongoClient[dict[str, Any]](url) as client:
        collection = client.get_default_database("outlast")["outlast_head"]
        yield lambda data: collection.insert_one(
            {"_id": f"{name}/{secrets.token_hex(8)}", "data": data}
        )
        await collection.delete_many({"_id": {"$regex": f"^{name}/"}})


@contextlib.asynccontextmanager
async def in_objects(url: str, options: Mapping[str, str], name: str) -> AsyncGenerator[Copy]:
    """Beside the prefix of the URL."""
    boto3: Any = import_module("boto3")
    named = {**options, "region_name": options["region"]}
    del named["region"]
    client = boto3.client("s3", **named)
    bucket = urlsplit(url).netloc
    keys: list[str] = []

    async def copy(data: bytes) -> None:
        keys.append(f"{name}/{len(keys)}")
        await asyncio.to_thread(client.put_object, Bucket=bucket, Key=keys[-1], Body=data)

    yield copy
    for key in keys:
        client.delete_object(Bucket=bucket, Key=key)


PLACES: Mapping[str, tuple[str, Place]] = {
    "redis": ("redis", in_keys),
    "redis-cluster": ("redis-cluster", in_keys),
    "postgres": ("postgres", in_a_table),
    "mariadb": ("mariadb", in_a_mysql_table),
    "mongodb, a collection": ("mongodb", in_a_collection),
    "mongodb, documents": ("mongodb", in_documents),
    "s3": ("s3", in_objects),
}


def copying(backend: outlast.Backend, copy: Copy) -> outlast.Backend:
    """The backend, whose driver keeps a copy of every list and of whatever is appended."""
    assert isinstance(backend, DriverBackend)
    driver: Any = backend.driver

    def copied(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def both(scope: Any, log: str, entries: Any, **rest: Any) -> Any:
            result = await call(scope, log, entries, **rest)
            await copy(b"".join(entry.data for entry in entries))
            return result

        return both

    driver.append, driver.replace = copied(driver.append), copied(driver.replace)
    return backend


@pytest.fixture
def server(where: str) -> Iterator[Server]:
    """One of its own for S3, where whatever others stored would be read, too."""
    kind, _ = PLACES[where]
    try:
        with (
            start_server(kind)
            if kind == "s3"
            else contextlib.nullcontext(shared_server(kind)) as found
        ):
            yield found
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")


@pytest.mark.server
@pytest.mark.parametrize("where", PLACES)
async def test_copies_outside_of_the_namespace_are_found(where: str, server: Server) -> None:
    """C3: what stays of a task stays somewhere, not only where the adapter looks."""
    kind, place = PLACES[where]
    url = f"{server.url}/prefix" if kind == "s3" else server.url
    harness: Any = harness_for(url, **server.options)()
    make = harness.open_with
    (check,) = [one for one in select_checks(clauses=["C3"]) if one.name == "nothing_stays_behind"]
    assert (await run_check(check, harness, Settings())).status == "passed"
    async with place(server.url, server.options, f"shadow_{secrets.token_hex(4)}") as copy:

        async def open_with(namespace: str, **options: Any) -> outlast.Backend:
            return copying(await make(namespace, **options), copy)

        harness.open_with = open_with
        result = await run_check(check, harness, Settings())
    assert (result.status, result.clause) == ("failed", "C3"), result
    assert "shadow_" in result.detail
