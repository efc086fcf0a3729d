"""Writing in the background: soon after a change, never twice at once, until it is stored."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable

from outlast.errors import (
    ClosedError,
    FencedError,
    InvalidDataError,
    OutcomeUnknownError,
    OutlastError,
    UnavailableError,
    shown,
)

OnSaveError = Callable[[Exception], object]
"""Is told of every save that failed, whatever becomes of it."""

RETRY_BASE = 0.5
RETRY_CAP = 30.0
"""Seconds; the first and the longest wait before a failed save is made again. It doubles."""

_PASSES = 8
"""How often one flush saves what came in while it was saving; the rest follows by itself."""


class Saver:
    """Keeps one stored thing near its copy in memory.

    A change is saved ``debounce`` seconds after the last one, at the latest ``max_wait`` seconds
    after the first one that no save covers. One timer runs, and is not touched by a change: when
    it fires too early, it is set anew. All waits are by the clock of the event loop.

    Args:
        write: Takes a snapshot before its first ``await``, and stores it.
        what: What is saved, for log records, such as ``"task 't': state"``.
        log: Where failures are recorded.
        is_auto: Whether changes are saved by themselves; otherwise `flush` alone saves.
        debounce: Seconds.
        max_wait: Seconds.
        on_error: Told of every failure.
    """

    def __init__(
        self,
        write: Callable[[], Awaitable[None]],
        *,
        what: str,
        log: logging.Logger,
        is_auto: bool,
        debounce: float,
        max_wait: float,
        on_error: OnSaveError | None,
    ) -> None:
        self._write = write
        self._what = what
        self._log = log
        self._is_auto = is_auto
        self._debounce = _check_seconds(debounce, "debounce")
        self._max_wait = _check_seconds(max_wait, "max_wait")
        self._on_error = on_error
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Exception | None] | None = None
        self._revision = 0
        self._saved = 0
        self._first: float | None = None
        self._last = 0.0
        self._not_before = 0.0
        self._failures = 0
        self._is_urgent = False
        self._stop: OutlastError | None = None
        self.is_closed: bool = False

    @property
    def is_dirty(self) -> bool:
        """Whether there is a change that no finished save covers."""
        return self._revision != self._saved

    @property
    def is_auto(self) -> bool:
        """Whether changes are saved without being asked to."""
        return self._is_auto

    def check(self) -> None:
        """Raise what every further change would raise.

        Raises:
            ClosedError: It was closed.
            FencedError: A save was fenced: there is a newer owner.
        """
        if self._stop is not None:
            raise self._stop.with_traceback(None)

    def touch(self, *, at_once: bool = False) -> None:
        """Note a change; costs well below a microsecond unless ``at_once`` starts the save."""
        if self._stop is not None:
            raise self._stop.with_traceback(None)
        self._revision += 1
        if not self._is_auto:
            return
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self._last = loop.time()
        if self._first is None:
            self._first = self._last
        if at_once:
            if self._task is None:
                self._start()
            else:
                self._is_urgent = True
        elif self._timer is None and self._task is None:
            self._arm()

    def mark(self) -> None:
        """Count the present as not stored, without scheduling a save."""
        self.check()
        self._revision += 1

    def _arm(self) -> None:
        assert self._loop is not None
        due = self._due()
        self._timer = self._loop.call_at(due, self._ring)

    def _due(self) -> float:
        first = self._last if self._first is None else self._first
        return max(min(self._last + self._debounce, first + self._max_wait), self._not_before)

    def _ring(self) -> None:
        assert self._loop is not None
        self._timer = None
        if self._loop.time() < self._due():
            self._arm()
        else:
            self._start()

    def _start(self) -> asyncio.Task[Exception | None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._save(), name="outlast-save")
        return self._task

    async def _save(self) -> Exception | None:
        """Save once; return what went wrong."""
        assert self._loop is not None
        revision, first = self._revision, self._first
        self._first = None
        self._is_urgent = False
        failure: Exception | None = None
        try:
            await self._write()
        except FencedError as error:
            failure = self._stop = error
            self._report(error, logging.ERROR, "no further save is made")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported and nothing is lost
            failure = error
            self._failed(error)
        else:
            self._failures = 0
            self._not_before = 0.0
            self._saved = revision
            first = None
        finally:
            self._task = None
            if first is not None:
                self._first = first
        self._go_on(failure)
        return failure

    def _failed(self, error: Exception) -> None:
        assert self._loop is not None
        if not _is_worth_repeating(error):
            self._report(error, logging.ERROR, "it is made again with the next change")
            return
        pause = min(RETRY_CAP, RETRY_BASE * 2.0 ** min(self._failures, 32))
        self._failures += 1
        self._not_before = self._loop.time() + pause
        self._report(
            error,
            logging.WARNING,
            f"next attempt in {pause:g} s" if self._is_auto else "it stays pending",
        )

    def _go_on(self, failure: Exception | None) -> None:
        """See to what no save has covered yet."""
        if not self._is_auto or self._stop is not None or not self.is_dirty:
            return
        if self._is_urgent:
            self._start()
        elif failure is None or _is_worth_repeating(failure):
            self._arm()

    def _report(self, error: Exception, level: int, outlook: str) -> None:
        self._log.log(
            level,
            "%s: the save failed, %s: %s: %s",
            self._what,
            outlook,
            type(error).__name__,
            error,
        )
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:  # noqa: BLE001 - an observer's mistake ends nothing
                self._log.exception("%s: on_save_error itself failed", self._what)

    async def flush(self) -> None:
        """Save now, and return once everything changed before the call is stored.

        What changes meanwhile is saved too, or at least stays pending.

        Raises:
            FencedError: There is a newer owner; nothing was changed, and never will be.
            Exception: What the store raised; the change stays pending.
        """
        self.check()
        wanted = self._revision
        own = 0
        while self._saved < wanted or (self.is_dirty and own < _PASSES):
            task = self._task
            is_own = task is None
            if task is None:
                task = self._start()
            own += is_own
            # Giving up waiting leaves the save to its end: no later one can overtake it.
            failure = await asyncio.shield(task)
            if failure is not None and (is_own or isinstance(failure, FencedError)):
                raise failure
        self.check()

    def stop(self, reason: OutlastError | None = None) -> None:
        """Begin no further save, and refuse changes.

        Args:
            reason: What further changes raise; `ClosedError` by default.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_closed = True
        if self._stop is None:
            self._stop = reason or ClosedError("the task's manager is closed; load the task again")

    async def join(self) -> None:
        """Wait for the save under way, if any."""
        while self._task is not None:
            await asyncio.wait({self._task})


