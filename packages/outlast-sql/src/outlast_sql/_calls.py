"""What runs in a connection's thread: functions that can be stopped, and transactions of several.

Nothing here waits inside SQLite for the lock of another connection: a busy database is tried again
until the call's time is up, so that a cancelled call lets go at once and cannot commit later
(H-Q20). Transactions that wait behind one another share its commit, and so the one fsync.
"""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar, cast

from outlast.retry import backoff
from outlast_sql._errors import BUSY, primary_code
from outlast_sql._reads import Database, Dialect

ResultT = TypeVar("ResultT")
Work = Callable[[Database], ResultT]

SQLITE: Final = Dialect(now="NULL", insert_or_ignore="INSERT OR IGNORE", tells_ignored=True)

_ROWS: Final = 200
"""Rows that are written without a look at whether the call was stopped."""
_SHARERS: Final = 64
_SHARING_SECONDS: Final = 0.005
"""Nobody joins a transaction that is older, so that its first caller does not wait for long."""


class StoppedError(Exception):
    """The call was cancelled before its commit."""


class Seat:
    """A connection as its thread sees it.

    Attributes:
        db: The connection.
        guard: Raises if the connection must not be used now.
        waiting: Transactions on the thread's queue that have not begun, in its order.
        changed: Guards the state of all calls; notified when one is stopped.
    """

    __slots__ = ("changed", "db", "guard", "waiting")

    def __init__(self, db: sqlite3.Connection, guard: Callable[[], None]) -> None:
        self.db = db
        self.guard = guard
        self.waiting: deque[Transaction[Any]] = deque()
        self.changed = threading.Condition()


class Call(Generic[ResultT]):
    """One function for a connection's thread, which the event loop may stop.

    To the function, it is the database: so it can be stopped between any two statements.

    Args:
        seat: Where it runs.
        work: The function; it may run more than once, but has an effect at most once.
        patience: Seconds during which a busy database is tried again, from now.
    """

    __slots__ = ("_deadline", "_running", "_seat", "_stopped", "_work", "committing")

    dialect = SQLITE

    def __init__(self, seat: Seat, work: Work[ResultT], patience: float) -> None:
        self._seat = seat
        self._work = work
        self._deadline = time.monotonic() + patience
        self._running = False
        self._stopped = False
        self.committing = False
        """Whether its effect is, or may be, beyond recall."""

    def __call__(self) -> ResultT:
        """Run, in the connection's thread."""
        self.begin()
        try:
            self._seat.guard()
            return self._until_free()
        finally:
            self.end()

    def stop(self) -> bool:
        """Keep it from committing; return whether it is running, and its end worth waiting for."""
        with self._seat.changed:
            self._stopped = True
            self._seat.changed.notify_all()
            if self._running and not self.committing:
                # Hits only its own statements: one call runs at a time.
                self._seat.db.interrupt()
            return self._running

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> sqlite3.Cursor:
        """Run one statement."""
        self._check()
        return self._seat.db.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        """Run one statement for each of many rows."""
        rows = iter(parameters)
        while some := list(islice(rows, _ROWS)):
            self._check()
            self._seat.db.executemany(sql, some)

    def begin(self) -> None:
        """Enter the state in which `stop` interrupts it."""
        with self._seat.changed:
            self._check()
            self._running = True
            self.committing = False

    def end(self) -> None:
        """Leave that state."""
        with self._seat.changed:
            self._running = False

    def _check(self) -> None:
        if self._stopped:
            raise StoppedError

    def _until_free(self) -> ResultT:
        attempt = 0
        while True:
            try:
                return self._attempt()
            except sqlite3.OperationalError as error:
                left = self._deadline - time.monotonic()
                if primary_code(error) not in BUSY or left <= 0:
                    raise
            with self._seat.changed:
                self.committing = False
                if not self._stopped:
                    self._seat.changed.wait(min(left, backoff(attempt, base=0.001, cap=0.02)))
                self._check()
            attempt += 1

    def _attempt(self) -> ResultT:
        return self._work(self)


class Transaction(Call[ResultT]):
    """A call whose function runs between BEGIN IMMEDIATE and COMMIT, or leaves no trace.

    It takes along those that wait behind it, each in a savepoint: what one of them raises undoes
    that one alone, and none of them is answered before the common COMMIT.
    """

    __slots__ = ("_answer", "_error", "_is_answered")

    def __init__(self, seat: Seat, work: Work[ResultT], patience: float) -> None:
        super().__init__(seat, work, patience)
        self._is_answered = False
        self._answer: ResultT | None = None
        self._error: BaseException | None = None

    def __call__(self) -> ResultT:
        if not self._is_answered:
            # First in the queue of the thread is first in the queue of those that wait.
            self._seat.waiting.popleft()
            return super().__call__()
        if self._error is not None:
            raise self._error
        return cast("ResultT", self._answer)

    def _attempt(self) -> ResultT:
        while True:
            self._seat.db.execute("BEGIN IMMEDIATE")
            sharers: list[tuple[Transaction[Any], Any]] = []
            try:
                answer = self._work(self)
                self._commit_next()
                self._share(sharers)
                self._seat.db.execute("COMMIT")
            except BaseException as error:
                # Some errors have rolled back already.
                if self._seat.db.in_transaction:
                    self._seat.db.execute("ROLLBACK")
                if isinstance(error, _RolledBackError):
                    _put_back(self._seat, sharers)
                    continue
                if primary_code(error) in BUSY:
                    _put_back(self._seat, sharers)
                else:
                    for sharer, _ in sharers:
                        sharer.answered(None, error)
                raise
            for sharer, its_answer in sharers:
                sharer.answered(its_answer, None)
            return answer

    def _share(self, sharers: list[tuple["Transaction[Any]", Any]]) -> None:
        waiting = self._seat.waiting
        latest = time.monotonic() + _SHARING_SECONDS
        while waiting and len(sharers) < _SHARERS and time.monotonic() < latest:
            sharer = waiting.popleft()
            try:
                sharer.begin()
                answer = sharer.in_savepoint()
            except BaseException as error:
                sharer.answered(None, error)
                if not self._seat.db.in_transaction:
                    raise _RolledBackError from error
            else:
                sharers.append((sharer, answer))

    def in_savepoint(self) -> ResultT:
        """Run the function inside the transaction of another call."""
        db = self._seat.db
        db.execute("SAVEPOINT sharer")
        try:
            answer = self._work(self)
            self._commit_next()
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK TO sharer")
                db.execute("RELEASE sharer")
            raise
        db.execute("RELEASE sharer")
        return answer

    def _commit_next(self) -> None:
        with self._seat.changed:
            self._check()
            self.committing = True

    def answered(self, answer: ResultT | None, error: BaseException | None) -> None:
        """Set what it will return or raise when its turn on the thread's queue comes."""
        self._is_answered, self._answer, self._error = True, answer, error
        self.end()


class _RolledBackError(Exception):
    """The error of one sharer made SQLite roll back the transaction of all."""


def _put_back(seat: Seat, sharers: list[tuple[Transaction[Any], Any]]) -> None:
    for sharer, _ in reversed(sharers):
        sharer.end()
        seat.waiting.appendleft(sharer)
