"""Looking at servers past the drivers, and harnesses for the contract suite."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

import asyncmy
import asyncpg

from outlast_contract.harness import ServerControls
from outlast_contract.servers import shared_server, start_server
from outlast_contract.stores.sql import MysqlHarness, PostgresHarness

TABLES = (
    "outlast_schema",
    "outlast_floor",
    "outlast_scope",
    "outlast_register",
    "outlast_entry",
)


def root_of(url: str) -> str:
    """The same database as a user who may do everything: of MariaDB the server's own."""
    scheme, _, place = url.partition("://")
    return url if scheme.startswith("postgres") else f"{scheme}://root@{place.rpartition('@')[2]}"


async def postgres_connection(url: str) -> Any:
    """A connection of asyncpg's."""
    return await asyncpg.connect(f"postgresql://{url.partition('://')[2]}")


async def mysql_connection(url: str) -> Any:
    """A connection of asyncmy's, in autocommit mode."""
    parts = urlsplit(url)
    return await asyncmy.connect(
        host=parts.hostname,
        port=parts.port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path[1:] or None,
        charset="utf8mb4",
        autocommit=True,
    )


async def mysql_rows(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    """What a statement returns."""
    async with connection.cursor() as cursor:
        await cursor.execute(statement)
        return list(await cursor.fetchall()) if cursor.description else []


class AsyncpgHarness(PostgresHarness):
    """The shared PostgreSQL server, with a password that it does not ask for."""

    server_kind = "postgres"

    def __init__(self, scheme: str = "postgresql") -> None:
        self._scheme = scheme
        server = shared_server("postgres")
        place = server.url.partition("@")[2]
        super().__init__(f"{scheme}://outlast:s3cret@{place}")
        self.is_temporary = not server.is_external

    async def start_server(self) -> ServerControls:
        server = await asyncio.to_thread(start_server, "postgres")
        server.url = f"{self._scheme}://{server.url.partition('://')[2]}"
        return server


class PsycopgHarness(AsyncpgHarness):
    """The same through psycopg."""

    def __init__(self) -> None:
        super().__init__("postgresql+psycopg")


class MariadbHarness(MysqlHarness):
    """The shared MariaDB server."""

    server_kind = "mariadb"

    def __init__(self) -> None:
        server = shared_server("mariadb")
        super().__init__(f"mariadb://{server.url.partition('://')[2]}")
        self.is_temporary = not server.is_external

    async def start_server(self) -> ServerControls:
        return await asyncio.to_thread(start_server, "mariadb")


class Admin:
    """Another user of a server, past the drivers: one interface to PostgreSQL and MariaDB."""

    def __init__(self, connection: Any, *, is_postgres: bool) -> None:
        self.connection = connection
        self.is_postgres = is_postgres
        self.url = ""

    @classmethod
    async def on(cls, url: str) -> "Admin":
        """Connect to the server of a URL."""
        is_postgres = url.startswith("postgres")
        connect = postgres_connection if is_postgres else mysql_connection
        return cls(await connect(url), is_postgres=is_postgres)

    async def rows(self, statement: str) -> list[Any]:
        """What a statement returns."""
        if self.is_postgres:
            return [tuple(row) for row in await self.connection.fetch(statement)]
        return await mysql_rows(self.connection, statement)

    async def run(self, *statements: str) -> None:
        """Run statements for their effect."""
        for statement in statements:
            if self.is_postgres:
                await self.connection.execute(statement)
            else:
                await mysql_rows(self.connection, statement)

    async def sessions(self) -> list[int]:
        """The connections of others to the same database."""
        if self.is_postgres:
            query = (
                "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND datname = current_database() AND backend_type = 'client backend'"
            )
        else:
            query = (
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
                " AND id <> CONNECTION_ID()"
            )
        return sorted(row[0] for row in await self.rows(query))

    async def kill(self, *sessions: int) -> None:
        """End connections of others, and wait until they are gone."""
        for session in sessions:
            if self.is_postgres:
                await self.run(f"SELECT pg_terminate_backend({session})")
            else:
                with contextlib.suppress(asyncmy.errors.OperationalError):  # gone already
                    await self.run(f"KILL {session}")
        await until(lambda: self._are_gone(sessions))

    async def _are_gone(self, sessions: Iterable[int]) -> bool:
        return not set(sessions) & set(await self.sessions())

    async def waiting(self) -> int:
        """How many connections wait for a lock in the same database."""
        if self.is_postgres:
            query = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND datname = current_database()"
            )
        else:
            query = (
                "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN"
                " information_schema.processlist p ON p.id = t.trx_mysql_thread_id"
                " WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()"
            )
        return int((await self._transactions(query))[0][0])

    async def holds_up(self) -> bool:
        """Whether somebody waits for a lock of this connection: others wait for each other."""
        if self.is_postgres:
            # Unlike activity, locks are looked up anew within a transaction.
            query = (
                "SELECT count(*) FROM pg_locks WHERE NOT granted"
                " AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            )
        else:
            query = (
                "SELECT COUNT(*) FROM information_schema.innodb_lock_waits w JOIN"
                " information_schema.innodb_trx t ON t.trx_id = w.blocking_trx_id"
                " WHERE t.trx_mysql_thread_id = CONNECTION_ID()"
            )
        return bool((await self._transactions(query))[0][0])

    async def see_idle_transactions_end(self) -> None:
        """Wait for the end of each transaction that somebody has open now, and does nothing in.

        Tests that share the server begin others all the time.
        """
        left = set(await self._idle_transactions())

        async def have_ended() -> bool:
            nonlocal left
            left &= set(await self._idle_transactions()) if left else left
            return not left

        await until(have_ended)

    async def _idle_transactions(self) -> list[Any]:
        if self.is_postgres:
            query = (
                "SELECT pid, xact_start FROM pg_stat_activity WHERE datname = current_database()"
                " AND state LIKE 'idle in transaction%'"
            )
        else:
            query = (
                "SELECT t.trx_id, t.trx_started FROM information_schema.innodb_trx t JOIN"
                " information_schema.processlist p ON p.id = t.trx_mysql_thread_id"
                " WHERE p.command = 'Sleep' AND p.id <> CONNECTION_ID() AND p.db = DATABASE()"
            )
        return await self._transactions(query)

    async def _transactions(self, query: str) -> list[Any]:
        if not self.is_postgres:
            # Asked more often, InnoDB repeats what it said.
            await asyncio.sleep(0.15)
        return await self.rows(query)

    async def close(self) -> None:
        """Close the connection."""
        if self.is_postgres:
            await self.connection.close()
        else:
            await self.connection.ensure_closed()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Wait for a condition of a server."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(0.01)
