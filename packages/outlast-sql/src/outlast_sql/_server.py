"""What the drivers of database servers share: links, transactions, and what their errors mean."""

import abc
import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.driver import Capabilities, Fence, Survives
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    OutlastError,
    UnsupportedVersionError,
    shown,
)
from outlast.retry import backoff
from outlast_sql._batches import Batches, Parameters
from outlast_sql._driver import SqlDriver, Step
from outlast_sql._links import Link
from outlast_sql._pool import LentLinks, OwnLinks, Pool
from outlast_sql._reads import Query, Row
from outlast_sql._schema import SCHEMA_VERSION, metadata
from outlast_sql._session import Session

ResultT = TypeVar("ResultT")

POOL_SIZE: Final = 10
_DURABLE: Final[frozenset[Survives]] = frozenset({"process", "server"})
_PATIENCE: Final = 0.8
"""Part of a call's time for getting a link: then it is known that nothing was sent."""
_MEETINGS: Final = 12
"""How often transactions that met others begin again."""


class Mark(NamedTuple):
    """The fence as the statements check and leave it; an unclaimed one leaves it as it is."""

    epoch: int
    claim_id: bytes
    below: int
    seq: int
    op: bytes


_UNCLAIMED: Final = Mark(0, b"", 1, 0, b"")


def mark_of(fence: Fence | None) -> Mark:
    """What ``fence`` means to a statement."""
    if fence is None:
        return _UNCLAIMED
    return Mark(fence.epoch, fence.claim_id.encode(), fence.seq, fence.seq, fence.op.encode())


