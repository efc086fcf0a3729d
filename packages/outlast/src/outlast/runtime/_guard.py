"""Stopping a consumer that waits, from another task of its loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class Guard:
    """Ends a wait with an error as soon as it turns out that there is nothing to wait for.

    It works as `asyncio.timeout` does, by cancelling the waiting task and taking the cancellation
    back; one by somebody else in the same moment is kept.
    """

    __slots__ = ("_cancels", "_error", "_has_cancelled", "_waiter")

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._waiter: asyncio.Task[Any] | None = None
        self._cancels = 0
        self._has_cancelled = False

    @property
    def is_set(self) -> bool:
        """Whether `interrupt` was called."""
        return self._error is not None

    def interrupt(self, error: Exception) -> None:
        """Let the present wait, if any, and all later ones raise ``error``."""
        self._error = error
        if self._waiter is not None and not self._has_cancelled:
            self._has_cancelled = True
            self._waiter.cancel()

    async def wait(self, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Call and await, or raise the error with which `interrupt` was called."""
        if self._error is not None:
            raise self._error
        task = asyncio.current_task()
        assert task is not None
        self._waiter = task
        self._cancels = task.cancelling()
        try:
            return await call()
        finally:
            self._waiter = None
            if self._has_cancelled:
                self._has_cancelled = False
                if task.uncancel() <= self._cancels and self._error is not None:
                    raise self._error from None


__all__ = ["Guard"]
