"""SQLite: one writing connection, a few reading ones, write-ahead log, every commit synced."""

import asyncio
import importlib.util
import os
import sqlite3
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from outlast.driver import Capabilities, SweepPage
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    UnsupportedVersionError,
)
from outlast.filesystem import network_mount
from outlast.url import parse_url, redact
from outlast_sql._calls import SQLITE
from outlast_sql._driver import SqlDriver, Step
from outlast_sql._errors import not_set_up, translate
from outlast_sql._lane import Lane
from outlast_sql._reads import NOT_AS_WRITTEN, Database, damaged
from outlast_sql._schema import SCHEMA_VERSION, create_statements, metadata

ResultT = TypeVar("ResultT")

_HEADER_BYTES: Final = 100
_READERS: Final = 2
_MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
"""SQLite's own limit of a row is 1,000,000,000 bytes, unless it was built for less."""

_WRITER_SETTINGS: Final[Mapping[str, object]] = {
    "busy_timeout": 0,  # The lane waits by itself.
    "count_changes": 0,  # On a lent connection it would be the answer of what changes rows.
    "read_uncommitted": 0,
    "synchronous": 2,  # FULL: with NORMAL, the last commits would go with the power.
    "secure_delete": 1,  # Deleted conversations do not stay readable in free pages (C3).
}
_READER_SETTINGS: Final[Mapping[str, object]] = {"busy_timeout": 0, "query_only": 1}

_ON_DISK: Final = Capabilities(
    data_survives=frozenset({"process", "server"}),
    fences_survive=frozenset({"process", "server"}),
    reach="host",
    max_message_bytes=_MAX_MESSAGE_BYTES,
    stopped_writer_blocks=True,
)
_IN_MEMORY: Final = Capabilities(
    data_survives=frozenset(),
    fences_survive=frozenset(),
    reach="process",
    max_message_bytes=_MAX_MESSAGE_BYTES,
)

_inherited: Final[list[Lane]] = []
"""Connections that came here by a fork. Closing one could disturb the parent's: they stay open."""


