"""Control-C while event loops are made and closed."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`asyncio.run`, which leaves a closed loop wherever Control-C comes."""
    with Interrupts() as interrupts, asyncio.Runner() as runner:
        runner.get_loop()
        with interrupts.allowed():
            return runner.run(work())


class Interrupts:
    """Holds Control-C back, but for the stretches in which it is allowed.

    A `KeyboardInterrupt` in the middle of making or closing an event loop leaves half a loop
    behind, of which Python complains at exit. Outside the main thread, or where somebody else
    handles the signal, nothing is changed.
    """

    def __init__(self) -> None:
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

    @contextmanager
    def allowed(self) -> Generator[None]:
        """Let them through, one that was held back at once."""
        if not self._is_ours:
            yield
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._raise_held()
            yield
        finally:
            signal.signal(signal.SIGINT, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def _raise_held(self) -> None:
        if self._came:
            self._came = False
            raise KeyboardInterrupt


__all__ = ["run_in_own_loop"]
