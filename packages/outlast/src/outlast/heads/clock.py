"""The clock of a store that is a round trip away, estimated from what it says of the time."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

_DRIFT: Final = 1e-4
"""Seconds per second by which two clocks may part; those of real machines stay well below."""


def _moment_clock() -> Callable[[], float]:
    """A clock that nobody sets, and that goes on while the machine sleeps, where there is one."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    if boot_time is None:
        return time.monotonic
    return lambda: time.clock_gettime(boot_time)


moment: Final = _moment_clock()
"""Seconds by a clock of this machine that nobody sets; only differences mean something."""


class _Estimate(NamedTuple):
    """The store's clock is ahead of `moment` by at least ``low`` and at most ``high``."""

    low: float
    high: float
    told_at: float


class StoreClock:
    """Tells the store's time without asking, as long as the store said it lately.

    Each answer bounds how far the store's clock is ahead of `moment`; several of them together
    bound it more closely than one. Bounds that contradict each other mean that the store's clock
    was set: the newest ones count.
    """

    def __init__(self, *, resolution: float, max_age: float) -> None:
        """Make a clock that knows nothing yet.

        Args:
            resolution: What the store says may be up to so many seconds too low: it cuts them off.
            max_age: Seconds for which what it said last is good.
        """
        self._resolution = resolution
        self._max_age = max_age
        self._estimate: _Estimate | None = None

    def tell(self, seconds: float, *, sent: float, received: float) -> None:
        """Take in what the store said.

        Args:
            seconds: Since 1970-01-01 UTC.
            sent: The `moment` at which the question was sent.
            received: The `moment` at which the answer was there.
        """
        low, high = seconds - received, seconds + self._resolution - sent
        old = self._estimate
        if old is not None:
            slack = abs(received - old.told_at) * _DRIFT
            closer = max(low, old.low - slack), min(high, old.high + slack)
            if closer[0] <= closer[1]:
                low, high = closer
        self._estimate = _Estimate(low, high, received)

    def now(self) -> float | None:
        """Seconds since 1970-01-01 UTC; ``None``: the store has to be asked."""
        estimate, at = self._estimate, moment()
        if estimate is None or at - estimate.told_at > self._max_age:
            return None
        return at + (estimate.low + estimate.high) / 2


__all__ = ["StoreClock", "moment"]
