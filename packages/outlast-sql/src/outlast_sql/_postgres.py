"""PostgreSQL: a mutation is one statement in autocommit mode, or a transaction if need be."""

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from sqlalchemy.dialects.postgresql import dialect as postgresql_dialect
from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.driver import (
    PRIMARY,
    Capabilities,
    Entry,
    Fence,
    Index,
    Scope,
    Value,
)
from outlast.errors import ConfigurationError, OutlastError
from outlast.url import parse_url, redact
from outlast_sql import _postgres_links as links
from outlast_sql import _postgres_sql as sql
from outlast_sql._batches import Parameters
from outlast_sql._links import Link
from outlast_sql._postgres_errors import REFUSED, TRANSIENT, sqlstate_of, translate
from outlast_sql._reads import Dialect, Row, encoded, value_of
from outlast_sql._schema import (
    LOG_CODES,
    REGISTER_CODES,
    REGISTERS_OF_KIND,
    SCHEMA_VERSION,
    create_statements,
    metadata,
)
from outlast_sql._server import POOL_SIZE, ServerDriver, mark_of
from outlast_sql._session import numbered

_LEAST: Final = Capabilities(
    data_survives=frozenset({"process"}),
    fences_survive=frozenset({"process"}),
    reach="network",
    max_message_bytes=128 * 2**20,
)
_DIALECT: Final[Any] = postgresql_dialect
_LOCK: Final = 0x6F75746C
"""Of the set-up, among the advisory locks of the database."""

_CONNECT: Final = {
    "asyncpg": (links.connect_asyncpg, links.ASYNCPG_OPTIONS, "postgres"),
    "psycopg": (links.connect_psycopg, links.PSYCOPG_OPTIONS, None),
}
_LINKS: Final = {"asyncpg": links.AsyncpgLink, "psycopg": links.PsycopgLink}

_SERVER: Final = f"""
SELECT pg_is_in_recovery(), current_setting('transaction_read_only'),
  current_setting('fsync'), current_setting('full_page_writes'),
  current_setting('synchronous_commit'), current_setting('array_nulls'),
  {", ".join(f"to_regclass('{name}')::text" for name in metadata.tables)},
  EXISTS (SELECT FROM pg_class WHERE relpersistence = 'u' AND oid IN
    ({", ".join(f"to_regclass('{name}')" for name in metadata.tables)}))
"""
_FIRST_VERSION: Final = (
    f"INSERT INTO outlast_schema (version) SELECT {SCHEMA_VERSION}"
    " WHERE NOT EXISTS (SELECT FROM outlast_schema)"
)
_TOGETHER: Final[Mapping[str, str]] = {
    sql.APPEND_ONE: sql.APPEND_TOGETHER,
    **{
        sql.write(indexed=indexed, compared=False): sql.write_together(indexed=indexed)
        for indexed in (False, True)
    },
}


