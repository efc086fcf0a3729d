"""Connections: made here and kept, or borrowed from an engine of the application for each call."""

import abc
import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sqlalchemy import PoolProxiedConnection
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outlast.errors import ClosedError, OutlastError, UnavailableError
from outlast_sql._errors import unreachable
from outlast_sql._links import CLOSING_SECONDS, Link

Explain = Callable[[BaseException], OutlastError]
"""What an error while connecting means."""


class Pool(abc.ABC):
    """Where links come from.

    Args:
        place: The server, for people.
        patience: Seconds that getting a link may take.
        explain: What an error while connecting means.
    """

    def __init__(self, place: str, patience: float, explain: Explain) -> None:
        self._place = place
        self._patience = patience
        self._explain = explain
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether it is known that all links are in use."""
        return False

    @abc.abstractmethod
    async def take(self, waited: float = 0.0) -> Link:
        """A link that is open and idle.

        Args:
            waited: Seconds that the caller has been waiting for it already.

        Raises:
            OutlastError: There is none; nothing was sent.
        """

    @abc.abstractmethod
    async def give(self, link: Link) -> None:
        """Take it back, idle."""

    @abc.abstractmethod
    def drop(self, link: Link) -> None:
        """Take it back, of no further use: an answer may still come that must meet nobody."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close what was made here."""

    async def _in_time(self, connecting: Awaitable[Any], waited: float = 0.0) -> Any:
        try:
            async with asyncio.timeout(self._patience - waited):
                return await connecting
        except TimeoutError as error:
            raise unreachable(self._place, f"no connection within {self._patience:g} s") from error
        except (OutlastError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise self._explain(error) from error

    def _end(self, closing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Seldom awaited by the call: the server may be the reason why the link is dropped.
        task = asyncio.get_running_loop().create_task(closing, name="outlast-close")
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()

    async def _all_ended(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending, timeout=2 * CLOSING_SECONDS)


class OwnLinks(Pool):
    """Links that are made here, at most so many, and kept; the one used last is used first."""

    def __init__(
        self,
        make: Callable[[], Awaitable[Link]],
        *,
        limit: int,
        place: str,
        patience: float,
        explain: Explain,
    ) -> None:
        super().__init__(place, patience, explain)
        self._make = make
        self._idle: list[Link] = []
        self._all: set[Link] = set()
        self._connecting: set[asyncio.Task[Link]] = set()
        self._slots = asyncio.Semaphore(limit)
        self._limit = limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        return self._slots.locked()

    async def take(self, waited: float = 0.0) -> Link:
        if self._slots.locked():
            await self._wait(waited)
        else:
            await self._slots.acquire()
        while self._idle:
            link = self._idle.pop()
            if link.is_fresh():
                return link
            self._discard(link)
        return await self._connect()

    async def _wait(self, waited: float) -> None:
        try:
            async with asyncio.timeout(self._patience - waited):
                await self._slots.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                f"all {self._limit} connections to {self._place} were in use for "
                f"{self._patience:g} s; raise pool_size"
            ) from error

    async def _connect(self) -> Link:
        self._loop = asyncio.get_running_loop()
        connecting = self._loop.create_task(self._made(), name="outlast-connect")
        self._connecting.add(connecting)
        try:
            link = await asyncio.shield(connecting)
        except BaseException:
            # Seen to its end: cancelled halfway, libraries complain of it later, or swallow it.
            connecting.add_done_callback(self._adopt)
            raise
        self._connecting.discard(connecting)
        return link

    async def _made(self) -> Link:
        if self._is_closed:
            raise ClosedError("the driver is closed")
        link: Link = await self._in_time(self._make())
        self._all.add(link)
        return link

    def _adopt(self, connecting: asyncio.Task[Link]) -> None:
        """Keep the link that a call did not wait for."""
        self._connecting.discard(connecting)
        self._slots.release()
        if connecting.cancelled() or connecting.exception() is not None:
            return
        if self._is_closed:
            self._discard(connecting.result())
        else:
            self._idle.append(connecting.result())

    async def give(self, link: Link) -> None:
        self._slots.release()
        if self._is_closed:
            self._discard(link)
        else:
            self._idle.append(link)

    def drop(self, link: Link) -> None:
        self._slots.release()
        self._discard(link)

    def _discard(self, link: Link) -> None:
        self._all.discard(link)
        self._end(link.close())

    async def aclose(self) -> None:
        self._is_closed = True
        if self._loop is not asyncio.get_running_loop():
            # Nobody can wait for them any more.
            for link in self._all:
                link.abandon()
            self._all.clear()
            self._idle.clear()
            return
        while self._idle:
            self._discard(self._idle.pop())
        if self._connecting:
            _, late = await asyncio.wait(self._connecting, timeout=CLOSING_SECONDS)
            for connecting in late:
                connecting.cancel()
            if late:
                await asyncio.wait(late)
            await asyncio.sleep(0)  # The last of them are being adopted.
        await self._all_ended()


class LentLinks(Pool):
    """Connections of an engine that somebody else owns, each for one call."""

    def __init__(
        self,
        engine: AsyncEngine,
        link_on: Callable[[Any], Link],
        *,
        place: str,
        patience: float,
        explain: Explain,
    ) -> None:
        super().__init__(place, patience, explain)
        self._engine = engine
        self._link_on = link_on
        self._leases: dict[Link, AsyncConnection] = {}

    async def take(self, waited: float = 0.0) -> Link:
        lease = self._engine.connect()
        # To its end even if the caller is cancelled: SQLAlchemy would lose what it connects.
        borrowing = asyncio.get_running_loop().create_task(self._borrow(lease))
        try:
            link: Link = await self._in_time(asyncio.shield(borrowing), waited)
        except BaseException:
            self._end(_give_up(borrowing, lease))
            raise
        self._leases[link] = lease
        return link

    async def _borrow(self, lease: AsyncConnection) -> Link:
        try:
            await lease
            raw = await lease.get_raw_connection()
        except PoolTimeoutError as error:
            raise UnavailableError(
                f"the engine's pool has no free connection to {self._place}"
            ) from error
        link = self._link_of(raw)
        if not link.is_fresh():
            await lease.invalidate()
            link = self._link_of(await lease.get_raw_connection())
        await link.borrowed()
        return link

    def _link_of(self, raw: PoolProxiedConnection) -> Link:
        # With the connection, so that its prepared statements are found again.
        link: Link | None = raw.info.get("outlast")
        if link is None:
            link = raw.info["outlast"] = self._link_on(raw.driver_connection)
        return link

    async def give(self, link: Link) -> None:
        returning = self._end(_check_in(link, self._leases.pop(link)))
        # To its end even if the caller is cancelled: the engine's pool counts what is out.
        await asyncio.shield(returning)

    def drop(self, link: Link) -> None:
        self._end(_throw_away(self._leases.pop(link)))

    async def aclose(self) -> None:
        await self._all_ended()


async def _give_up(borrowing: asyncio.Task[Link], lease: AsyncConnection) -> None:
    await asyncio.wait([borrowing])
    if not borrowing.cancelled():
        borrowing.exception()
    await _throw_away(lease)


async def _check_in(link: Link, lease: AsyncConnection) -> None:
    try:
        await link.returned()
    except Exception:  # noqa: BLE001 - the call itself has ended well
        await _throw_away(lease)
    else:
        await lease.close()


async def _throw_away(lease: AsyncConnection) -> None:
    for end in (lease.invalidate, lease.close):
        # It may never have been connected, or be in whatever state.
        with contextlib.suppress(Exception):
            await end()


__all__ = ["Explain", "LentLinks", "OwnLinks", "Pool"]
