"""Blocking operations in threads: one hop for a whole operation, with deadline and cancellation.

An operation is a coroutine whose awaits do not wait: it runs in a worker thread from beginning to
end. Only when it must wait for others (a lock, a lost race) it yields a `Pause`; then its thread is
freed, the event loop sleeps, and a worker goes on with it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar

from outlast.errors import ClosedError, OutcomeUnknownError, UnavailableError

ResultT = TypeVar("ResultT")

_WORKERS = 8
_JOIN = 1.0
_OWN_END = 0.9
_WAIT_END = 0.94
_GRACE = 0.03
"""Parts of the timeout: when an operation gives up by itself and can say why, when its thread is no
longer waited for, and how much longer if it may have had an effect. So the answer comes before the
caller's own deadline.
"""


class Ticket:
    """How far one operation may go; shared between the event loop and the thread that works on it.

    Args:
        timeout: Seconds from now.
    """

    def __init__(self, timeout: float) -> None:
        self._deadline = time.monotonic() + timeout
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._has_effect = False

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; negative behind it."""
        return self._deadline - time.monotonic()

    def check(self, reason: str = "it took too long") -> None:
        """Stop an operation whose time is over, or whose caller has gone.

        Raises:
            UnavailableError: With ``reason``.
        """
        if self._is_abandoned or time.monotonic() > self._deadline:
            raise UnavailableError(reason)

    def commit(self) -> None:
        """Called directly before an effect: from here on, the outcome is not known until the end.

        Raises:
            UnavailableError: Too late; there must be no effect any more.
        """
        with self._lock:
            self.check()
            self._has_effect = True

    def abandon(self) -> bool:
        """Forbid any effect from now on; whether there may be one already."""
        with self._lock:
            self._is_abandoned = True
            return self._has_effect


class Pause:
    """Awaited by an operation that must wait for others."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Generator["Pause", None, None]:
        yield self


class Workers:
    """A few threads for the operations of one driver; started when first needed.

    Leaner than an executor, whose futures cost as much as the system calls of a small read. The
    threads are
    daemons: an operation that a dying process breaks off is a crash like any other, and the store
    survives those.

    Args:
        timeout: Seconds that one operation may take.
        name: Of the threads.
    """

    def __init__(self, timeout: float, name: str) -> None:
        self._timeout = timeout
        self._name = name
        self._queue: SimpleQueue[_Step | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._steps: set[_Step] = set()
        self._is_closed = False

    async def run(self, start: Callable[[Ticket], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """See the operation that ``start`` makes through.

        Raises:
            UnavailableError: It took too long, and certainly had no effect.
            OutcomeUnknownError: It took too long, and may have had one.
            ClosedError: After `aclose`.
        """
        if self._is_closed:
            raise ClosedError("the file driver is closed")
        ticket = Ticket(self._timeout * _OWN_END)
        operation = start(ticket)
        while True:
            step = self._submit(operation)
            try:
                outcome = await self._finished(step, ticket)
                if not isinstance(outcome, Pause):
                    return outcome  # type: ignore[no-any-return]  # what the operation returned
                await asyncio.sleep(min(outcome.seconds, max(0.0, ticket.remaining)))
            except BaseException:
                if step.is_ended:
                    operation.close()
                raise

    async def aclose(self) -> None:
        """Wait for what runs, at most as long as a call may take, and end the threads."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        # Steps of a loop that has ended are never told that they have ended.
        steps = [step for step in self._steps if step.loop is loop]
        if steps:
            await _ended(steps, self._timeout)
        self._stop()
        for thread in self._threads:
            # Idle threads end at once; one that hangs in a system call cannot be waited for.
            thread.join(_JOIN if all(step.is_ended for step in steps) else 0.0)
        self._threads.clear()

    def __del__(self) -> None:
        self._stop()

    def _stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _submit(self, operation: Coroutine[Any, Any, Any]) -> "_Step":
        step = _Step(operation, self._steps)
        self._steps.add(step)
        if len(self._threads) < min(len(self._steps), _WORKERS):
            thread = threading.Thread(
                target=_work, args=(self._queue,), name=self._name, daemon=True
            )
            thread.start()
            self._threads.append(thread)
        self._queue.put(step)
        return step

    async def _finished(self, step: "_Step", ticket: Ticket) -> Any:
        """The outcome of a step, or the error of one that was not finished in time."""
        is_late = False

        def stop() -> None:
            nonlocal is_late
            is_late = True
            step.future.cancel()

        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        margin = self._timeout * (_WAIT_END - _OWN_END)
        timer = step.loop.call_later(max(0.0, ticket.remaining) + margin, stop)
        try:
            return await step.future
        except asyncio.CancelledError:
            may_have_effect = ticket.abandon()
            if may_have_effect:
                await _ended([step], max(0.0, ticket.remaining) + self._timeout * _GRACE)
            if not is_late or (task is not None and task.cancelling() > cancels):
                raise
            if step.is_ended and not isinstance(step.outcome, Pause):
                return step.result()
        finally:
            timer.cancel()
        text = f"the disk did not answer within {self._timeout:g} s"
        if may_have_effect:
            raise OutcomeUnknownError(text)
        raise UnavailableError(text)


class _Step:
    """An operation up to its next pause, or to its end."""

    __slots__ = (
        "_error",
        "_operation",
        "_steps",
        "_waiters",
        "future",
        "is_ended",
        "loop",
        "outcome",
    )

    def __init__(self, operation: Coroutine[Any, Any, Any], steps: "set[_Step]") -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.outcome: Any = None
        self.is_ended = False
        self._error: BaseException | None = None
        self._operation = operation
        self._steps = steps
        self._waiters: list[asyncio.Future[None]] = []

    def work(self) -> None:
        """Run it, in a worker thread."""
        if self.future.cancelled():
            # Here: a loop that ends by then would not come to do it.
            self._operation.close()
        else:
            try:
                self.outcome = self._operation.send(None)
            except StopIteration as end:
                self.outcome = end.value
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                self._error = error
        try:
            self.loop.call_soon_threadsafe(self._end)
        except RuntimeError:
            # The loop was closed, and nobody waits any more.
            self._operation.close()

    def result(self) -> Any:
        """What it returned, or raised."""
        if self._error is not None:
            raise self._error
        return self.outcome

    def waiter(self) -> "asyncio.Future[None]":
        """Done when the thread has left the operation."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        if self.is_ended:
            waiter.set_result(None)
        return waiter

    def _end(self) -> None:
        self.is_ended = True
        self._steps.discard(self)
        if self.future.cancelled():
            self._operation.close()  # It may have begun before.
        elif self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self.outcome)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


async def _ended(steps: Iterable[_Step], timeout: float) -> None:
    """Wait until the steps have ended, however they do."""
    await asyncio.wait([step.waiter() for step in steps], timeout=timeout)


def _work(queue: "SimpleQueue[_Step | None]") -> None:
    while (step := queue.get()) is not None:
        step.work()
        del step


__all__ = ["Pause", "Ticket", "Workers"]
