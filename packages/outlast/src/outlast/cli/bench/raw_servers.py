"""The raw drivers of servers."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from outlast.cli.bench.raw import Raw
from outlast.url import parse_url, scheme_of


class RawPostgres(Raw):
    """asyncpg, an INSERT in autocommit."""

    pool: int = 10

    def __init__(self, url: str) -> None:
        """Work in tables of its own."""
        super().__init__()
        self._url = f"postgresql:{url.partition(':')[2]}"

    async def open(self) -> None:
        self._db: Any = await import_module("asyncpg").connect(self._url)
        for table in (self.name, f"{self.name}_rows"):
            await self._db.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, data bytea)")

    async def write(self, data: bytes) -> None:
        await self._db.execute(f"INSERT INTO {self.name} (data) VALUES ($1)", data)

    async def fill(self, rows: Sequence[bytes]) -> None:
        await self._db.executemany(
            f"INSERT INTO {self.name}_rows (data) VALUES ($1)", [(row,) for row in rows]
        )

    async def read(self) -> int:
        return len(await self._db.fetch(f"SELECT data FROM {self.name}_rows ORDER BY id"))

    async def aclose(self) -> None:
        await self._db.execute(f"DROP TABLE {self.name}, {self.name}_rows")
        await self._db.close()


class RawMysql(Raw):
    """asyncmy, an INSERT in autocommit."""

    pool: int = 10

    def __init__(self, url: str) -> None:
        """Work in tables of its own."""
        super().__init__()
        self._parts = parse_url(url)

    async def open(self) -> None:
        self._db: Any = await import_module("asyncmy").connect(
            host=self._parts.host,
            port=self._parts.port or 3306,
            user=self._parts.username,
            password=self._parts.password or "",
            db=self._parts.path.strip("/"),
            autocommit=True,
        )
        for table in (self.name, f"{self.name}_rows"):
            await self._run(
                f"CREATE TABLE {table} (id bigint AUTO_INCREMENT PRIMARY KEY, data longblob)"
            )

    async def _run(self, statement: str, *values: object) -> Any:
        async with self._db.cursor() as cursor:
            await cursor.execute(statement, values)
            return await cursor.fetchall()

    async def write(self, data: bytes) -> None:
        await self._run(f"INSERT INTO {self.name} (data) VALUES (%s)", data)

    async def fill(self, rows: Sequence[bytes]) -> None:
        for row in rows:
            await self._run(f"INSERT INTO {self.name}_rows (data) VALUES (%s)", row)

    async def read(self) -> int:
        return len(await self._run(f"SELECT data FROM {self.name}_rows ORDER BY id"))

    async def aclose(self) -> None:
        await self._run(f"DROP TABLE {self.name}, {self.name}_rows")
        await self._db.ensure_closed()


class RawRedis(Raw):
    """redis-py, an RPUSH."""

    def __init__(self, url: str) -> None:
        """Work on keys of its own."""
        super().__init__()
        scheme = "rediss" if scheme_of(url) in ("rediss", "valkeys") else "redis"
        self._url = f"{scheme}:{url.partition(':')[2]}"

    async def open(self) -> None:
        redis = import_module("redis.asyncio")
        pool: Any = redis.BlockingConnectionPool.from_url(self._url, max_connections=32)
        self._client: Any = redis.Redis.from_pool(pool)
        await self._client.ping()

    async def write(self, data: bytes) -> None:
        await self._client.rpush(self.name, data)

    async def fill(self, rows: Sequence[bytes]) -> None:
        await self._client.rpush(f"{self.name}_rows", *rows)

    async def read(self) -> int:
        return len(await self._client.lrange(f"{self.name}_rows", 0, -1))

    async def aclose(self) -> None:
        await self._client.delete(self.name, f"{self.name}_rows")
        await self._client.aclose()


class RawMongodb(Raw):
    """PyMongo's asyncio client, an ``insert_one`` for the journals of a majority."""

    def __init__(self, url: str) -> None:
        """Work in collections of its own."""
        super().__init__()
        self._url = url

    async def open(self) -> None:
        pymongo = import_module("pymongo")
        self._client: Any = pymongo.AsyncMongoClient(self._url, w="majority", journal=True)
        database = self._client.get_default_database("outlast")
        self._written, self._rows = database[self.name], database[f"{self.name}_rows"]

    async def write(self, data: bytes) -> None:
        await self._written.insert_one({"data": data})

    async def fill(self, rows: Sequence[bytes]) -> None:
        await self._rows.insert_many([{"_id": n, "data": row} for n, row in enumerate(rows)])

    async def read(self) -> int:
        return len(await self._rows.find().sort("_id", 1).to_list(None))

    async def aclose(self) -> None:
        await self._written.drop()
        await self._rows.drop()
        await self._client.close()


class RawS3(Raw):
    """boto3, a ``put_object`` in a thread; many rows are one object."""

    def __init__(self, url: str, **options: Any) -> None:
        """Work under a prefix of its own."""
        super().__init__()
        parts = urlsplit(url)
        self._bucket = parts.netloc
        self._prefix = f"{parts.path.strip('/')}/{self.name}".lstrip("/")
        region = options.pop("region", None)
        self._options = {**options, "region_name": region}
        self._count = 0
        self._threads = ThreadPoolExecutor(16)

    async def open(self) -> None:
        config = import_module("botocore.config").Config(max_pool_connections=16)
        self._client: Any = await asyncio.to_thread(
            lambda: import_module("boto3").client("s3", config=config, **self._options)
        )

    async def write(self, data: bytes) -> None:
        self._count += 1
        await self._put(str(self._count), data)

    async def _put(self, name: str, data: bytes) -> None:
        def put() -> None:
            self._client.put_object(Bucket=self._bucket, Key=f"{self._prefix}/{name}", Body=data)

        await asyncio.get_running_loop().run_in_executor(self._threads, put)

    async def fill(self, rows: Sequence[bytes]) -> None:
        self._filled = len(rows)
        await self._put("rows", b"".join(rows))

    async def read(self) -> int:
        def get() -> None:
            answer = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}/rows")
            answer["Body"].read()

        await asyncio.get_running_loop().run_in_executor(self._threads, get)
        return self._filled

    async def aclose(self) -> None:
        names = [*map(str, range(1, self._count + 1)), "rows"]
        for start in range(0, len(names), 1000):
            listed = [{"Key": f"{self._prefix}/{name}"} for name in names[start : start + 1000]]
            await asyncio.to_thread(
                self._client.delete_objects, Bucket=self._bucket, Delete={"Objects": listed}
            )
        self._client.close()
        self._threads.shutdown()


__all__ = ["RawMongodb", "RawMysql", "RawPostgres", "RawRedis", "RawS3"]
