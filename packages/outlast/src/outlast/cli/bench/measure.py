"""Timing things side by side: alternating, warm, so that noise meets all of them alike."""

import gc
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Step = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Timing:
    """Of one thing that was done many times.

    Attributes:
        median: Milliseconds.
        p95: Milliseconds.
        count: How many times.
    """

    median: float
    p95: float
    count: int


async def side_by_side(steps: Sequence[Step], count: int, warmup: int = 30) -> list[Timing]:
    """Time each step ``count`` times, in turns, after some turns that do not count."""
    taken: list[list[float]] = [[] for _ in steps]
    # What is there already is nobody's garbage; its collection would be counted to some step.
    gc.collect()
    gc.freeze()
    try:
        for turn in range(warmup + count):
            # The order alternates too: who comes second may find warmer caches.
            order = range(len(steps)) if turn % 2 else range(len(steps) - 1, -1, -1)
            for place in order:
                begun = time.perf_counter()
                await steps[place]()
                if turn >= warmup:
                    taken[place].append(time.perf_counter() - begun)
    finally:
        gc.unfreeze()
    return [timing(each) for each in taken]


def timing(seconds: Sequence[float]) -> Timing:
    """What is told of some durations."""
    ordered = sorted(seconds)
    place = max(0, math.ceil(len(ordered) * 0.95) - 1)
    return Timing(statistics.median(ordered) * 1000, ordered[place] * 1000, len(ordered))


__all__ = ["Step", "Timing", "side_by_side", "timing"]
