"""Settings of servers, and of connections that are lent, that make no difference."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from psycopg.types.numeric import FloatLoader
from psycopg.types.string import BytesDumper, TextBinaryLoader
from server_support import Admin, root_of
from server_ways import server_of
from sql_support import use_much
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outlast.errors import ConfigurationError
from outlast_contract.servers import Server
from outlast_sql import SqlDriver

pytestmark = [pytest.mark.sql, pytest.mark.server]

MARIADB = {
    "sql_select_limit": 3,
    "sql_mode": "'ORACLE,EMPTY_STRING_IS_NULL'",
    "completion_type": 1,
    "sql_buffer_result": 1,
    "sql_safe_updates": 1,
    "max_sort_length": 64,
    "max_join_size": 2,
    "unique_checks": 0,
    "group_concat_max_len": 4,
    "time_zone": "'+05:45'",
}
"""What a session of MariaDB may be set to."""
POSTGRES = {
    "transform_null_equals": "on",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "DateStyle": "German",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-15",
    "session_replication_role": "replica",
}
"""The same of PostgreSQL."""


Lend = Callable[..., AsyncEngine]


@pytest.fixture
async def lend() -> AsyncIterator[Lend]:
    """Engines of one connection: ``lend(url, **options)``."""
    engines: list[AsyncEngine] = []

    def lend_one(url: str, **options: Any) -> AsyncEngine:
        engines.append(create_async_engine(url, pool_size=1, max_overflow=0, **options))
        return engines[-1]

    yield lend_one
    for engine in engines:
        await engine.dispose()


async def settings_of(engine: AsyncEngine, query: str) -> Any:
    """What the owner of an engine finds."""
    async with engine.connect() as connection:
        return (await connection.execute(text(query))).fetchall()


@pytest.mark.parametrize(
    ("name", "isolation"),
    [("sql_select_limit", "READ COMMITTED"), *((name, "AUTOCOMMIT") for name in MARIADB)],
)
async def test_a_setting_of_a_lent_session_of_mariadb_makes_no_difference(
    lend: Lend, namespace: str, name: str, isolation: str
) -> None:
    """A limit on rows would cut what is read without a word (L1, A6); its owner keeps it."""
    engine = lend(
        f"mysql+asyncmy://{server_of('mariadb').url.partition('://')[2]}",
        connect_args={"init_command": f"SET {name} = {MARIADB[name]}"},
        isolation_level=isolation,
    )
    query = f"SELECT {', '.join(f'@@{name}' for name in MARIADB)}, @@autocommit"
    before = await settings_of(engine, query)
    for is_compound in (False, True):
        driver = SqlDriver.from_engine(engine, namespace=f"{namespace} {is_compound}")
        await driver.setup(create=True)
        driver._compound = is_compound  # type: ignore[attr-defined]
        await use_much(driver)
        await driver.aclose()
    assert await settings_of(engine, query) == before


@pytest.mark.parametrize("is_compound", [False, True], ids=["steps", "compound"])
async def test_settings_of_a_server_of_mariadb_make_no_difference(
    start: Callable[..., Server], is_compound: bool
) -> None:
    """The same by URL, where the server sets every session so."""
    server = start("mariadb")
    root = await Admin.on(root_of(server.url))
    for name, value in MARIADB.items():
        await root.run(f"SET GLOBAL {name} = {value}")
    await root.close()
    driver = SqlDriver.from_url(server.url, namespace="test")
    await driver.setup(create=True)
    driver._compound = is_compound  # type: ignore[attr-defined]
    await use_much(driver)
    await driver.aclose()


async def test_a_session_of_mariadb_whose_clock_stands_still_is_refused(
    lend: Lend, namespace: str
) -> None:
    """Ages count by the server's clock (C5, C6)."""
    engine = lend(
        f"mysql+asyncmy://{server_of('mariadb').url.partition('://')[2]}",
        connect_args={"init_command": "SET timestamp = 1000000000"},
    )
    driver = SqlDriver.from_engine(engine, namespace=namespace)
    with pytest.raises(ConfigurationError, match="clock stands still"):
        await driver.setup(create=True)


LIBRARIES = ["asyncpg", "psycopg"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("admin", ["postgres"], indirect=True)
async def test_settings_of_a_database_of_postgresql_make_no_difference(
    lend: Lend, admin: Admin, library: str
) -> None:
    """Neither by URL nor lent; sent as text, bytes would be stored as others (V3)."""
    name = admin.url.rpartition("/")[2]
    for setting, value in POSTGRES.items():
        await admin.run(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    url = f"postgresql+{library}://{admin.url.partition('://')[2]}"
    drivers = [
        SqlDriver.from_url(url, namespace="by URL"),
        SqlDriver.from_engine(lend(url), namespace="lent"),
    ]
    for driver in drivers:
        await driver.setup(create=True)
        await use_much(driver)
        await driver.aclose()


@pytest.mark.parametrize("admin", ["postgres"], indirect=True)
async def test_arrays_without_nulls_are_refused(admin: Admin) -> None:
    """The parents of tasks that have none would be called NULL."""
    name = admin.url.rpartition("/")[2]
    await admin.run(f"ALTER DATABASE {name} SET array_nulls = off")
    driver = SqlDriver.from_url(admin.url, namespace="test")
    with pytest.raises(ConfigurationError, match="array_nulls set to off"):
        await driver.setup(create=True)


@pytest.mark.parametrize("threshold", [None, 0, 1])
async def test_a_lent_connection_of_psycopg_may_prepare_at_once_or_never(
    lend: Lend, namespace: str, threshold: int | None
) -> None:
    """What begins a transaction is two commands, which cannot be prepared."""
    engine = lend(
        f"postgresql+psycopg://{server_of('postgres').url.partition('://')[2]}",
        connect_args={"prepare_threshold": threshold},
    )
    driver = SqlDriver.from_engine(engine, namespace=namespace)
    await driver.setup(create=True)
    await use_much(driver)
    await driver.aclose()


async def test_what_an_application_registers_with_psycopg_makes_no_difference(
    lend: Lend, namespace: str
) -> None:
    """Its own idea of bytes is no damage to the store."""
    engine = lend(f"postgresql+psycopg://{server_of('postgres').url.partition('://')[2]}")

    @event.listens_for(engine.sync_engine, "connect")
    def register(connection: Any, _: object) -> None:
        connection.driver_connection.adapters.register_loader("bytea", TextBinaryLoader)
        connection.driver_connection.adapters.register_loader("int8", FloatLoader)
        connection.driver_connection.adapters.register_dumper(bytes, BytesDumper)

    driver = SqlDriver.from_engine(engine, namespace=namespace)
    await driver.setup(create=True)
    await use_much(driver)
    await driver.aclose()
