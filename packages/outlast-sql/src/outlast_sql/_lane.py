"""One SQLite connection, seen from the event loop: every call is one visit to its thread.

aiosqlite gives a connection a thread with a queue. Visiting it once for each statement makes one
transaction cost five inserts, and leaves it open between the visits; so a whole transaction is one
function on that queue (H-Q2, H-Q3).
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from sqlalchemy.ext.asyncio import AsyncConnection

from outlast.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    OutlastError,
    UnavailableError,
)
from outlast_sql._calls import Call, Seat, StoppedError, Transaction, Work
from outlast_sql._errors import translate
from outlast_sql._reads import Database

ResultT = TypeVar("ResultT")

_PATIENCE: Final = 0.8
_LIMIT: Final = 0.9
_LAST: Final = 0.05
"""Parts of a call's time: for waiting for a lock; for all of it; for its end if it is broken off
then. So the answer, and whether anything was applied, comes before the caller's own time is up."""
_SETTLE: Final = 1.0
"""Seconds that a cancelled call waits for its transaction to end; a healthy disk needs a few ms."""
_INTERRUPT_AGAIN: Final = 0.01


class _Queue(Protocol):
    def put_nowait(self, item: tuple[None, Callable[[], Any]], /) -> None: ...


class Lane:
    """A connection that is checked out of the pool for as long as the driver is open."""

    def __init__(
        self, lease: AsyncConnection, connection: object, path: str | None, timeout: float
    ) -> None:
        """Use `check_out`."""
        self._lease = lease
        self._timeout = timeout
        # aiosqlite has no public way to run a function; SQLAlchemy's dialect uses the same two.
        self._queue = cast("_Queue", getattr(connection, "_tx"))  # noqa: B009
        self._db = cast("sqlite3.Connection", getattr(connection, "_conn"))  # noqa: B009
        self._seat = Seat(self._db, self._guard)
        self._before: Mapping[str, object] = {}
        self._file: tuple[int, int] | None = None
        self.path = path
        """The database file; ``None`` in memory."""
        self._under_way: set[Call[Any]] = set()

    @property
    def pending(self) -> int:
        """How many calls are on the queue, the running one included."""
        return len(self._under_way)

    @classmethod
    async def check_out(
        cls,
        lease: AsyncConnection,
        path: str | None,
        settings: Mapping[str, object],
        timeout: float,
    ) -> "Lane":
        """Take the connection of ``lease`` and give it ``settings``, by name of the PRAGMA.

        ``timeout``: seconds that one call may take.
        """
        raw = await lease.get_raw_connection()
        lane = cls(lease, raw.driver_connection, path, timeout)
        configure = partial(_configure, lane._db, settings)
        lane.path, lane._before = await lane.read(configure)
        return lane

    async def give_back(self) -> None:
        """Return the connection to the pool with the settings that it had, or not at all."""
        # Only where the loop of the caller has ended there are any: nobody waits for them.
        for call in self._under_way:
            call.stop()
        try:
            await self.read(partial(_restore, self._db, self._before))
        except OutlastError:
            await self._lease.invalidate()
        finally:
            await self._lease.close()

    async def read(self, work: Work[ResultT]) -> ResultT:
        """Run a function outside of a transaction."""
        return await self._run(Call(self._seat, work, self._timeout * _PATIENCE))

    async def mutate(self, work: Work[ResultT]) -> ResultT:
        """Run a function as one transaction that excludes every other writer."""
        call = Transaction(self._seat, work, self._timeout * _PATIENCE)
        self._seat.waiting.append(call)
        return await self._run(call)

    async def _run(self, call: Call[ResultT]) -> ResultT:
        done: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        done.add_done_callback(partial(self._finished, call))
        self._under_way.add(call)
        self._queue.put_nowait((None, partial(_answer, call, done)))
        try:
            try:
                async with asyncio.timeout(self._timeout * _LIMIT):
                    return await asyncio.shield(done)
            except TimeoutError:
                await _break_off(call, done, self._timeout * _LAST)
            except asyncio.CancelledError:
                await _break_off(call, done, _SETTLE)
                raise
            if done.done():
                return done.result()
        except sqlite3.Error as error:
            raise translate(error, self.path, committing=call.committing) from error
        except StoppedError as error:
            raise UnavailableError(self._too_slow("it was broken off")) from error
        if call.committing:
            raise OutcomeUnknownError(self._too_slow("its commit is not confirmed"))
        raise UnavailableError(self._too_slow("it will not be committed"))

    def _too_slow(self, consequence: str) -> str:
        return f"no answer within {self._timeout * _LIMIT:g} s; {consequence}"

    def _finished(self, call: Call[Any], done: asyncio.Future[Any]) -> None:
        self._under_way.discard(call)
        done.exception()  # Retrieved here, since the caller may have been cancelled.

    def watch_file(self) -> None:
        """From now on refuse to work if another file, or none, has taken this one's place."""
        self._file = None if self.path is None else _identity(self.path)

    def _guard(self) -> None:
        if getattr(self._db, "autocommit", True) is False:
            raise ConfigurationError(
                "the engine's connections have autocommit=False, which keeps them inside a "
                "transaction at all times; give an engine made without it"
            )
        if self._db.in_transaction:
            # Possible only where an engine of the caller's shares one connection between all.
            raise UnavailableError(
                "the engine's connection is inside a transaction of another user; give an engine "
                "whose pool has a connection for the backend alone"
            )
        # SQLite would go on with the file that was unlinked, and lose it all with the process.
        if self._file is not None and self.path and _identity(self.path) != self._file:
            raise UnavailableError(
                f"the database file {self.path!r} was removed or replaced while it was open; close "
                "the backend and open it again"
            )


