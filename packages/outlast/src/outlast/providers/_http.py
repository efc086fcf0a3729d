"""What an HTTP answer says about trying again."""

import math
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

_RETRYABLE = frozenset({408, 409, 429})


def is_retryable_status(status: int) -> bool:
    """Whether a request with this answer may succeed later: 408, 409, 429 and all of 5xx."""
    return status in _RETRYABLE or 500 <= status < 600


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """What the server itself says about trying again; ``None``: nothing."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", ""))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait, or ``None`` if it does not say so intelligibly.

    Args:
        headers: Of the answer, with names found whatever their case. ``retry-after-ms``
            (milliseconds) goes before ``retry-after`` (seconds, or a date).
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        seconds = _number(value)
        if seconds is not None:
            return max(seconds * unit, 0.0)
        if name == "retry-after":
            return _until(value)
    return None


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _until(date: str) -> float | None:
    try:
        instant = parsedate_to_datetime(date)
        if instant.tzinfo is None:  # Dates of HTTP are always of UTC.
            instant = instant.replace(tzinfo=UTC)
        return max(instant.timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None


__all__ = ["is_retryable_status", "retry_after", "should_retry"]