async def drain(savers: Iterable[Saver], what: str) -> None:
    """Save what is pending in all of ``savers``, again until nothing is, and close them.

    Raises:
        ExceptionGroup: Not everything could be saved.
    """
    everyone = list(savers)
    failed: dict[Saver, Exception] = {}
    try:
        while True:
            for saver in everyone:
                await saver.join()
            busy = [
                saver
                for saver in everyone
                if saver.is_auto and saver.is_dirty and not saver.is_closed and saver not in failed
            ]
            if not busy:
                break
            outcomes = await asyncio.gather(
                *(saver.flush() for saver in busy), return_exceptions=True
            )
            for saver, outcome in zip(busy, outcomes, strict=True):
                if isinstance(outcome, ClosedError) and not saver.is_dirty:
                    continue
                if isinstance(outcome, Exception):
                    failed[saver] = outcome
                elif outcome is not None:
                    raise outcome
    finally:
        for saver in everyone:
            saver.stop()
    if failed:
        raise ExceptionGroup(f"{what}: not everything could be saved", list(failed.values()))


def _is_worth_repeating(error: Exception) -> bool:
    """A closed list of what may go better next time, and errors of strangers."""
    return isinstance(error, UnavailableError | OutcomeUnknownError) or not isinstance(
        error, OutlastError
    )


def _check_seconds(value: object, argument: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidDataError(
            f"{argument} must be a finite number of seconds of at least 0, not {shown(value)}"
        )
    return float(value)


__all__ = ["RETRY_BASE", "RETRY_CAP", "OnSaveError", "Saver", "drain"]
