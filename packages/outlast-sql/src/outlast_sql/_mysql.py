"""MySQL and MariaDB: a mutation is one compound statement (MariaDB), or a short transaction."""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from sqlalchemy.dialects.mysql import dialect as mysql_dialect
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.driver import PRIMARY, Capabilities, Entry, Fence, Index, Scope
from outlast.errors import ConfigurationError, OutlastError, UnavailableError
from outlast.url import parse_url, redact, scheme_of
from outlast_sql import _mysql_sql as sql
from outlast_sql._batches import Parameters
from outlast_sql._links import Link
from outlast_sql._mysql_errors import TRANSIENT, errno_of, translate
from outlast_sql._mysql_links import OPTIONS, LentAsyncmyLink, connect_asyncmy
from outlast_sql._reads import Dialect, Row, encoded
from outlast_sql._schema import (
    LOG_CODES,
    REGISTER_CODES,
    SCHEMA_VERSION,
    create_statements,
    metadata,
)
from outlast_sql._server import POOL_SIZE, ServerDriver, mark_of

_MIB: Final = 2**20
_LEAST: Final = Capabilities(
    data_survives=frozenset({"process"}),
    fences_survive=frozenset({"process"}),
    reach="network",
    max_message_bytes=8 * _MIB,
)
_PACKET_MARGIN: Final = _MIB // 2
"""Of a packet, for what is not the message."""
_AT_ONCE: Final = 8
"""Entries that one compound statement appends."""
_ROUND: Final = 4
"""Batches are filled up to a multiple of this, so that connections prepare few statements."""
_DUPLICATE_INDEX: Final = 1061
_COMPOUND_SINCE: Final = (10, 6)
"""The first MariaDB whose compound statements can be prepared."""

_VARIABLES: Final = (
    "binlog_format",
    "innodb_doublewrite",
    "innodb_flush_log_at_trx_commit",
    "innodb_flush_method",
    "max_allowed_packet",
    "read_only",
    "version",
    "wsrep_on",
    "wsrep_sync_wait",
)
_SETTINGS: Final = "SHOW VARIABLES WHERE Variable_name IN ({})".format(
    ", ".join(f"'{name}'" for name in _VARIABLES)
)
_TABLES: Final = """
SELECT table_name, engine FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name IN ({})
""".format(", ".join(f"'{name}'" for name in metadata.tables))
_VERSION: Final = "SELECT MAX(version), TIMESTAMPDIFF(SECOND, NOW(), SYSDATE()) FROM outlast_schema"
_CLOCK_SECONDS: Final = 60
"""By which the time of a session may differ from that of its server."""
_LOCK: Final = "CONCAT('outlast:', MD5(DATABASE()))"
_DIALECT: Final[Any] = mysql_dialect


