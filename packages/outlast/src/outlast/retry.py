"""Waiting between attempts: exponential backoff with full jitter."""

from typing import Final

BASE_DELAY: Final = 0.02
MAX_DELAY: Final = 1.0


def backoff(attempt: int, *, base: float = BASE_DELAY, cap: float = MAX_DELAY) -> float:
    """Seconds to wait before attempt number ``attempt + 1``.

    Full jitter: uniform between 0 and ``min(cap, base * 2**attempt)``, so that contenders
    spread out (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).

    Args:
        attempt: How many attempts failed before, from 0.
        base: Upper bound of the first wait, in seconds.
        cap: Upper bound of every wait, in seconds.
    """
    import random  # With what it imports, a part of the time that importing outlast takes.

    return random.uniform(0.0, min(cap, base * 2 ** min(attempt, 32)))  # noqa: S311 - not for secrets


__all__ = ["BASE_DELAY", "MAX_DELAY", "backoff"]
