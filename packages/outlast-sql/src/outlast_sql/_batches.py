"""Mutations of different scopes that were called together, sent as one statement.

A mutation that is called while no other of its kind is under way is sent by itself, at once. Others
go together: those called in one turn of the event loop, or all that came while there was no free
connection. They share the way to the server and its commit.

A batch waits for nobody's lock: it leaves out the scopes that are locked or do not admit their
mutation, and does the rest or, if anything fails, nothing. Whatever it did not do is sent by itself
then, as if there had been no batch. So a batch never has to tell why, one mutation spoils no other
(but where nobody knows what became of the batch), and two batches never wait for each other.

A batch runs in a task of its own and ends with the last of its callers: no caller's time or
cancellation is that of another one.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, Protocol

from outlast.errors import OutcomeUnknownError, OutlastError
from outlast_sql._links import CLOSING_SECONDS, Link
from outlast_sql._reads import Row

Parameters = Sequence[Any]
"""Of one mutation; the first three are its scope."""
Send = Callable[[Link, Sequence[Parameters]], Awaitable[Mapping[int, Row]]]
"""Sends a batch; the answers of those that were done, by their places."""

MOST: Final = 32
"""Mutations in one batch."""
_MOST_BYTES: Final = 1 << 18
"""Of parameters in one batch, so that nobody waits long for the bytes of others."""


_EARLY: Final = 0.05
"""Seconds by which a timer may be early."""


class OnLink(Protocol):
    """Does something with a link; see `ServerDriver`."""

    async def __call__(
        self, work: Callable[[Link], Any], sent: Callable[[], bool], *, waited: float
    ) -> Any: ...


class _Call:
    """One mutation that waits."""

    __slots__ = ("answer", "batch", "parameters", "since", "size")

    def __init__(self, parameters: Parameters, size: int) -> None:
        loop = asyncio.get_running_loop()
        self.parameters = parameters
        self.size = size
        self.since = loop.time()
        self.batch: _Batch | None = None
        self.answer: asyncio.Future[Row | None] = loop.create_future()
        """``None``: it was not done, and is to be sent by itself."""

    def tell(self, row: Row | None) -> None:
        if not self.answer.done():
            self.answer.set_result(row)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            # Of its own: whoever gets it writes its names into it.
            own = copy.copy(error)
            own.__cause__ = error.__cause__
            self.answer.set_exception(own)


class _Batch:
    """What one task sends."""

    __slots__ = ("calls", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.calls: list[_Call] = []

    @property
    def awaited(self) -> list[_Call]:
        return [call for call in self.calls if not call.answer.done()]


class Batches:
    """The mutations of one statement.

    Args:
        send: Sends several.
        on_link: Lends links.
        is_busy: Whether a link would have to be waited for.
        patience: Seconds after which a mutation that found no link gives up.
    """

    def __init__(
        self, send: Send, on_link: OnLink, is_busy: Callable[[], bool], patience: float
    ) -> None:
        self._send = send
        self._on_link = on_link
        self._is_busy = is_busy
        self._patience = patience
        self._under_way = 0
        self._waiting: deque[_Call] = deque()
        self._is_gathering = False
        """Whether somebody will see to those that wait."""
        self._next: _Batch | None = None
        """Will take those that wait as soon as it has a link."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(
        self, parameters: Parameters, alone: Callable[[float], Awaitable[Sequence[Row]]]
    ) -> Sequence[Row]:
        """Run a mutation, together with others or by itself, which ``alone`` does, given the
        seconds that were spent in waiting.

        Returns:
            Its row, or what ``alone`` returns.
        """
        loop = asyncio.get_running_loop()
        called = loop.time()
        self._under_way += 1
        try:
            if self._under_way > 1:
                size = sum(len(value) for value in parameters if isinstance(value, bytes))
                row = await self._joined(_Call(parameters, size)) if size <= _MOST_BYTES else None
                if row is not None:
                    return (row,)
            return await alone(loop.time() - called)
        finally:
            self._under_way -= 1

    async def aclose(self) -> None:
        """Wait for batches that all their callers have left."""
        loop = asyncio.get_running_loop()
        own = [task for task in self._tasks if task.get_loop() is loop]
        if own:
            await asyncio.wait(own, timeout=CLOSING_SECONDS)

    async def _joined(self, call: _Call) -> Row | None:
        self._waiting.append(call)
        if not self._is_gathering:
            self._is_gathering = True
            # All that are called in this turn of the loop will be there.
            asyncio.get_running_loop().call_soon(self._gathered)
        try:
            return await call.answer
        except asyncio.CancelledError:
            batch = call.batch or self._next
            if batch is not None and not (batch.awaited or self._awaited_by(batch)):
                batch.task.cancel()
            raise

    def _awaited_by(self, batch: _Batch) -> bool:
        return batch is self._next and not all(call.answer.done() for call in self._waiting)

    def _gathered(self) -> None:
        if len(self._waiting) == 1 and not self._is_busy():
            self._is_gathering = False
            self._waiting.popleft().tell(None)
        else:
            self._begin()

    def _begin(self) -> None:
        batch = self._next = _Batch()
        # In a context of its own: whoever happens to run here is only one of its callers.
        batch.task = asyncio.get_running_loop().create_task(
            self._run(batch), name="outlast-batch", context=Context()
        )
        self._tasks.add(batch.task)
        batch.task.add_done_callback(partial(self._ended, batch))

    def _ended(self, batch: _Batch, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        for call in batch.awaited:
            # Somebody else has cancelled the task.
            call.fail(OutcomeUnknownError("it was broken off together with others"))
        if batch is self._next:
            # Cancelled since nobody waited for it, perhaps before its first step.
            self._go_on()

    async def _run(self, batch: _Batch) -> None:
        done: Mapping[int, Row] = {}
        sent: list[_Call] = []

        async def work(link: Link) -> None:
            nonlocal done, sent
            if not batch.calls:
                self._fill(batch)
            sent = batch.awaited
            if sent:
                done = await self._send(link, [call.parameters for call in sent])

        waited = asyncio.get_running_loop().time() - self._waiting[0].since
        try:
            await self._on_link(work, lambda: bool(batch.calls), waited=waited)
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            if not batch.calls:
                self._give_up(error)
            for call in batch.calls:
                if isinstance(error, OutlastError) and error.applied is False:
                    call.tell(None)
                else:
                    call.fail(error)
        else:
            for place, call in enumerate(sent):
                call.tell(done.get(place))

    def _fill(self, batch: _Batch) -> None:
        """Take those that go together; a scope is in it once."""
        scopes: set[tuple[Any, ...]] = set()
        later: list[_Call] = []
        size = 0
        while self._waiting and len(batch.calls) < MOST:
            call = self._waiting.popleft()
            if call.answer.done():
                continue
            scope = tuple(call.parameters[:3])
            if scope in scopes or size + call.size > _MOST_BYTES:
                later.append(call)
                continue
            scopes.add(scope)
            size += call.size
            call.batch = batch
            batch.calls.append(call)
        self._waiting.extendleft(reversed(later))
        self._go_on()

    def _go_on(self) -> None:
        """Let another batch see to those that still wait."""
        self._next = None
        self._waiting = deque(call for call in self._waiting if not call.answer.done())
        self._is_gathering = bool(self._waiting)
        if self._is_gathering:
            self._begin()

    def _give_up(self, error: Exception) -> None:
        """There is no link for those that waited longest, or for nobody at all."""
        now = asyncio.get_running_loop().time()
        patience = self._patience - _EARLY
        overdue = [call for call in self._waiting if now - call.since >= patience]
        for call in overdue or self._waiting:
            call.fail(error)
        self._go_on()


__all__ = ["MOST", "Batches", "Parameters"]