class MysqlDriver(ServerDriver):
    """A MySQL or MariaDB database."""

    name = "mysql"
    options = frozenset({"pool_size", "ssl"})
    dialect = Dialect(
        now=sql.NOW,
        for_update=" FOR UPDATE",
        for_share=" LOCK IN SHARE MODE",
        insert_or_ignore="INSERT IGNORE",
    )
    LEAST: ClassVar[Capabilities] = _LEAST
    TRANSIENT = TRANSIENT
    REFUSED = TRANSIENT
    TOGETHER = sql.TOGETHER

    _compound = False
    """Whether the server knows compound statements."""

    @classmethod
    def for_url(
        cls,
        url: str,
        dbapi: str,
        *,
        namespace: str,
        timeout: float,
        pool_size: int = POOL_SIZE,
        **options: Any,
    ) -> "MysqlDriver":
        shown = redact(url)
        if dbapi not in ("", "asyncmy"):
            raise ConfigurationError(
                f"{shown!r}: MySQL and MariaDB are reached through asyncmy, not {dbapi!r}"
            )
        parts = parse_url(url, options=OPTIONS)
        if len(parts.path) < 2:
            raise ConfigurationError(f"{shown!r} names no database; write mysql://host/database")
        if importlib.util.find_spec("asyncmy") is None:
            raise ConfigurationError(
                'MySQL needs the package asyncmy; install it with: pip install "outlast[mysql]"'
            )
        made = cls(
            namespace=namespace,
            timeout=timeout,
            place=f"the database at {shown}",
            hint=f"run: outlast setup {shown}",
            make=partial(connect_asyncmy, parts, options, timeout),
            pool_size=pool_size,
        )
        made.name = scheme_of(url).partition("+")[0]
        return made

    @classmethod
    def for_engine(cls, engine: AsyncEngine, *, namespace: str, timeout: float) -> "MysqlDriver":
        if engine.dialect.driver != "asyncmy":
            raise ConfigurationError(
                f"the engine uses {engine.dialect.driver!r}; MySQL and MariaDB are reached through "
                "asyncmy"
            )
        made = cls(
            namespace=namespace,
            timeout=timeout,
            place=f"the database at {engine.url.render_as_string(hide_password=True)}",
            hint="open it once with setup=True",
            engine=engine,
            link_on=LentAsyncmyLink,
        )
        made.name = engine.dialect.name
        return made

    @staticmethod
    def _written(statement: str) -> str:
        return statement

    def _code(self, error: BaseException | None) -> object:
        return errno_of(error)

    def _translated(self, error: BaseException, *, sent: bool) -> OutlastError:
        return translate(error, self._place, self._hint, sent=sent)

    async def _send_together(
        self, statement: str, link: Link, calls: Sequence[Parameters]
    ) -> Mapping[int, Row]:
        missing = -len(calls) % _ROUND
        parameters = [value for call in calls for value in call]
        parameters += [None] * (missing * len(calls[0]))
        (row,) = await link.fetch(sql.together(statement, len(calls) + missing), parameters)
        return {place: (answer,) for place, answer in enumerate(row) if answer is not None}

    async def _version(self) -> int | None:
        rows = {str(name).lower(): value for name, value in await self._fetch(_SETTINGS)}
        self._judge({name: str(value) for name, value in rows.items()})
        found = {str(name): str(engine) for name, engine in await self._fetch(_TABLES)}
        if "outlast_schema" not in found:
            return None
        ((version, behind),) = await self._fetch(_VERSION)
        if abs(behind) > _CLOCK_SECONDS:
            raise ConfigurationError(
                f"sessions of {self._place} have the variable timestamp set, so that their clock "
                "stands still; set it to DEFAULT"
            )
        if version is None:
            return None
        self._check_tables(found)
        for name, engine in found.items():
            if engine.lower() != "innodb":
                raise ConfigurationError(
                    f"the table {name} of {self._place} has the engine {engine}, which knows no "
                    f"transactions; run: ALTER TABLE {name} ENGINE = InnoDB"
                )
        return int(version)

    def _judge(self, settings: Mapping[str, str]) -> None:
        if settings.get("read_only", "OFF") not in ("OFF", "0"):
            raise ConfigurationError(
                f"{self._place} is read-only: a replica, or set so; give the primary"
            )
        packet = int(settings["max_allowed_packet"])
        limit = packet - _PACKET_MARGIN
        if limit < _LEAST.max_message_bytes:
            raise ConfigurationError(
                f"{self._place} takes packets of {packet} bytes only; set max_allowed_packet to "
                "16M or more"
            )
        version = settings["version"]
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        self._compound = "mariadb" in version.lower() and numbers >= _COMPOUND_SINCE
        hazards = list(_hazards(settings))
        self._declare(
            hazards,
            max_message_bytes=min(limit, 128 * _MIB),
            # MySQL has no setting that ends an idle transaction; a lent connection has its own.
            stopped_writer_blocks=not (self._compound and self._owns_links),
        )

    async def _create(self) -> None:
        await self._on_link(self._create_on, lambda: False)

    async def _create_on(self, link: Link) -> None:
        # The lock is the connection's: one connection does it all.
        seconds = max(1, round(self._timeout / 2))
        ((held,),) = await link.fetch(f"SELECT GET_LOCK({_LOCK}, {seconds})")
        if not held:
            raise UnavailableError(f"another process has been setting up {self._place} for long")
        try:
            for statement in create_statements(_DIALECT()):
                try:
                    await link.run(statement)
                except Exception as error:
                    if errno_of(error) != _DUPLICATE_INDEX:
                        raise
            await link.run(
                f"INSERT INTO outlast_schema (version) SELECT {SCHEMA_VERSION} FROM DUAL"
                " WHERE NOT EXISTS (SELECT 1 FROM outlast_schema)"
            )
        finally:
            await link.fetch(f"SELECT RELEASE_LOCK({_LOCK})")

    async def write(
        self,
        scope: Scope,
        register: str,
        data: bytes | None,
        *,
        fence: Fence | None,
        index: Index | None = None,
        if_version: int | None = None,
    ) -> int:
        if self._compound:
            mark = mark_of(fence)
            parameters: list[Any] = [*self._key(scope), *mark[:3], data, REGISTER_CODES[register]]
            if if_version is not None:
                parameters.append(if_version)
            parameters += mark[3:]
            if data is None:
                is_primary = register == PRIMARY[scope.kind]
                statement = sql.empty(primary=is_primary, compared=if_version is not None)
            else:
                statement = sql.write(indexed=index is not None, compared=if_version is not None)
                if index is not None:
                    parameters += encoded(index.parent), encoded(index.status), index.updated_at
            rows = await self._at_once(statement, parameters)
            if rows:
                return int(rows[0][0])
        return await super().write(
            scope, register, data, fence=fence, index=index, if_version=if_version
        )

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        if self._compound and entries and not present and self._fit(entries):
            mark = mark_of(fence)
            new = _rows(LOG_CODES[log], entries)
            parameters = (*self._key(scope), *mark[:3], *new, *mark[3:])
            if await self._at_once(_APPEND[len(entries)], parameters):
                return []
        return await super().append(scope, log, entries, fence=fence, present=present)

    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        if self._compound and self._fit(entries):
            mark = mark_of(fence)
            new = LOG_CODES[log], *_rows(LOG_CODES[log], entries)
            parameters = (*self._key(scope), *mark[:3], *new, *mark[3:])
            if await self._at_once(_REPLACE[len(entries)], parameters):
                return
        await super().replace(scope, log, entries, fence=fence)

    def _fit(self, entries: Sequence[Entry]) -> bool:
        """Whether one statement takes them all."""
        size = sum(len(entry.data) for entry in entries)
        return len(entries) <= _AT_ONCE and size <= self.capabilities.max_message_bytes

    async def remove(self, scope: Scope, *, fence: Fence | None) -> None:
        if self._compound:
            mark = mark_of(fence)
            if await self._at_once(sql.REMOVE, (*self._key(scope), *mark)):
                return
        await super().remove(scope, fence=fence)