class ServerDriver(SqlDriver):
    """A database on a server.

    Args:
        place: The database, for people.
        hint: How to set it up, for people.
        make: Makes a link; ``None``: ``engine`` lends them.
        link_on: Makes a link of a connection of ``engine``.
        pool_size: How many links at most.
    """

    LEAST: ClassVar[Capabilities]
    """What holds whatever the server's settings are."""
    TRANSIENT: ClassVar[frozenset[Any]]
    """Codes that tell that two transactions met, and that this one left no trace."""
    REFUSED: ClassVar[frozenset[Any]]
    """Codes of a statement of one step that could not be applied at once."""
    TOGETHER: ClassVar[Collection[str]]
    """Statements of one step that `_send_together` can send for several scopes at once."""

    def __init__(
        self,
        *,
        namespace: str,
        timeout: float,
        place: str,
        hint: str,
        make: Callable[[], Any] | None = None,
        engine: AsyncEngine | None = None,
        link_on: Callable[[Any], Link] | None = None,
        pool_size: int = POOL_SIZE,
    ) -> None:
        super().__init__(namespace=namespace, timeout=timeout, engine=engine)
        if type(pool_size) is not int or pool_size < 1:
            raise ConfigurationError(
                f"pool_size must be a whole number of at least 1, not {shown(pool_size)}"
            )
        self._place = place
        self._hint = hint
        self._make = make
        self._link_on = link_on
        self._pool_size = pool_size
        self._pool: Pool | None = None
        self._batches = {
            statement: Batches(
                partial(self._send_together, statement),
                self._on_link,
                lambda: self._pool is not None and self._pool.is_busy,
                timeout * _PATIENCE,
            )
            for statement in self.TOGETHER
        }
        self._hazards: Sequence[str] = ()
        self.capabilities = self.LEAST

    @staticmethod
    @abc.abstractmethod
    def _written(statement: str) -> str:
        """A statement with ``?``, as a link understands it."""

    @abc.abstractmethod
    def _translated(self, error: BaseException, *, sent: bool) -> OutlastError:
        """What an error means; ``sent``: a mutation may have been applied."""

    @abc.abstractmethod
    def _code(self, error: BaseException | None) -> object:
        """The server's code for its refusal, or ``None``."""

    @abc.abstractmethod
    async def _send_together(
        self, statement: str, link: Link, calls: Sequence[Parameters]
    ) -> Mapping[int, Row]:
        """Run a statement for each of several scopes, as one; the rows of those that were done, by
        their places.

        It waits for no scope that is locked, and leaves it out like one that does not admit it.
        """

    @abc.abstractmethod
    async def _version(self) -> int | None:
        """The version of the tables, ``None`` if they are not set up; takes note of the server's
        settings.

        Raises:
            ConfigurationError: The server or its tables cannot be used as they are.
        """

    @abc.abstractmethod
    async def _create(self) -> None:
        """Create the tables that are missing; only one process at a time does it."""

    async def setup(self, *, create: bool) -> None:
        was_open = self._pool is not None
        if not was_open:
            self._pool = self._new_pool()
        try:
            await self._prepare(create=create)
        except BaseException:
            if not was_open:
                await self.aclose()
            raise

    async def _prepare(self, *, create: bool) -> None:
        version = await self._version()
        if version is None and create:
            await self._create()
            version = await self._version()
        if version is None:
            raise ConfigurationError(
                f"{self._place} is not set up for outlast (its tables are missing); {self._hint}"
            )
        if version > SCHEMA_VERSION:
            raise UnsupportedVersionError(
                f"{self._place} has tables of version {version}; this version of outlast-sql knows "
                f"those up to {SCHEMA_VERSION}: upgrade it"
            )

    def _check_tables(self, found: Iterable[str]) -> None:
        missing = metadata.tables.keys() - set(found)
        if missing:
            raise ConfigurationError(
                f"{self._place} has lost its table {min(missing)!r}; restore a backup"
            )

    @property
    def _owns_links(self) -> bool:
        return self._make is not None

    def _declare(
        self,
        hazards: Sequence[str],
        *,
        max_message_bytes: int,
        stopped_writer_blocks: bool = False,
    ) -> None:
        """Take note of what the server's settings allow to promise (D1, D2)."""
        self._hazards = hazards
        least = self.LEAST
        self.capabilities = Capabilities(
            data_survives=least.data_survives if hazards else _DURABLE,
            fences_survive=least.fences_survive if hazards else _DURABLE,
            reach=least.reach,
            max_message_bytes=max_message_bytes,
            stopped_writer_blocks=stopped_writer_blocks,
        )

    def _new_pool(self) -> Pool:
        patience = self._timeout * _PATIENCE

        def explain(error: BaseException) -> OutlastError:
            return self._translated(error, sent=False)

        if self._make is not None:
            return OwnLinks(
                self._make,
                limit=self._pool_size,
                place=self._place,
                patience=patience,
                explain=explain,
            )
        assert self._engine is not None
        assert self._link_on is not None
        return LentLinks(
            self._engine, self._link_on, place=self._place, patience=patience, explain=explain
        )

    async def hazards(self) -> Sequence[str]:
        return self._hazards

    async def ping(self) -> None:
        await self._fetch("SELECT 1")

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        for batches in self._batches.values():
            await batches.aclose()
        if pool is not None:
            await pool.aclose()

    def _links(self) -> Pool:
        if self._pool is None:
            raise ClosedError("the driver is not set up, or closed")
        return self._pool

    async def _read(self, query: Query[ResultT]) -> ResultT:
        return query.decode(list(await self._fetch(self._written(query.sql), query.parameters)))

    async def _fetch(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        changes: bool = False,
        waited: float = 0.0,
    ) -> Sequence[Row]:
        """Run one statement by itself."""
        rows: Sequence[Row] = await self._on_link(
            lambda link: link.fetch(sql, parameters), lambda: changes, waited=waited
        )
        return rows

    async def _at_once(self, sql: str, parameters: Parameters) -> Sequence[Row]:
        """Run a mutation as one statement; no rows if it has to be done, or refused, by steps."""
        batches = self._batches.get(sql)
        if batches is None:
            return await self._alone(sql, parameters, 0.0)
        return await batches.call(parameters, partial(self._alone, sql, parameters))

    async def _alone(self, sql: str, parameters: Parameters, waited: float) -> Sequence[Row]:
        try:
            return await self._fetch(sql, parameters, changes=True, waited=waited)
        except OutlastError as error:
            if self._code(error.__cause__) in self.REFUSED:
                return ()
            raise

    async def _on_link(
        self, work: Callable[[Link], Any], sent: Callable[[], bool], *, waited: float = 0.0
    ) -> Any:
        """Do something with a link; ``sent``: whether a mutation may have been applied by now;
        ``waited``: seconds that have gone by.

        On a link that died while it was idle nothing was sent, or nothing that lasts: another one
        does it, until there are none left but new ones (H-Q9).
        """
        pool = self._links()
        while True:
            link = await pool.take(waited)
            try:
                answer = await work(link)
            except BaseException as error:
                is_usable = link.survives(error)
                if is_usable:
                    await pool.give(link)
                else:
                    pool.drop(link)
                if isinstance(error, OutlastError) or not isinstance(error, Exception):
                    raise
                may_be_applied = sent() and not link.sent_nothing(error)
                if is_usable or may_be_applied or not link.is_used:
                    raise self._translated(error, sent=may_be_applied) from error
            else:
                link.is_used = True
                await pool.give(link)
                return answer

    async def _mutate(self, step: Step[ResultT]) -> ResultT:
        for meeting in itertools.count(1):
            try:
                return await self._transaction(step)
            except OutlastError as error:
                if meeting == _MEETINGS or self._code(error.__cause__) not in self.TRANSIENT:
                    raise
            await asyncio.sleep(backoff(meeting, base=0.001, cap=0.05))
        raise AssertionError("unreachable")

    async def _transaction(self, step: Step[ResultT]) -> ResultT:
        session: Session | None = None

        async def whole(link: Link) -> ResultT:
            nonlocal session
            session = Session(link, self.dialect, self._written)
            return await session.transaction(step)

        answer: ResultT = await self._on_link(
            whole, lambda: session is not None and session.committing
        )
        return answer


__all__ = ["POOL_SIZE", "ServerDriver"]