class PostgresDriver(ServerDriver):
    """A PostgreSQL database."""

    name = "postgresql"
    options = frozenset({"pool_size", "ssl"})
    dialect = Dialect(
        now=sql.NOW,
        for_update=" FOR UPDATE",
        for_share=" FOR SHARE",
        on_conflict="ON CONFLICT DO NOTHING",
        has_arrays=True,
    )
    LEAST: ClassVar[Capabilities] = _LEAST
    TRANSIENT = TRANSIENT
    REFUSED = REFUSED
    TOGETHER = _TOGETHER.keys()

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
    ) -> "PostgresDriver":
        shown = redact(url)
        library = dbapi or "asyncpg"
        if library not in _CONNECT:
            raise ConfigurationError(
                f"{shown!r}: PostgreSQL is reached through asyncpg or psycopg, not {dbapi!r}"
            )
        connect, own_options, extra = _CONNECT[library]
        parts = parse_url(url, options=links.OPTIONS | own_options)
        if "ssl" in options and library != "asyncpg":
            raise ConfigurationError("the option ssl is of asyncpg; write ?sslmode=... in the URL")
        if importlib.util.find_spec(library) is None:
            what = f"outlast[{extra}]" if extra else "outlast-sql[psycopg]"
            raise ConfigurationError(
                f'PostgreSQL needs the package {library}; install it with: pip install "{what}"'
            )
        return cls(
            namespace=namespace,
            timeout=timeout,
            place=f"the PostgreSQL database at {shown}",
            hint=f"run: outlast setup {shown}",
            make=partial(connect, parts, options, timeout),
            pool_size=pool_size,
        )

    @classmethod
    def for_engine(cls, engine: AsyncEngine, *, namespace: str, timeout: float) -> "PostgresDriver":
        library = engine.dialect.driver
        if library not in _LINKS:
            raise ConfigurationError(
                f"the engine uses {library!r}; PostgreSQL is reached through asyncpg or psycopg"
            )
        return cls(
            namespace=namespace,
            timeout=timeout,
            place=f"the PostgreSQL database at {engine.url.render_as_string(hide_password=True)}",
            hint="open it once with setup=True",
            engine=engine,
            link_on=_LINKS[library],
        )

    _written = staticmethod(numbered)

    def _code(self, error: BaseException | None) -> object:
        return None if error is None else sqlstate_of(error)[0]

    def _translated(self, error: BaseException, *, sent: bool) -> OutlastError:
        return translate(error, self._place, self._hint, sent=sent)

    async def _send_together(
        self, statement: str, link: Link, calls: Sequence[Parameters]
    ) -> Mapping[int, Row]:
        namespaces, *lists = zip(*calls, strict=True)
        rows = await link.fetch(_TOGETHER[statement], [namespaces[0], *map(list, lists)])
        return {row[0] - 1: row[1:] for row in rows}

    async def _version(self) -> int | None:
        (row,) = await self._fetch(_SERVER)
        is_replica, read_only, *settings = row[:6]
        if is_replica or read_only == "on":
            what = "is a replica: reads from it are old" if is_replica else "is set to read only"
            raise ConfigurationError(f"{self._place} {what}; give the primary")
        self._judge(*settings, is_unlogged=row[-1])
        found = dict(zip(metadata.tables, row[6:-1], strict=True))
        if found["outlast_schema"] is None:
            return None
        ((version,),) = await self._fetch("SELECT MAX(version) FROM outlast_schema")
        if version is None:
            return None
        self._check_tables(name for name, table in found.items() if table is not None)
        return int(version)

    def _judge(self, fsync: str, pages: str, commit: str, nulls: str, *, is_unlogged: bool) -> None:
        if nulls == "off":
            # psycopg sends a list of nothing else as text.
            raise ConfigurationError(
                f"{self._place} has array_nulls set to off, which makes text of what is missing; "
                "set it to on"
            )
        hazards: list[str] = []
        lost = "a crash of the server may lose the newest writes and fences, although they were "
        if fsync == "off":
            hazards.append(f"fsync is off: {lost}acknowledged, or all; set it to on")
        if pages == "off":
            hazards.append(
                "full_page_writes is off: a crash of the server may damage tables; set it to on"
            )
        if commit == "off":
            hazards.append(f"synchronous_commit is off: {lost}acknowledged; set it to on")
        if is_unlogged:
            hazards.append(
                "a table of outlast is UNLOGGED: a crash of the server empties it; set it LOGGED"
            )
        self._declare(hazards, max_message_bytes=_LEAST.max_message_bytes)

    async def _create(self) -> None:
        # One script is one transaction, and the lock lasts as long.
        script = [
            f"SELECT pg_advisory_xact_lock({_LOCK})",
            *create_statements(_DIALECT()),
            _FIRST_VERSION,
        ]
        await self._on_link(lambda link: link.run(";\n".join(script)), lambda: False)

    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        key = self._key(scope)
        primary = REGISTER_CODES[PRIMARY[scope.kind]]
        rows = await self._at_once(
            sql.CLAIM,
            (
                *key,
                claim_id.encode(),
                at_least,
                encoded(parent),
                primary,
                list(REGISTERS_OF_KIND[key.kind]),
                if_epoch,
            ),
        )
        if rows:
            return value_of(rows)
        return await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )

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
        parameters: list[Any] = [
            *self._key(scope),
            *mark_of(fence),
            REGISTER_CODES[register],
            data,
        ]
        if data is None:
            is_primary = register == PRIMARY[scope.kind]
            statement = sql.empty(primary=is_primary, compared=if_version is not None)
        else:
            statement = sql.write(indexed=index is not None, compared=if_version is not None)
            if index is not None:
                parameters += encoded(index.parent), encoded(index.status), index.updated_at
        if if_version is not None:
            parameters.append(if_version)
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
        if entries:
            statement = sql.APPEND_MANY
            new = _columns(entries)
            if present:
                statement = sql.APPEND_IF_PRESENT
                new = (*new, [entry_id.encode() for entry_id in present], len(present))
            elif len(entries) == 1:
                statement = sql.APPEND_ONE
                new = entries[0].id.encode(), entries[0].data
            if await self._at_once(
                statement, (*self._key(scope), *mark_of(fence), LOG_CODES[log], *new)
            ):
                return []
        return await super().append(scope, log, entries, fence=fence, present=present)

    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        statement = sql.REPLACE if entries else sql.EMPTY_LOG
        new = _columns(entries) if entries else ()
        if await self._at_once(
            statement, (*self._key(scope), *mark_of(fence), LOG_CODES[log], *new)
        ):
            return
        await super().replace(scope, log, entries, fence=fence)

    async def remove(self, scope: Scope, *, fence: Fence | None) -> None:
        if not await self._at_once(sql.REMOVE, (*self._key(scope), *mark_of(fence))):
            await super().remove(scope, fence=fence)


def _columns(entries: Sequence[Entry]) -> tuple[Any, ...]:
    return [entry.id.encode() for entry in entries], [entry.data for entry in entries], len(entries)
