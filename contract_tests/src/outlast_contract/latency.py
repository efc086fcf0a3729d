"""How long calls took while something was let go wrong."""

from collections.abc import Iterable
from typing import Any

from outlast_contract.engine import Result
from outlast_contract.recording import NO_FAULT, Sample


def latency(results: Iterable[Result]) -> list[dict[str, Any]]:
    """How long calls took that met a fault, by its kind; first those that met none.

    Of the checks in which something was let go wrong. Times are in seconds.
    """
    by_fault: dict[str, list[Sample]] = {NO_FAULT: []}
    for result in results:
        for sample in result.recording.samples:
            by_fault.setdefault(sample.fault, []).append(sample)
    found: list[dict[str, Any]] = []
    for fault, samples in by_fault.items():
        if not samples:
            continue
        times = sorted(sample.seconds for sample in samples)
        found.append(
            {
                "fault": fault,
                "calls": len(times),
                **{
                    outcome: sum(sample.outcome == outcome for sample in samples)
                    for outcome in ("done", "refused", "unknown")
                },
                "median": round(times[len(times) // 2], 6),
                "p95": round(times[min(len(times) - 1, len(times) * 95 // 100)], 6),
                "max": round(times[-1], 6),
            }
        )
    return found[:1] + sorted(found[1:], key=lambda one: one["fault"])


__all__ = ["latency"]
