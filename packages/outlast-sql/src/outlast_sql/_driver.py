"""What all dialects share: choosing the driver, options, and driver calls as steps.

A dialect's driver says how a step runs: `SqlDriver._read` and `SqlDriver._mutate`. One that can do
a call in fewer round trips overrides the call.
"""

import abc
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.driver import (
    PRIMARY,
    Decoding,
    Driver,
    Entry,
    Fence,
    Index,
    Page,
    Scope,
    ScopeKind,
    SweepPage,
    Value,
    Where,
)
from outlast.errors import ConfigurationError
from outlast.url import redact, scheme_of
from outlast_sql import _mutations, _reads, _sweeping
from outlast_sql._reads import Dialect, Query
from outlast_sql._schema import KIND_CODES, LOG_CODES, REGISTER_CODES

ResultT = TypeVar("ResultT")
Step = Callable[[Any], ResultT]

_DIALECTS: Final[Mapping[str, str]] = {
    "mariadb": "outlast_sql._mysql:MysqlDriver",
    "mysql": "outlast_sql._mysql:MysqlDriver",
    "postgresql": "outlast_sql._postgres:PostgresDriver",
    "sqlite": "outlast_sql._sqlite:SqliteDriver",
}
"""SQLAlchemy's name of a dialect, and the driver for it."""


