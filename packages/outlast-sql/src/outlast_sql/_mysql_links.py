"""Connections to MySQL and MariaDB through asyncmy.

Statements are prepared on the server: their values travel as they are, in packets of their own size
and whatever the server's rules for quoting are (H-Q16).
"""

import asyncio
import contextlib
import importlib
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from outlast.errors import ConfigurationError, OutlastError
from outlast.url import StoreURL, redact
from outlast_sql._links import CLOSING_SECONDS, IDLE_SECONDS, Link, abandon_transport, check_files
from outlast_sql._mysql_errors import errno_of, is_end
from outlast_sql._reads import Row

OPTIONS: Final = frozenset({"ssl", "ssl_ca", "ssl_cert", "ssl_check_hostname", "ssl_key"})
"""In the URL; SQLAlchemy's names."""

_ISOLATION: Final = "ISOLATION LEVEL READ COMMITTED"
"""By default what is not there is locked, too: those who make different records at the same time
would end in deadlocks (H-Q13, H-Q14)."""
_SETTINGS: Final = {
    "completion_type": "0",  # A COMMIT ends the transaction, and nothing else.
    "max_sort_length": "1024",  # Ids are compared to their end.
    "sql_big_selects": "1",
    "sql_buffer_result": "0",  # With it, MariaDB forgets the order of some results.
    "sql_mode": "'STRICT_ALL_TABLES'",
    "sql_safe_updates": "0",
    "sql_select_limit": "18446744073709551615",  # Less would cut what is read, without a word.
    "unique_checks": "1",  # A known id is found by a unique index.
}
"""What the meaning of the statements depends on: the server, its ``init_connect`` or the owner of a
lent connection may have set it otherwise."""
_KEPT: Final = 64
"""Statements that a connection keeps prepared."""
_GROUPS: Final = (32, 8, 1)
"""How many rows one INSERT takes: few statements serve all numbers."""
_GROUP_BYTES: Final = 1 << 20
_COMMA_ONE: Final = r"\1, "
_VALUES: Final = re.compile(r"VALUES (\([^()]*\))\s*$")


class AsyncmyLink(Link):
    """A connection of asyncmy."""

    begin = "START TRANSACTION"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._statements: dict[str, Any] = {}

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[Row]:
        statement = self._statements.get(sql)
        if statement is None:
            statement = await self._connection.prepare(sql)
            if len(self._statements) >= _KEPT:
                await self._statements.pop(next(iter(self._statements))).close()
            self._statements[sql] = statement
        result = await statement.execute(parameters)
        return result.rows or ()

    async def run(self, sql: str) -> None:
        await self._connection.query(sql)

    async def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        for group in _groups(rows):
            values = [value for row in group for value in row]
            await self.fetch(_VALUES.sub(rf"VALUES {_COMMA_ONE * len(group)}", sql)[:-2], values)

    def survives(self, error: BaseException) -> bool:
        if isinstance(error, OutlastError):
            return True
        return not is_end(errno_of(error)) and bool(self._connection.connected)

    def sent_nothing(self, error: BaseException) -> bool:
        return error.args[:1] in ((0,), (2006,))

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._connection.ensure_closed()
        with contextlib.suppress(Exception):
            self._connection.close()

    def abandon(self) -> None:
        abandon_transport(self._connection._transport)  # noqa: SLF001

    @property
    def _socket(self) -> Any:
        transport = self._connection._transport  # noqa: SLF001
        if not self._connection.connected or transport is None or transport.is_closing():
            return None
        return transport.get_extra_info("socket")


_BORROW: Final = "SET {}, {}, autocommit = 1".format(
    ", ".join(f"@outlast_{name} = @@SESSION.{name}" for name in _SETTINGS),
    ", ".join(f"{name} = {value}" for name, value in _SETTINGS.items()),
)
_RETURN: Final = "SET " + ", ".join(f"{name} = @outlast_{name}" for name in _SETTINGS)


class LentAsyncmyLink(AsyncmyLink):
    """A connection of asyncmy that has the settings of its owner, who gets it back with them.

    They are set aside in variables of the connection: one round trip, which leaving and entering
    the owner's transactions takes anyway.
    """

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._autocommit = True

    async def borrowed(self) -> None:
        if self._connection.get_transaction_status():
            # With completion_type 1 the end of the owner's transaction began another one.
            await self.run("ROLLBACK AND NO CHAIN NO RELEASE")
        self._autocommit = self._connection.get_autocommit()
        await self.run(_BORROW)

    async def returned(self) -> None:
        await self.run(f"{_RETURN}, autocommit = {int(self._autocommit)}")

    async def start(self) -> None:
        # Of the next transaction only; a session of ours has it set for all.
        await self.run(f"SET TRANSACTION {_ISOLATION}")
        await super().start()


def _groups(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    left = iter(rows)
    while some := list(islice(left, _GROUPS[0])):
        while some:
            size = next(size for size in _GROUPS if size <= len(some))
            if size > 1 and sum(map(_bytes_in, some[:size])) > _GROUP_BYTES:
                size = 1
            yield some[:size]
            del some[:size]


def _bytes_in(row: Sequence[Any]) -> int:
    return sum(len(value) for value in row if isinstance(value, bytes))


async def connect_asyncmy(url: StoreURL, options: Mapping[str, Any], timeout: float) -> AsyncmyLink:
    """A new connection by asyncmy."""
    tls = options.get("ssl") or _tls(url)
    patience = max(1, round(timeout))  # A wait for a lock ends with the call that waits.
    asyncmy = importlib.import_module("asyncmy")  # It has types in part.
    connection = await asyncmy.connect(
        host=url.host or "localhost",
        port=url.port or 3306,
        user=url.username,
        # As the clients of the servers send it; asyncmy by itself knows Latin-1 only.
        password=(url.password or "").encode(),
        database=url.path[1:] or None,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=patience,
        ssl=tls,
    )
    link = AsyncmyLink(connection)
    settings = [f"{name} = {value}" for name, value in _SETTINGS.items()]
    settings.append(f"innodb_lock_wait_timeout = {patience}")
    if "mariadb" in connection.get_server_info().lower():
        settings.append(f"idle_transaction_timeout = {IDLE_SECONDS}")
    try:
        await link.run(f"SET SESSION {', '.join(settings)}")
        await link.run(f"SET SESSION TRANSACTION {_ISOLATION}")
    except BaseException:
        connection.close()
        raise
    return link


def _tls(url: StoreURL) -> ssl.SSLContext | None:
    query = url.query
    shown = redact(url.text)
    wants = query.get("ssl", "true" if any(name in query for name in OPTIONS) else "false")
    if wants not in ("true", "false"):
        raise ConfigurationError(f"ssl in {shown!r} must be true or false, not {wants!r}")
    if wants == "false":
        return None
    check_files(url, "ssl_ca", "ssl_cert", "ssl_key")
    try:
        context = ssl.create_default_context(cafile=query.get("ssl_ca"))
        if "ssl_cert" in query:
            context.load_cert_chain(query["ssl_cert"], query.get("ssl_key"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"{shown!r}: the files for TLS cannot be used: {error}") from error
    if query.get("ssl_check_hostname", "true") == "false":
        context.check_hostname = False
    return context


__all__ = ["OPTIONS", "AsyncmyLink", "LentAsyncmyLink", "connect_asyncmy"]
