"""Calls that are seen through: a cancelled caller is told at once, what it began goes on."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class Shield:
    """Keeps cancellations away from a client library, which may lose connections or sockets by
    them.

    A call that nobody waits for any more must end by itself, within the time that it was given.
    """

    def __init__(self) -> None:
        """No call is under way."""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        """See ``call`` through, and return its answer to a caller who still waits."""
        return await asyncio.shield(self.start(call))

    def start(
        self, call: Coroutine[Any, Any, ResultT], *, context: Context | None = None
    ) -> asyncio.Task[ResultT]:
        """Begin ``call``, which nobody has to wait for; in this context, or in another."""
        task = asyncio.get_running_loop().create_task(call, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def drain(self) -> None:
        """Wait until no call is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # The caller may be gone: what it was to be told is not an unhandled error.
            task.exception()


__all__ = ["Shield"]
