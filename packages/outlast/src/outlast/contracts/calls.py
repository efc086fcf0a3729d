"""How a call reaches a driver: in order, within its time, repeated where that is safe, with one
kind of error.

Everything here is the same for all backends: the order of one scope's mutations, deadlines (E6),
retries (E5), what an unanswered attempt makes of an error (E2), wrapping of foreign errors (E3),
cancellation (X1), loops and forks (X3), closing (C7).
"""

import asyncio
import functools
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Protocol, TypeVar

from outlast.contracts.claim import Claim
from outlast.contracts.turns import Ticket, Turns
from outlast.driver import Fence, Scope, sealed_until
from outlast.errors import (
    ClosedError,
    FencedError,
    NotSupportedError,
    OutcomeUnknownError,
    OutlastError,
    UnavailableError,
)
from outlast.retry import backoff

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

MAX_ATTEMPTS = 5
_let_through: ContextVar["Calls | None"] = ContextVar("outlast_let_through", default=None)
"""Whose call of many steps the running task is in."""

_log = logging.getLogger("outlast")


class Mutation(Protocol[ResultT_co]):
    """Sends one mutation to the driver with the given fence."""

    def __call__(self, *, fence: Fence | None) -> Awaitable[ResultT_co]: ...


class Sender:
    """Sends the driver calls of one mutation; made by `Calls.mutate`."""

    __slots__ = (
        "_claim",
        "_has_begun",
        "_in_flight",
        "_limit",
        "_timeout",
        "deadline",
        "last",
        "unanswered",
    )

    def __init__(self, claim: Claim | None, timeout: float) -> None:
        self._claim = claim
        self._timeout = timeout
        self._limit: asyncio.Timeout | None = None
        self._in_flight: bool = False
        self._has_begun: bool = False
        self.deadline: float = asyncio.get_running_loop().time() + timeout
        """By the loop's clock."""
        self.unanswered: bool = False
        """Whether an attempt went unanswered: whatever follows, it may have been applied."""
        self.last: OutlastError | None = None
        """What the newest attempt that is worth another one ended with."""

    @property
    def may_be_applied(self) -> bool:
        """Whether the mutation, abandoned now, could still take effect."""
        return self._in_flight or self.unanswered or self._has_begun

    @property
    def had_its_turn(self) -> bool:
        """Whether all earlier mutations of the same queues have ended."""
        return self._limit is not None

    def start(self, limit: asyncio.Timeout) -> None:
        """It is this mutation's turn, within ``limit``."""
        self._limit = limit

    def step(self) -> None:
        """Begin the next step of a mutation of many: it has the time of a call to itself, and from
        now on the whole may be applied in part.
        """
        self._has_begun = True
        self.deadline = asyncio.get_running_loop().time() + self._timeout
        if self._limit is not None:
            self._limit.reschedule(self.deadline)

    async def __call__(self, call: Mutation[ResultT], *, repeatable: bool = False) -> ResultT:
        """Send one mutation and return its answer.

        Args:
            call: Sends it with the given fence. All attempts of one call carry the same fence.
            repeatable: Whether an unanswered attempt may be repeated without a claim, too.
        """
        fence = None if self._claim is None else self._claim.next_fence()
        loop = asyncio.get_running_loop()
        for attempt in itertools.count():
            started = loop.time()
            self._in_flight = True
            seal = sealed_until.set(self.deadline)
            try:
                answer = await call(fence=fence)
            except UnavailableError as error:
                self._in_flight, self.last = False, error
                if not self._may_repeat(attempt, started):
                    raise
            except OutcomeUnknownError as error:
                self._in_flight, self.unanswered, self.last = False, True, error
                if not (fence or repeatable) or not self._may_repeat(attempt, started):
                    raise
            except OutlastError:
                self._in_flight = False
                raise
            else:
                self._in_flight = False
                return answer
            finally:
                sealed_until.reset(seal)
            await asyncio.sleep(backoff(attempt))
        raise AssertionError("unreachable")

    async def ask(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Read something on the way; repeated like any read."""
        loop = asyncio.get_running_loop()
        for attempt in itertools.count():
            started = loop.time()
            try:
                return await call()
            except (UnavailableError, OutcomeUnknownError) as error:
                self.last = error
                if not self._may_repeat(attempt, started):
                    raise UnavailableError(error.message) from error
            await asyncio.sleep(backoff(attempt))
        raise AssertionError("unreachable")

    def _may_repeat(self, attempt: int, started: float) -> bool:
        """Whether another attempt has as much time as the last one took.

        One that was cut off by the deadline would turn "not applied" into "nobody knows".
        """
        now = asyncio.get_running_loop().time()
        return attempt + 1 < MAX_ATTEMPTS and now - started < self.deadline - now


class _Describing:
    """What `Calls.describing` returns; a generator would take three times as long."""

    __slots__ = ("_calls", "_key", "_operation")

    def __init__(self, calls: "Calls", operation: str, key: object) -> None:
        self._calls = calls
        self._operation = operation
        self._key = key

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OutlastError):
            self._calls.describe(error, self._operation, self._key)


class Calls:
    """The way of one backend object to its driver.

    Args:
        backend: The backend's name, for errors.
        timeout: Seconds that one call may take.
    """

    def __init__(self, backend: str, timeout: float) -> None:
        self._backend = backend
        self._timeout = timeout
        self._state: Literal["new", "open", "closed"] = "new"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._turns: dict[Scope, Turns] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._in_flight = 0
        self._idle: asyncio.Event | None = None

    @property
    def timeout(self) -> float:
        """Seconds that one call may take."""
        return self._timeout

    @property
    def state(self) -> Literal["new", "open", "closed"]:
        """Where the backend is in its life."""
        return self._state

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that opened the backend."""
        return self._pid != 0 and self._pid != os.getpid()

    def bind(self) -> None:
        """Bind to the running loop and this process, from which alone calls are served."""
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._idle = asyncio.Event()

    def opened(self) -> None:
        """Let calls through."""
        self._state = "open"

    def shut(self) -> None:
        """Let no new call through.

        Raises:
            NotSupportedError: Calls are under way in another event loop, which alone can wait for
                them.
        """
        loop = self._loop
        busy = loop is not None and self._in_flight and not self.is_forked and not loop.is_closed()
        if busy and loop is not asyncio.get_running_loop():
            raise NotSupportedError(
                "the backend has calls under way in another event loop; close it in that one"
            )
        self._state = "closed"

    async def idle(self) -> None:
        """Wait for the calls under way in this event loop; each ends within its timeout."""
        is_here = self._loop is asyncio.get_running_loop()
        if is_here and self._in_flight and self._idle is not None:
            self._idle.clear()
            await self._idle.wait()

    def check_usable(self) -> None:
        """Raise unless calls are served here and now.

        Raises:
            ClosedError: The backend is closed, or was never opened (C7).
            NotSupportedError: It was opened in another process or event loop (X3).
        """
        if self._state == "new":
            raise ClosedError(
                "the backend is not open yet; use 'async with' or 'await backend.open()'"
            )
        if self._state == "closed" and _let_through.get() is not self:
            raise ClosedError("the backend is closed")
        if self.is_forked:
            raise NotSupportedError(
                "the backend was opened before this process was forked; open one in the child"
            )
        if self._loop is not asyncio.get_running_loop():
            raise NotSupportedError(
                "the backend was opened in another event loop; open one backend for each loop"
            )

    @contextmanager
    def as_one(self) -> Generator[None]:
        """Let the calls inside through as one: closing waits for the last of them (C7)."""
        self.check_usable()
        self._in_flight += 1
        token = _let_through.set(self)
        try:
            yield
        finally:
            _let_through.reset(token)
            self._left()

    def describing(self, operation: str, key: object) -> "_Describing":
        """Let errors raised inside name the backend, the operation and the key."""
        return _Describing(self, operation, key)

    async def read(
        self,
        operation: str,
        key: str | None,
        call: Callable[[], Awaitable[ResultT]],
        *,
        setup: bool = False,
    ) -> ResultT:
        """Ask the driver something that changes nothing, or that may be repeated at will."""
        with self.describing(operation, key):
            if not setup:
                self.check_usable()
            sender = Sender(None, self._timeout)
            self._in_flight += 1
            try:
                async with asyncio.timeout_at(sender.deadline):
                    return await sender.ask(call)
            except OutlastError:
                raise
            except Exception as error:
                if (
                    isinstance(error, TimeoutError)
                    and asyncio.get_running_loop().time() >= sender.deadline
                ):
                    raise UnavailableError(self._too_slow(sender.last)) from error
                raise UnavailableError(_unexpected(error)) from error
            finally:
                self._left()

    async def mutate(
        self,
        operation: str,
        scope: Scope,
        claim: Claim | None,
        body: Callable[[Sender], Awaitable[ResultT]],
    ) -> ResultT:
        """Change a scope: behind all earlier mutations through this claim or backend object.

        ``body`` runs in a task of its own: a caller that is cancelled is told at once, while
        what was sent already is seen to its end, so that the next mutation cannot overtake it.
        """
        with self.describing(operation, scope.id):
            self.check_usable()
            sender = Sender(claim, self._timeout)
            queues = () if claim is None else (claim.turns(),)
            turns = self._turns.get(scope)
            if turns is None:
                turns = self._turns[scope] = Turns()
            ticket = Ticket(turns, *queues)
            if ticket.has_to_wait:
                # It may be over only after its task has ended.
                ticket.done.add_done_callback(functools.partial(self._forget, scope))
            self._in_flight += 1
            answer: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(
                self._answered(answer, scope, ticket, sender, body),
                name=f"outlast-{operation}",
            )
            task.add_done_callback(functools.partial(self._ended, scope, ticket, answer))
            self._tasks.add(task)
            try:
                # Like asyncio.shield(task), and one turn of the loop sooner.
                return await answer
            except asyncio.CancelledError:
                if not sender.may_be_applied:
                    task.cancel()
                raise

    async def send(
        self,
        operation: str,
        scope: Scope,
        claim: Claim | None,
        call: Mutation[ResultT],
        *,
        repeatable: bool = False,
    ) -> ResultT:
        """`mutate` with a single driver call."""
        return await self.mutate(
            operation, scope, claim, lambda sender: sender(call, repeatable=repeatable)
        )

    async def _in_order(
        self,
        scope: Scope,
        ticket: Ticket,
        sender: Sender,
        body: Callable[[Sender], Awaitable[ResultT]],
    ) -> ResultT:
        try:
            async with asyncio.timeout_at(sender.deadline) as limit, ticket:
                sender.start(limit)
                return await body(sender)
        except TimeoutError as error:
            if asyncio.get_running_loop().time() >= sender.deadline:
                if sender.may_be_applied:
                    raise OutcomeUnknownError(self._too_slow(sender.last)) from error
                if sender.had_its_turn:
                    raise UnavailableError(self._too_slow(sender.last)) from error
                raise UnavailableError(
                    f"not sent: earlier mutations of the same {scope.kind} took all of the "
                    f"{self._timeout:g} s"
                ) from error
            raise self._foreign(error, sender) from error
        except OutlastError as error:
            if sender.may_be_applied and error.applied is False:
                if isinstance(error, UnavailableError):
                    raise OutcomeUnknownError(error.message) from error
                error.applied = None
            raise
        except Exception as error:
            raise self._foreign(error, sender) from error

    async def _answered(
        self,
        answer: asyncio.Future[ResultT],
        scope: Scope,
        ticket: Ticket,
        sender: Sender,
        body: Callable[[Sender], Awaitable[ResultT]],
    ) -> None:
        """Tell the caller, unless it is gone: then what it was to be told is no unhandled error."""
        try:
            result = await self._in_order(scope, ticket, sender, body)
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)

    def _ended(
        self,
        scope: Scope,
        ticket: Ticket,
        answer: asyncio.Future[ResultT],
        task: asyncio.Task[object],
    ) -> None:
        ticket.leave()  # A task that was cancelled before its first step has not.
        self._forget(scope)
        self._tasks.discard(task)
        self._left()
        if not answer.done():
            answer.cancel()
        if not task.cancelled():
            task.exception()

    def _forget(self, scope: Scope, _: asyncio.Future[None] | None = None) -> None:
        """Drop the scope's queue once nobody is in it."""
        turns = self._turns.get(scope)
        if turns is not None and turns.is_idle:
            del self._turns[scope]

    def _left(self) -> None:
        self._in_flight -= 1
        if not self._in_flight and self._idle is not None:
            self._idle.set()

    def describe(self, error: OutlastError, operation: str, key: object) -> None:
        """Let an error name the backend, the operation and the key."""
        described = error.operation is not None
        error.add_context(
            backend=self._backend, operation=operation, key=key if isinstance(key, str) else None
        )
        if isinstance(error, FencedError) and error.reason == "lost" and not described:
            _log.error("%s", error)

    def _too_slow(self, last: OutlastError | None) -> str:
        text = f"no answer within {self._timeout:g} s"
        return f"{text}; last error: {last.message}" if last is not None else text

    @staticmethod
    def _foreign(error: Exception, sender: Sender) -> OutlastError:
        if sender.may_be_applied:
            return OutcomeUnknownError(_unexpected(error))
        return UnavailableError(_unexpected(error))


def _unexpected(error: Exception) -> str:
    # Only the type: a driver's text may show its connection string (E4). The cause keeps the rest.
    return f"unexpected {type(error).__name__} from the driver; see the cause"


__all__ = ["Calls", "Mutation", "Sender"]
