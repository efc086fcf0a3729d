"""What the owner of a lent engine may have set its connections of SQLite to."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sql_support import use_much
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outlast.errors import ConfigurationError
from outlast_sql import SqlDriver

pytestmark = pytest.mark.sql

PRAGMAS = {
    "case_sensitive_like": 1,
    "count_changes": 1,
    "full_column_names": 1,
    "locking_mode": "EXCLUSIVE",
    "read_uncommitted": 1,
    "recursive_triggers": 1,
    "reverse_unordered_selects": 1,
    "short_column_names": 0,
}


def as_dict(cursor: Any, row: Any) -> Any:
    """A row by the names of its columns."""
    return dict(zip(cursor.description, row, strict=True))


ATTRIBUTES: dict[str, Any] = {
    "isolation_level": "EXCLUSIVE",
    "row_factory": as_dict,
    "text_factory": bytes,
}
"""Of a connection in Python."""

Prepare = Callable[[Any], object]
"""Given a connection as SQLAlchemy knows it."""
Lend = Callable[[str, Prepare], AsyncEngine]


@pytest.fixture
async def lend() -> AsyncIterator[Lend]:
    """Engines, and what prepares their connections: ``lend(path, prepare)``."""
    engines: list[AsyncEngine] = []

    def lend_one(path: str, prepare: Prepare) -> AsyncEngine:
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        engines.append(engine)

        @event.listens_for(engine.sync_engine, "connect")
        def connected(connection: Any, _: object) -> None:
            prepare(connection)

        return engine

    yield lend_one
    for engine in engines:
        await engine.dispose()


def sqlite3_of(connection: Any) -> Any:
    """The connection beneath those of SQLAlchemy and aiosqlite."""
    return connection.driver_connection._conn


async def attribute_of(engine: AsyncEngine, name: str) -> object:
    """What the owner of an engine finds."""
    async with engine.connect() as connection:
        raw: Any = await connection.get_raw_connection()
        return getattr(sqlite3_of(raw), name)


@pytest.mark.parametrize("name", PRAGMAS)
async def test_a_pragma_of_a_lent_connection_makes_no_difference(
    lend: Lend, path: Path, name: str
) -> None:
    """With count_changes, what was written looked refused."""
    engine = lend(
        str(path),
        lambda connection: connection.cursor().execute(f"PRAGMA {name} = {PRAGMAS[name]}"),
    )
    driver = SqlDriver.from_engine(engine, namespace="test")
    await driver.setup(create=True)
    await use_much(driver)
    await driver.aclose()
    if name != "case_sensitive_like":  # It cannot be asked for.
        async with engine.connect() as connection:
            found = (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar()
        assert str(found).upper() == str(PRAGMAS[name])


@pytest.mark.parametrize("name", ATTRIBUTES)
async def test_an_attribute_of_a_lent_connection_makes_no_difference(
    lend: Lend, path: Path, name: str
) -> None:
    """Rows and text are for the statements; its owner keeps what it had."""
    engine = lend(
        str(path), lambda connection: setattr(sqlite3_of(connection), name, ATTRIBUTES[name])
    )
    driver = SqlDriver.from_engine(engine, namespace="test")
    await driver.setup(create=True)
    await use_much(driver)
    await driver.aclose()
    assert await attribute_of(engine, name) == ATTRIBUTES[name]


@pytest.mark.parametrize(
    ("place", "mode"), [("file", "OFF"), ("file", "MEMORY"), (":memory:", "OFF")]
)
async def test_a_journal_that_cannot_undo_is_refused(
    lend: Lend, path: Path, place: str, mode: str
) -> None:
    """A crash would leave half of a mutation, or a damaged file (A4, D2)."""
    name = place
    if place == "file":
        name = str(path)
        made = SqlDriver.from_url(f"sqlite:///{path}", namespace="test")
        await made.setup(create=True)
        await made.aclose()
    engine = lend(
        name, lambda connection: connection.cursor().execute(f"PRAGMA journal_mode = {mode}")
    )
    driver = SqlDriver.from_engine(engine, namespace="test")
    with pytest.raises(ConfigurationError, match=f"journal mode '{mode.lower()}'"):
        await driver.setup(create=True)
