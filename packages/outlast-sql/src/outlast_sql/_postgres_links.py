"""Connections to PostgreSQL through asyncpg or psycopg."""

import asyncio
import contextlib
import importlib
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from outlast.errors import ConfigurationError, OutlastError
from outlast.url import StoreURL, redact
from outlast_sql._links import CLOSING_SECONDS, IDLE_SECONDS, Link, abandon_transport, check_files
from outlast_sql._postgres_errors import sqlstate_of
from outlast_sql._reads import Row

_BEGIN: Final = f"""
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL idle_in_transaction_session_timeout = {round(IDLE_SECONDS * 1000)}
"""
_FORGOTTEN: Final = frozenset({"0A000", "26000", "42P05"})
"""What the connection prepared is not what the server has: a changed table, or a pooler between."""

OPTIONS: Final = frozenset(
    {"application_name", "host", "sslcert", "sslkey", "sslmode", "sslrootcert"}
)
"""Of libpq, in the URL; both drivers know them."""
ASYNCPG_OPTIONS: Final = frozenset({"statement_cache_size"})
PSYCOPG_OPTIONS: Final = frozenset({"prepare_threshold"})


class AsyncpgLink(Link):
    """A connection of asyncpg."""

    begin = _BEGIN

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[Row]:
        rows: list[Row] = await self._connection.fetch(sql, *parameters)
        return rows

    async def run(self, sql: str) -> None:
        await self._connection.execute(sql)

    async def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await self._connection.executemany(sql, rows)

    def survives(self, error: BaseException) -> bool:
        return _survives(error) and not self._connection.is_closed()

    def sent_nothing(self, error: BaseException) -> bool:
        # Also between the server's last words and the end of the connection.
        return type(error).__name__ in ("InterfaceError", "InternalClientError")

    async def close(self) -> None:
        try:
            # First it sees the request to cancel a statement to its end, if there is one.
            await self._connection.close(timeout=CLOSING_SECONDS)
        except Exception:  # noqa: BLE001 - in whatever state it is
            self._connection.terminate()

    def abandon(self) -> None:
        abandon_transport(getattr(self._connection, "_transport", None))

    @property
    def _socket(self) -> Any:
        if self._connection.is_closed():
            return None
        return self._connection._transport.get_extra_info("socket")  # noqa: SLF001


class PsycopgLink(Link):
    """A connection of psycopg.

    A statement that is cancelled waits for the server to say so, 10 seconds if it says nothing. So
    each runs in a task, which the caller leaves at once, and `close` waits for.
    """

    begin = _BEGIN

    def __init__(self, connection: Any) -> None:
        from psycopg import AsyncRawCursor
        from psycopg.pq import Format
        from psycopg.rows import tuple_row

        self._connection = connection
        self._cursor: Any = AsyncRawCursor(connection, row_factory=tuple_row)
        self._cursor.format = Format.BINARY
        _adapt(self._cursor.adapters)
        self._autocommit = True
        self._left: asyncio.Task[Any] | None = None

    async def borrowed(self) -> None:
        self._autocommit = self._connection.autocommit
        await self._connection.set_autocommit(True)

    async def returned(self) -> None:
        await self._connection.set_autocommit(self._autocommit)

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[Row]:
        rows: Sequence[Row] = await self._in_task(self._fetch(sql, parameters))
        return rows

    async def _fetch(self, sql: str, parameters: Sequence[Any]) -> Sequence[Row]:
        await self._cursor.execute(sql, parameters)
        if self._cursor.description is None:
            return ()
        rows: list[Row] = await self._cursor.fetchall()
        return rows

    async def run(self, sql: str) -> None:
        # What is prepared is a single command, and this may be several.
        await self._in_task(self._connection.execute(sql, prepare=False))

    async def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        await self._in_task(self._cursor.executemany(sql, rows))

    async def _in_task(self, call: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.get_running_loop().create_task(call, name="outlast-statement")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._left = task
            task.cancel()
            raise

    def survives(self, error: BaseException) -> bool:
        return _survives(error) and not self._connection.closed

    def sent_nothing(self, error: BaseException) -> bool:
        return "connection is closed" in str(error)

    async def close(self) -> None:
        for _ in range(2):
            if self._left is not None and not self._left.done():
                await asyncio.wait([self._left], timeout=CLOSING_SECONDS / 2)
                self._left.cancel()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._connection.close()

    def abandon(self) -> None:
        self._connection.pgconn.finish()

    @property
    def _socket(self) -> Any:
        return None if self._connection.closed else self._connection.fileno()


def _adapt(adapters: Any) -> None:
    """Let values travel as they are, whatever the application registered for its own.

    As text, bytes in an array would mean others where standard_conforming_strings is off.
    """
    from psycopg.types import array, numeric, string

    adapters.register_dumper(bytes, string.BytesBinaryDumper)
    adapters.register_dumper(int, numeric.IntBinaryDumper)
    adapters.register_dumper(list, array.ListBinaryDumper)
    adapters.register_loader("bytea", string.ByteaBinaryLoader)
    for name in ("int2", "int4", "int8"):
        adapters.register_loader(name, getattr(numeric, f"{name.title()}BinaryLoader"))


def _survives(error: BaseException) -> bool:
    if isinstance(error, OutlastError):
        return True
    state, is_fatal = sqlstate_of(error)
    return state is not None and not is_fatal and state not in _FORGOTTEN


async def connect_asyncpg(url: StoreURL, options: Mapping[str, Any], timeout: float) -> AsyncpgLink:
    """A new connection by asyncpg."""
    asyncpg = importlib.import_module("asyncpg")  # It has no types.
    query = dict(url.query)
    arguments: dict[str, Any] = {
        "host": query.pop("host", None) or url.host or None,
        "port": url.port,
        "user": url.username,
        "password": url.password,
        "database": url.path[1:] or None,
        "timeout": timeout,
        **options,
    }
    cache = query.pop("statement_cache_size", None)
    if cache is not None:
        arguments["statement_cache_size"] = _whole(cache, "statement_cache_size", url)
    if query.get("sslmode") != "disable":
        check_files(url, "sslcert", "sslkey", "sslrootcert")
    if query:
        # The form in which asyncpg takes options of libpq.
        arguments["dsn"] = "postgresql://?" + urlencode(query)
    return AsyncpgLink(await asyncpg.connect(**arguments))


async def connect_psycopg(url: StoreURL, options: Mapping[str, Any], timeout: float) -> PsycopgLink:
    """A new connection by psycopg."""
    import psycopg

    query: dict[str, Any] = dict(url.query)
    threshold = query.pop("prepare_threshold", None)
    arguments: dict[str, Any] = {
        "host": url.host or None,
        "port": url.port,
        "user": url.username,
        "password": url.password,
        "dbname": url.path[1:] or None,
        "connect_timeout": max(2, round(timeout)),
        **query,
        **options,
    }
    connection = await psycopg.AsyncConnection.connect(
        autocommit=True, **{name: value for name, value in arguments.items() if value is not None}
    )
    if threshold is not None:
        connection.prepare_threshold = _whole(threshold, "prepare_threshold", url) or None
    return PsycopgLink(connection)


def _whole(text: str, name: str, url: StoreURL) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"{name} in {redact(url.text)!r} must be a whole number")
    return int(text)


__all__ = [
    "ASYNCPG_OPTIONS",
    "OPTIONS",
    "PSYCOPG_OPTIONS",
    "AsyncpgLink",
    "PsycopgLink",
    "connect_asyncpg",
    "connect_psycopg",
]
