"""What connections to a server are set to, and how an engine that lent one gets it back."""

import asyncio
from collections.abc import Sequence

import pytest
from server_support import Admin
from server_ways import SERVERS, server_driver
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

import outlast
from outlast.driver import Entry, Scope
from outlast_sql import SqlBackend
from outlast_sql._links import Link
from outlast_sql._mysql_links import _KEPT
from outlast_sql._server import ServerDriver

pytestmark = [pytest.mark.sql, pytest.mark.server]

TASK = Scope("task", "t")


async def test_a_transaction_that_nobody_goes_on_with_is_ended_by_the_server(
    namespace: str,
) -> None:
    """E6: as capabilities declare, whose process stopped holds others up for seconds only."""

    async def waits_for_one_that_stopped(way: str) -> None:
        async with server_driver(way, f"{namespace} {way}") as driver:
            assert isinstance(driver, ServerDriver)
            await driver.append(TASK, "api", [Entry("a", b"1")], fence=None)
            holds = asyncio.Event()

            async def stop(link: Link) -> None:
                await link.start()
                lock = "SELECT sid FROM outlast_scope WHERE namespace = ? AND kind = ? AND id = ?"
                await link.fetch(driver._written(f"{lock} FOR UPDATE"), driver._key(TASK))
                holds.set()
                await asyncio.Event().wait()

            stopped = asyncio.ensure_future(driver._on_link(stop, lambda: False))
            await holds.wait()
            try:
                async with asyncio.timeout(8):
                    await driver.append(TASK, "api", [Entry("b", b"2")], fence=None)
            except TimeoutError:
                pytest.fail(f"{way}: the transaction is still open")
            finally:
                stopped.cancel()
                await asyncio.wait([stopped])

    # Of MySQL, and of connections that another one has set up, it is not declared.
    ways = [way for way in SERVERS if way not in ("mysql", "lent asyncmy")]
    async with asyncio.TaskGroup() as group:
        for way in ways:
            group.create_task(waits_for_one_that_stopped(way))


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "AUTOCOMMIT"])
@pytest.mark.parametrize(
    ("admin", "scheme"),
    [
        ("postgres", "postgresql+asyncpg"),
        ("postgres", "postgresql+psycopg"),
        ("mariadb", "mysql+asyncmy"),
    ],
    indirect=["admin"],
)
async def test_a_lent_connection_commits_for_its_owner_as_before(
    admin: Admin, scheme: str, isolation: str
) -> None:
    """C7: by itself where the owner said so, and nowhere else."""
    engine = create_async_engine(
        f"{scheme}://{admin.url.partition('://')[2]}",
        pool_size=1,
        max_overflow=0,
        isolation_level=isolation,
    )
    await admin.run("CREATE TABLE theirs (number integer)")
    async with SqlBackend(engine=engine) as backend:
        for number in range(2):
            await backend.persistence.save_task_state("t", outlast.TaskState(id="t"))
            async with engine.connect() as connection:
                await connection.execute(text(f"INSERT INTO theirs VALUES ({number})"))
                await connection.rollback()
        state = await backend.persistence.load_task_state("t")
        assert state is not None
    await engine.dispose()
    expected = [(0,), (1,)] if isolation == "AUTOCOMMIT" else []
    assert await admin.rows("SELECT number FROM theirs ORDER BY number") == expected


async def test_a_connection_keeps_few_statements_prepared(namespace: str) -> None:
    """A server of MariaDB takes so many of all clients together, and then refuses."""
    counts = "SHOW SESSION STATUS WHERE Variable_name IN ('Com_stmt_prepare', 'Com_stmt_close')"

    async def run_many(link: Link) -> Sequence[int]:
        for number in (*range(3 * _KEPT), 0):
            ((found,),) = await link.fetch(f"SELECT {number}")
            assert found == number
        return [int(count) for _, count in await link.fetch(counts)]

    async with server_driver("mariadb", namespace) as driver:
        assert isinstance(driver, ServerDriver)
        closed, prepared = await driver._on_link(run_many, lambda: False)
    assert prepared > 3 * _KEPT
    assert prepared - closed <= _KEPT + 1  # It closes the oldest one behind the next.
