"""What a store takes up for 1,000 messages, after a sweep."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import outlast
from benchmarks.places import Place
from outlast.cli.bench.rows import Row, encoded, message

MESSAGES = 1000


async def measure_size(place: Place) -> Row:
    """Stored bytes, times those of the messages; the store holds nothing else."""
    held = _HELD[place.kind]
    async with outlast.open_backend(place.url, namespace="size", **place.options) as backend:
        before = await asyncio.to_thread(held, place)
        claim = await backend.persistence.claim_task("size")
        payload = 0
        for number in range(MESSAGES):
            one = message(number)
            # Behind the line that says what it is.
            payload += len(encoded(one).partition(b"\n")[2])
            await backend.persistence.append_api_message("size", one, claim=claim)
        await backend.sweep(older_than=timedelta(0))
        after = await asyncio.to_thread(held, place)
        await backend.persistence.delete_task("size", claim=claim)
        await backend.sweep(older_than=timedelta(0))
    return Row("size", (after - before) / payload)


def _files(place: Place) -> int:
    return sum(path.stat().st_size for path in place.folder.rglob("*") if path.is_file())


def _sqlite(place: Place) -> int:
    sqlite3: Any = import_module("sqlite3")
    connection = sqlite3.connect(place.url.removeprefix("sqlite:///"))
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return Path(place.url.removeprefix("sqlite:///")).stat().st_size
    finally:
        connection.close()


def _redis(place: Place) -> int:
    """Memory, with what the server needs around the bytes."""
    with import_module("redis").Redis.from_url(place.url) as client:
        return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter("*"))


def _mongodb(place: Place) -> int:
    """Documents as they are before the server compresses them, and indexes."""
    with import_module("pymongo").MongoClient(place.url) as client:
        found = client.get_default_database("outlast").command("dbStats")
        return int(found["dataSize"] + found["indexSize"])


def _s3(place: Place) -> int:
    options = dict(place.options)
    client = import_module("boto3").client("s3", region_name=options.pop("region"), **options)
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=urlsplit(place.url).netloc)
        return sum(each["Size"] for page in pages for each in page.get("Contents", ()))
    finally:
        client.close()


def _postgres(place: Place) -> int:
    async def ask() -> int:
        connection = await import_module("asyncpg").connect(place.url)
        try:
            await connection.execute("VACUUM")
            query = (
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
                " WHERE relname LIKE 'outlast%' AND relkind = 'r'"
            )
            return int(await connection.fetchval(query))
        finally:
            await connection.close()

    return asyncio.run(ask())


def _mariadb(place: Place) -> int:
    parts = urlsplit(place.url)

    async def ask() -> int:
        connection = await import_module("asyncmy").connect(
            host=parts.hostname,
            port=parts.port,
            user=parts.username,
            password=parts.password,
            db=parts.path.strip("/"),
        )
        async with connection.cursor() as cursor:
            await cursor.execute("ANALYZE TABLE outlast_entry, outlast_register, outlast_scope", ())
            await cursor.fetchall()
            await cursor.execute(
                "SELECT SUM(data_length + index_length) FROM information_schema.tables"
                " WHERE table_name LIKE 'outlast%%' AND table_schema = DATABASE()",
                (),
            )
            ((size,),) = await cursor.fetchall()
        await connection.ensure_closed()
        return int(size)

    return asyncio.run(ask())


_HELD: dict[str, Callable[[Place], int]] = {
    "file": _files,
    "sqlite": _sqlite,
    "redis": _redis,
    "mongodb": _mongodb,
    "s3": _s3,
    "postgres": _postgres,
    "mariadb": _mariadb,
}


__all__ = ["MESSAGES", "measure_size"]