class SqlDriver(Driver):
    """One SQL database, one namespace; made by `from_url` or `from_engine`.

    Args:
        namespace: The world of ids that this driver sees.
        timeout: Seconds that one call may take.
        engine: A ready engine, which stays open; ``None``: the driver makes its own and closes it.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    """The dialect's own options."""
    dialect: ClassVar[Dialect]

    def __init__(
        self, *, namespace: str, timeout: float = 10.0, engine: AsyncEngine | None = None
    ) -> None:
        self._namespace = namespace.encode()
        self._timeout = timeout
        self._engine = engine
        self._owns_engine = engine is None

    @classmethod
    def from_url(
        cls, url: str, *, namespace: str, timeout: float = 10.0, **options: Any
    ) -> "SqlDriver":
        """Make the driver for ``url``; nothing is opened before `setup`.

        Args:
            url: A store URL, such as ``sqlite:///agent.db``; ``+driver`` may be left out.
            namespace: The world of ids that this driver sees.
            timeout: Seconds that one call may take.
            **options: The dialect's own options; SQLite has none.

        Raises:
            ConfigurationError: An unknown dialect, driver or option, or a missing package.
        """
        dialect, _, dbapi = scheme_of(url).partition("+")
        driver = _driver_of(dialect, f"the URL {redact(url)!r}")
        for name in options:
            if name not in driver.options:
                known = ", ".join(sorted(driver.options)) or "none of its own"
                raise ConfigurationError(
                    f"unknown option {name!r} for {driver.name}; it takes {known}"
                )
        return driver.for_url(url, dbapi, namespace=namespace, timeout=timeout, **options)

    @classmethod
    def from_engine(
        cls, engine: AsyncEngine, *, namespace: str, timeout: float = 10.0
    ) -> "SqlDriver":
        """Make the driver for an engine of the caller's, who closes it.

        Raises:
            ConfigurationError: No `AsyncEngine`, or one of an unknown dialect or driver.
        """
        if not isinstance(engine, AsyncEngine):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                "engine must be an AsyncEngine, from create_async_engine(), not "
                f"{type(engine).__name__}"
            )
        driver = _driver_of(engine.dialect.name, "the engine")
        return driver.for_engine(engine, namespace=namespace, timeout=timeout)

    @classmethod
    @abc.abstractmethod
    def for_url(cls, url: str, dbapi: str, *, namespace: str, timeout: float) -> "SqlDriver":
        """`from_url` of the dialect; ``dbapi``: what stood behind the ``+``, or an empty string."""

    @classmethod
    @abc.abstractmethod
    def for_engine(cls, engine: AsyncEngine, *, namespace: str, timeout: float) -> "SqlDriver":
        """`from_engine` of the dialect."""

    @abc.abstractmethod
    async def _read(self, query: Query[ResultT]) -> ResultT:
        """Run a query."""

    @abc.abstractmethod
    async def _mutate(self, step: Step[ResultT]) -> ResultT:
        """Run a step as one transaction, which no other mutation of the scope overlaps."""

    def _key(self, scope: Scope) -> _reads.Key:
        return _reads.Key(self._namespace, KIND_CODES[scope.kind], scope.id.encode())

    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        register = REGISTER_CODES[PRIMARY[scope.kind]]
        return await self._mutate(
            partial(
                _mutations.claim,
                key=self._key(scope),
                register=register,
                claim_id=claim_id,
                at_least=at_least,
                if_epoch=if_epoch,
                parent=parent,
            )
        )

    async def read(self, scope: Scope, register: str) -> Value:
        return await self._read(
            _reads.read(self.dialect, self._key(scope), REGISTER_CODES[register])
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
        return await self._mutate(
            partial(
                _mutations.write,
                key=self._key(scope),
                register=REGISTER_CODES[register],
                data=data,
                fence=fence,
                index=index,
                if_version=if_version,
                is_primary=register == PRIMARY[scope.kind],
            )
        )

    async def load(self, scope: Scope, log: str, *, last: int | None = None) -> list[Entry]:
        return await self._read(_reads.load(self._key(scope), LOG_CODES[log], last))

    async def load_data(
        self,
        scope: Scope,
        log: str,
        decode: Callable[[Iterable[bytes]], ResultT],
        *,
        last: int | None = None,
    ) -> ResultT:
        place = self._key(scope), LOG_CODES[log]
        decoding = _decoding(decode)
        if decoding is not None:
            found = await self._read(_reads.load_rest(*place, decoding, last))
            if found is not None:
                return found
        return await self._read(_reads.load_data(*place, decode, last))

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        return await self._mutate(
            partial(
                _mutations.append,
                key=self._key(scope),
                log=LOG_CODES[log],
                new=entries,
                fence=fence,
                present=present,
            )
        )

    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        await self._mutate(
            partial(
                _mutations.replace,
                key=self._key(scope),
                log=LOG_CODES[log],
                new=entries,
                fence=fence,
            )
        )

    async def remove(self, scope: Scope, *, fence: Fence | None) -> None:
        await self._mutate(partial(_mutations.remove, key=self._key(scope), fence=fence))

    async def scan(self, kind: ScopeKind, *, where: Where, after: str | None, limit: int) -> Page:
        return await self._read(
            _reads.scan(
                self.dialect,
                self._namespace,
                KIND_CODES[kind],
                REGISTER_CODES[PRIMARY[kind]],
                where,
                after,
                limit,
            )
        )

    async def sweep(
        self, *, older_than: float, limit: int, dry_run: bool, after: str | None
    ) -> SweepPage:
        query = _sweeping.stale(self.dialect, self._namespace, older_than, limit, after)
        if dry_run:
            found = await self._read(query)
            return _sweeping.page_of(found, len(found), limit)
        return await self._mutate(
            partial(_sweeping.sweep, namespace=self._namespace, query=query, limit=limit)
        )


def _decoding(decode: Callable[[Iterable[bytes]], ResultT]) -> Decoding[ResultT] | None:
    if not isinstance(decode, Decoding):
        return None
    decoding = cast("Decoding[ResultT]", decode)
    return decoding if decoding.header else None


def _driver_of(dialect: str, source: str) -> type[SqlDriver]:
    target = _DIALECTS.get(dialect)
    if target is None:
        raise ConfigurationError(
            f"{source} is of the dialect {dialect!r}; supported: {', '.join(sorted(_DIALECTS))}"
        )
    module, _, name = target.partition(":")
    driver: type[SqlDriver] = getattr(importlib.import_module(module), name)
    return driver
