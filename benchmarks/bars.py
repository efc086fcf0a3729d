"""What outlast may cost at most, and how far ahead of its peers it has to be."""

from collections.abc import Mapping
from typing import Final

STORES: Final = ("redis", "mongodb", "s3", "file", "sqlite", "postgres", "mariadb")

BARS: Final[Mapping[str, tuple[float | None, ...]]] = {
    "append": (1.5, 1.3, 1.3, 1.5, 1.7, 2.0, 2.2),
    "put": (1.5, 1.3, 1.3, 1.5, 1.7, 2.0, 2.2),
    "state": (1.6, 1.3, 1.3, 1.5, 1.8, 2.1, 2.3),
    "load": (1.3, 0.8, 2.5, None, 1.8, 2.0, 2.0),
    "flat": (1.2, 1.2, 1.2, 1.2, 1.2, 1.2, 1.2),
    "flat-bytes": (2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0),
    "size": (1.6, 1.6, 1.6, 1.6, 1.6, 1.6, 1.6),
    "fleet": (0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6),
}
"""One bar for each of `STORES`; ``None``: nothing to compare with."""

LENGTHS: Final = (100, 500, 1000)
"""Of the histories to which peers add one more message."""

SESSIONS: Final[Mapping[str, float]] = {
    "redis": 2.0,
    "postgres": 2.0,
    "mongodb": 1.5,
    "sqlite": 1 / 1.2,
}
"""How many times as long a session of the OpenAI Agents SDK takes at least."""

SAVERS: Final[Mapping[str, float]] = {
    "redis": 10.0,
    "postgres": 10.0,
    "sqlite": 10.0,
    "mongodb": 6.0,
}
"""How many times as long a saver of LangGraph takes at least, at 1,000 messages."""

IN_PROCESS: Final[Mapping[str, tuple[str, str, float]]] = {
    "update_state": ("StateManager.update_state", "µs", 3.0),
    "delta": ("a delta through run_turn with a checkpoint store, more than bare", "µs", 4.0),
    "delay": ("time between deltas with a store of 200 ms a put, times without", "x", 1.2),
    "models": ("load 1,000 messages into models, CPU", "ms", 4.0),
    "import": ("import outlast", "ms", 80.0),
}
"""Title, unit and upper limit of what needs no server."""

AT_LEAST: Final = frozenset({"fleet", "session", "saver"})
"""Rows whose bars are lower limits."""


def bar(row: str, store: str, length: int = 0) -> float | None:
    """The bar of a row for a store; ``None`` if the figure is only told."""
    if row == "session":
        return SESSIONS.get(store)
    if row == "saver":
        return SAVERS.get(store) if length == LENGTHS[-1] else None
    if row in IN_PROCESS:
        return IN_PROCESS[row][2]
    return BARS[row][STORES.index(store)]


def is_met(row: str, value: float, limit: float) -> bool:
    """Whether a figure keeps its bar."""
    return value >= limit if row in AT_LEAST else value <= limit


__all__ = [
    "AT_LEAST",
    "BARS",
    "IN_PROCESS",
    "LENGTHS",
    "SAVERS",
    "SESSIONS",
    "STORES",
    "bar",
    "is_met",
]