_APPEND: Final = {count: sql.append(count) for count in range(1, _AT_ONCE + 1)}
_REPLACE: Final = {count: sql.replace(count) for count in range(_AT_ONCE + 1)}


def _rows(log: int, entries: Sequence[Entry]) -> list[Any]:
    return [part for entry in entries for part in (log, entry.id.encode(), entry.data)]


def _hazards(settings: Mapping[str, str]) -> Sequence[str]:
    found: list[str] = []
    lost = "a crash of the server may lose the newest writes and fences, although they were"
    flush = settings.get("innodb_flush_log_at_trx_commit", "1")
    if flush not in ("1", "3"):
        found.append(f"innodb_flush_log_at_trx_commit is {flush}: {lost} acknowledged; set it to 1")
    if settings.get("innodb_flush_method", "").lower() in ("nosync", "littlesync"):
        found.append(f"innodb_flush_method is {settings['innodb_flush_method']}: {lost} flushed")
    if settings.get("innodb_doublewrite", "ON").upper() in ("OFF", "0"):
        found.append(
            "innodb_doublewrite is off: a crash of the server may damage pages; set it to on"
        )
    if settings.get("wsrep_on", "OFF") == "ON" and settings.get("wsrep_sync_wait") == "0":
        found.append(
            "wsrep_sync_wait is 0 in a Galera cluster: reads from another node are old; set it to 1"
        )
    return found