def _answer(call: Call[ResultT], done: asyncio.Future[ResultT]) -> None:
    """Run a call in the connection's thread, and tell its loop.

    aiosqlite's own way to tell ends the thread if that loop has ended, and with it all who wait.
    """
    answer: ResultT | None = None
    error: BaseException | None = None
    try:
        answer = call()
    except BaseException as raised:  # noqa: BLE001 - the loop is told
        error = raised
    with contextlib.suppress(RuntimeError):
        done.get_loop().call_soon_threadsafe(_settle, done, answer, error)


def _settle(done: asyncio.Future[Any], answer: object, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(answer)
    else:
        done.set_exception(error)


async def _break_off(call: Call[Any], done: asyncio.Future[Any], seconds: float) -> None:
    latest = time.monotonic() + seconds
    # Again and again: what is interrupted is one statement, if there is one just then.
    while (call.stop() or call.committing) and not done.done() and time.monotonic() < latest:
        await asyncio.wait([done], timeout=_INTERRUPT_AGAIN)


_ATTRIBUTES: Final[Mapping[str, object]] = {
    "isolation_level": None,
    "row_factory": None,
    "text_factory": str,
}
"""Of a connection in Python, as the statements need them."""


def _configure(
    connection: sqlite3.Connection, settings: Mapping[str, object], db: Database
) -> tuple[str | None, Mapping[str, object]]:
    before: dict[str, object] = {}
    for name, value in _ATTRIBUTES.items():
        before[name] = getattr(connection, name)
        setattr(connection, name, value)
    for name, value in settings.items():
        found = db.execute(f"PRAGMA {name}").fetchone()
        if found is not None:  # What is deprecated may have been left out of the library.
            (before[name],) = found
            db.execute(f"PRAGMA {name} = {value}")
    main = next(row for row in db.execute("PRAGMA database_list").fetchall() if row[1] == "main")
    return main[2] or None, before


def _restore(connection: sqlite3.Connection, settings: Mapping[str, object], db: Database) -> None:
    for name, value in settings.items():
        if name not in _ATTRIBUTES:
            db.execute(f"PRAGMA {name} = {value}")
    for name in settings.keys() & _ATTRIBUTES.keys():
        setattr(connection, name, settings[name])


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