class SqliteDriver(SqlDriver):
    """A database file of this host, or a database in memory that ends when the driver is closed.

    Args:
        path: The database file, absolute; ``None``: in memory, or where ``engine`` leads.
        engine: As in `SqlDriver`; lends one connection from `setup` to `aclose`.
    """

    name = "sqlite"
    dialect = SQLITE

    def __init__(
        self,
        *,
        namespace: str,
        timeout: float = 10.0,
        path: str | None = None,
        engine: AsyncEngine | None = None,
    ) -> None:
        super().__init__(namespace=namespace, timeout=timeout, engine=engine)
        self._path = path
        self.capabilities = _IN_MEMORY if path is None else _ON_DISK
        self._lanes: list[Lane] = []
        self._pid = 0
        self._connecting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def for_url(cls, url: str, dbapi: str, *, namespace: str, timeout: float) -> "SqliteDriver":
        if dbapi not in ("", "aiosqlite"):
            raise ConfigurationError(
                f"{redact(url)!r}: SQLite is reached through aiosqlite, not {dbapi!r}"
            )
        if importlib.util.find_spec("aiosqlite") is None:
            raise ConfigurationError(
                'SQLite needs the package aiosqlite; install it with: pip install "outlast[sqlite]"'
            )
        return cls(namespace=namespace, timeout=timeout, path=_path_of(url))

    @classmethod
    def for_engine(cls, engine: AsyncEngine, *, namespace: str, timeout: float) -> "SqliteDriver":
        if engine.dialect.driver != "aiosqlite":
            raise ConfigurationError(
                f"the engine uses {engine.dialect.driver!r}; SQLite is reached through aiosqlite"
            )
        database = engine.url.database or ""
        in_memory = (
            not database or ":memory:" in database or engine.url.query.get("mode") == "memory"
        )
        path = None if in_memory else database
        return cls(namespace=namespace, timeout=timeout, engine=engine, path=path)

    async def setup(self, *, create: bool) -> None:
        was_open = bool(self._lanes)
        try:
            if not was_open:
                # Not cancelled halfway: SQLAlchemy would lose a connection that it configures.
                self._pid = os.getpid()
                self._connecting = asyncio.create_task(self._connect(create=create))
                self._connecting.add_done_callback(_retrieve)
                await asyncio.shield(self._connecting)
            await self._prepare(create=create)
        except BaseException:
            if not was_open:
                await self.aclose()
            raise

    async def _connect(self, *, create: bool) -> None:
        if self._engine is None:
            self._engine = _create_engine(self._path, create=create)
        engine = self._engine
        await self._check_out(engine, _WRITER_SETTINGS)
        self._path = self._lanes[0].path
        self.capabilities = _IN_MEMORY if self._path is None else _ON_DISK
        if self._path is not None and self._owns_engine:
            for _ in range(_READERS):
                await self._check_out(engine, _READER_SETTINGS)

    async def _check_out(self, engine: AsyncEngine, settings: Mapping[str, object]) -> None:
        lease = engine.connect()
        try:
            await lease
        except SQLAlchemyError as error:
            raise translate(error, self._path) from error
        try:
            lane = await Lane.check_out(lease, self._path, settings, self._timeout)
        except BaseException:
            await lease.close()
            raise
        self._lanes.append(lane)

    async def _prepare(self, *, create: bool) -> None:
        writer = self._lanes[0]
        version = await writer.read(_version)
        if create and version is None:
            if self._path is not None:
                await writer.read(_switch_to_wal)
            version = await writer.mutate(_create)
        if version is None:
            raise not_set_up(self._path, "its tables are missing")
        if version > SCHEMA_VERSION:
            raise UnsupportedVersionError(
                f"the database {self._path!r} has tables of version {version}; this version of "
                f"outlast-sql knows those up to {SCHEMA_VERSION}: upgrade it"
            )
        await writer.read(self._check_journal)
        for lane in self._lanes:
            lane.watch_file()

    def _check_journal(self, db: Database) -> None:
        (mode,) = db.execute("PRAGMA journal_mode").fetchone()
        if mode == "off" or (mode == "memory" and self._path is not None):
            raise ConfigurationError(
                f"the engine's connections have the journal mode {mode!r}, which does not undo "
                "what a crash or an error broke off; set it to WAL"
            )

    async def hazards(self) -> Sequence[str]:
        path = self._path
        if path is None:
            return ()
        mount = await self._lane(0).read(lambda _: network_mount(path))
        if mount is None:
            return ()
        hazard = (
            f"the database {path!r} is on a network file system ({mount.type}, mounted on "
            f"{mount.point}), where the locks and the shared memory of SQLite are not reliable: "
            "accepted writes may be lost; use a local disk"
        )
        return (hazard,)

    async def ping(self) -> None:
        await self._read(_version)

    async def aclose(self) -> None:
        lanes, self._lanes = self._lanes, []
        if self._pid != os.getpid():
            _inherited.extend(lanes)
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(lanes))
            self._closing.add_done_callback(_retrieve)
        # Whoever is cancelled here leaves it running.
        await asyncio.shield(self._closing)

    async def _close(self, lanes: Sequence[Lane]) -> None:
        try:
            # One that is done may be of a loop that has ended, where nothing can be waited for.
            if self._connecting is not None and not self._connecting.done():
                await asyncio.wait([self._connecting])
            for lane in (*lanes, *self._lanes):
                await lane.give_back()
            if self._engine is not None and self._owns_engine:
                await self._engine.dispose()
                self._engine = None
        finally:
            self._lanes.clear()
            self._connecting = self._closing = None

    async def sweep(
        self, *, older_than: float, limit: int, dry_run: bool, after: str | None
    ) -> SweepPage:
        page = await super().sweep(older_than=older_than, limit=limit, dry_run=dry_run, after=after)
        if page.tombstones and page.next is None and not dry_run:
            await self._forget_log()
        return page

    async def _forget_log(self) -> None:
        """Empty the write-ahead log, which still shows what was deleted."""
        # It waits for nobody: where a reader is at work, the next sweep gets it.
        await self._lane(0).read(_checkpoint)

    def _lane(self, number: int) -> Lane:
        if not self._lanes:
            raise ClosedError("the driver is not set up, or closed")
        return self._lanes[number]

    async def _read(self, query: Step[ResultT]) -> ResultT:
        readers = self._lanes[1:] or [self._lane(0)]
        return await min(readers, key=lambda lane: lane.pending).read(query)

    async def _mutate(self, step: Step[ResultT]) -> ResultT:
        return await self._lane(0).mutate(step)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take the error of a task whose caller may be gone, or Python reports it as unhandled."""
    if not task.cancelled():
        task.exception()


def _path_of(url: str) -> str | None:
    parts = parse_url(url)
    if parts.host or parts.port or parts.username is not None:
        raise ConfigurationError(
            f"{redact(url)!r} names a host; write sqlite:///file.db for a relative path, "
            "sqlite:////folder/file.db for an absolute one"
        )
    if parts.path and not parts.path.startswith("/"):
        place = redact(parts.path)
        raise ConfigurationError(f"{redact(url)!r} has no slashes; write sqlite:///{place}")
    name = parts.path[1:]
    if name in ("", ":memory:"):
        return None
    if "\0" in name:
        raise ConfigurationError(f"{redact(url)!r} has a NUL in its path")
    return str(Path(name).absolute())


def _create_engine(path: str | None, *, create: bool) -> AsyncEngine:
    arguments: dict[str, Any] = {"timeout": 0, "isolation_level": None}
    if path is None:
        return create_async_engine(URL.create("sqlite+aiosqlite"), connect_args=arguments)
    # Verifying must not leave an empty file behind.
    mode = "rwc" if create else "rw"
    name = f"file:{quote(os.fsencode(path))}"
    _try_to_open(path, f"{name}?mode={mode}")
    return create_async_engine(
        URL.create("sqlite+aiosqlite", database=name, query={"mode": mode, "uri": "true"}),
        connect_args=arguments,
        pool_size=1 + _READERS,
        max_overflow=0,
        pool_reset_on_return=None,
    )


def _try_to_open(path: str, uri: str) -> None:
    # A connection of aiosqlite that cannot be opened leaves a thread, which outlives a loop that
    # closes soon, and complains.
    _refuse_foreign_file(Path(path))
    try:
        sqlite3.connect(uri, uri=True, timeout=0).close()
    except sqlite3.Error as error:
        if uri.endswith("=rw") and _is_missing(Path(path)):
            raise not_set_up(path, "there is no such file") from error
        raise translate(error, path) from error


def _refuse_foreign_file(file: Path) -> None:
    """SQLite itself takes a file that is shorter than its header for an empty database."""
    try:
        size = file.stat().st_size
    except OSError:
        return  # Missing or unreadable: opening says so, and why.
    if not (file.is_file() or file.is_dir()):
        raise ConfigurationError(f"{str(file)!r} is no file, but a pipe, a socket or a device")
    if 0 < size < _HEADER_BYTES and file.is_file():
        raise ConfigurationError(
            f"the file {str(file)!r} is not an SQLite database; name another path"
        )


def _is_missing(file: Path) -> bool:
    try:
        return file.parent.is_dir() and not file.exists()
    except OSError:
        return False


def _version(db: Database) -> int | None:
    """The version of the tables; ``None`` if there are none."""
    found = {
        name
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    }
    ours = metadata.tables.keys() & found
    missing = metadata.tables.keys() - found
    if not ours:
        return None
    if missing and "outlast_schema" in found:
        raise ConfigurationError(
            f"the database has lost its table {min(missing)!r}; restore a backup"
        )
    version = None
    if "outlast_schema" in found:
        version = db.execute("SELECT MAX(version) FROM outlast_schema").fetchone()[0]
    if version is None:
        # They are made in one transaction, so no other process is about to add it.
        raise ConfigurationError(
            f"the database has a table {min(ours)!r}, but no version of outlast's tables in "
            "'outlast_schema'; restore a backup, or move tables that are not outlast's elsewhere"
        )
    try:
        return index(version)
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_schema", error) from error


def _switch_to_wal(db: Database) -> None:
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigurationError(
            f"SQLite cannot keep a write-ahead log here (its journal mode stays {mode!r}); put the "
            "database on a local disk"
        )


def _create(db: Database) -> int:
    version = _version(db)
    if version is None:
        for statement in create_statements(sqlite_dialect()):
            db.execute(statement)
        db.execute("INSERT INTO outlast_schema (version) VALUES (?)", (SCHEMA_VERSION,))
        version = SCHEMA_VERSION
    return version


def _checkpoint(db: Database) -> None:
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
