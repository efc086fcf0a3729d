"""How long something takes, on machines that are busy with other things, too."""

import threading
import time
from typing import Final, Self

_TICK: Final = 0.01
_MOST: Final = 0.05
"""Seconds that may lie between two ticks and still count: a thread that slept is never woken at
once."""


class Stopwatch:
    """Measures the time in which this process could run, while it is entered.

    A process that the system does not run, since others are, or since the whole machine stands
    still, is late whatever it does: a limit on real time would tell nothing of what is measured.
    So a thread does nothing but wake up, and what it oversleeps does not count.
    """

    def __init__(self) -> None:
        """Not begun."""
        self._began = self._last = 0.0
        self._late = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="stopwatch", daemon=True)

    def __enter__(self) -> Self:
        self._began = self._last = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def late(self) -> float:
        """Seconds that it was entered and that do not count."""
        self._look()
        return self._late

    @property
    def seconds(self) -> float:
        """Seconds that count, by now or by its end."""
        late = self.late
        return self._last - self._began - late

    def _tick(self) -> None:
        while not self._ended.wait(_TICK):
            self._look()

    def _look(self) -> None:
        with self._lock:
            if not self._ended.is_set():
                now = time.monotonic()
                self._late += max(0.0, now - self._last - _MOST)
                self._last = now


__all__ = ["Stopwatch"]
