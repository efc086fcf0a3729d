"""PostgreSQL through asyncpg, and MySQL and MariaDB through asyncmy, in the tables of outlast."""

import abc
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Protocol
from urllib.parse import unquote, urlsplit

from outlast_contract.harness import UrlHarness
from outlast_contract.stores import MANY


class _Fetch(Protocol):
    def __call__(self, query: str, *namespace: bytes) -> Awaitable[Sequence[Sequence[Any]]]: ...


_SCOPES = "SELECT sid FROM outlast_scope"
_QUERIES = {
    "outlast_floor": "SELECT * FROM outlast_floor WHERE namespace = {ns}",
    "outlast_scope": "SELECT * FROM outlast_scope WHERE namespace = {ns}",
    # What has lost its scope belongs to nobody, and would be left over.
    **{
        table: f"SELECT * FROM {table} WHERE sid IN ({_SCOPES} WHERE namespace = {{ns}})"  # noqa: S608 - constants
        f" OR sid NOT IN ({_SCOPES})"
        for table in ("outlast_register", "outlast_entry")
    },
}


class _ServerHarness(UrlHarness, abc.ABC):
    _quote: ClassVar[str]
    _tables: ClassVar[str]
    """The query for the names of all tables that may be read."""

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """All rows of the namespace, those that belong to none, and those of all other tables with
        at most `MANY` rows.
        """
        fetch, close, mark = await self._connect()
        try:
            found = [
                (f"{table}/{number}", _joined(row))
                for table, query in _QUERIES.items()
                for number, row in enumerate(await fetch(query.format(ns=mark), namespace.encode()))
            ]
            for (table,) in await fetch(self._tables):
                if _text(table) not in _QUERIES:
                    rows = await self._rows(fetch, _text(table))
                    found += [(f"{_text(table)}/{n}", _joined(row)) for n, row in enumerate(rows)]
            return found
        finally:
            await close()

    async def _rows(self, fetch: _Fetch, table: str) -> Sequence[Sequence[Any]]:
        try:
            quoted = table.replace(self._quote, 2 * self._quote)
            rows = await fetch(
                f"SELECT * FROM {self._quote}{quoted}{self._quote} LIMIT {MANY + 1}"  # noqa: S608
            )
        except Exception:
            if table in [_text(name) for (name,) in await fetch(self._tables)]:
                raise
            return ()  # a neighbour's, removed in between
        return rows if len(rows) <= MANY else ()

    async def wipe(self, namespace: str) -> None:
        """Remove everything, what outlives a sweep included."""
        await super().wipe(namespace)
        fetch, close, mark = await self._connect()
        try:
            statement = f"DELETE FROM outlast_floor WHERE namespace = {mark}"  # noqa: S608 - a mark
            await fetch(statement, namespace.encode())
        finally:
            await close()

    async def versions(self) -> Mapping[str, str]:
        """The server's."""
        fetch, close, _ = await self._connect()
        try:
            ((found,),) = await fetch("SELECT version()")
        finally:
            await close()
        return {"server": str(found)}

    @abc.abstractmethod
    async def _connect(self) -> tuple[_Fetch, Callable[[], Awaitable[object]], str]:
        """What runs a query, what closes the connection, and the mark of a parameter."""


class PostgresHarness(_ServerHarness):
    """A database of PostgreSQL, by the URL of outlast."""

    _quote = '"'
    _tables = (
        "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = current_schema()"
        " AND has_table_privilege(quote_ident(schemaname) || '.' || quote_ident(tablename),"
        " 'SELECT')"
    )

    async def _connect(self) -> tuple[_Fetch, Callable[[], Awaitable[object]], str]:
        asyncpg: Any = import_module("asyncpg")
        place = (self.url or "").partition("://")[2]
        connection: Any = await asyncpg.connect(f"postgresql://{place}")
        return connection.fetch, connection.close, "$1"


class MysqlHarness(_ServerHarness):
    """A database of MySQL or MariaDB, by the URL of outlast."""

    _quote = "`"
    _tables = (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = database()"
        " AND table_type = 'BASE TABLE'"
    )

    async def _connect(self) -> tuple[_Fetch, Callable[[], Awaitable[object]], str]:
        asyncmy: Any = import_module("asyncmy")
        parts = urlsplit(self.url or "")
        connection: Any = await asyncmy.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=unquote(parts.path[1:]),
            charset="utf8mb4",
            autocommit=True,
        )

        async def fetch(query: str, *namespace: bytes) -> Sequence[Sequence[Any]]:
            async with connection.cursor() as cursor:
                await cursor.execute(query, namespace * query.count("%s"))
                rows: Sequence[Sequence[Any]] = await cursor.fetchall()
                return rows

        return fetch, connection.ensure_closed, "%s"


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _joined(row: Iterable[Any]) -> bytes:
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in row]
    return b"\x1f".join(parts)


__all__ = ["MysqlHarness", "PostgresHarness"]
