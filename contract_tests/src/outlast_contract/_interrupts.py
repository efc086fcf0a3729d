"""Control-C while event loops are made and closed."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`asyncio.run`, which leaves a closed loop wherever Control-C comes."""
    with Interrupts() as interrupts, asyncio.Runner() as runner:
        runner.get_loop()
        try:
            # Not by the runner's own handling, which forgets an interrupt that comes while it is
            # set up, and then raises CancelledError.
            return runner.run(interrupts.heeded(work))
        except asyncio.CancelledError:
            if interrupts.have_cancelled:
                raise KeyboardInterrupt from None
            raise


class Interrupts:
    """Holds Control-C back, but for the stretches in which it is heeded.

    A `KeyboardInterrupt` in the middle of making or closing an event loop leaves half a loop
    behind, of which Python complains at exit. Outside the main thread, or where somebody else
    handles the signal, nothing is changed.

    Attributes:
        have_cancelled: Whether one has cancelled what was `heeded`.
    """

    def __init__(self) -> None:
        self.have_cancelled = False
        self._came = False
        self._is_ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )

    def __enter__(self) -> Self:
        """Hold interrupts back from here on."""
        if self._is_ours:
            signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Raise `KeyboardInterrupt` if one was held back, unless something is being raised."""
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if kind is None:
                self._raise_held()

    async def heeded(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """See ``work`` through; the first interrupt cancels it, also one that was held back, and
        the next one breaks it off.
        """
        task = asyncio.current_task()
        if not self._is_ours or task is None:
            return await work()
        loop = asyncio.get_running_loop()

        def cancel(*_: object) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.have_cancelled = True
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # Wake up, if it waits.

        signal.signal(signal.SIGINT, cancel)
        try:
            if self._came:
                self._came = False
                cancel()
                await asyncio.sleep(0)
            return await work()
        finally:
            signal.signal(signal.SIGINT, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def _raise_held(self) -> None:
        if self._came:
            self._came = False
            raise KeyboardInterrupt


__all__ = ["run_in_own_loop"]
