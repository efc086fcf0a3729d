"""A picture of the calls before a failure, and of what was let go wrong meanwhile."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from outlast_contract.printing import printable

_WIDTH: Final = 1000
_LEFT: Final = 344
"""Where the bars begin; before it stand the calls."""
_RIGHT: Final = 742
"""Where they end; behind it stands what came of them."""
_ROW: Final = 21
_TOP: Final = 26
_MOST: Final = 40


class _Row(NamedTuple):
    label: str
    began: float
    ended: float
    style: str
    ending: str
    tip: str


def timeline(
    calls: Sequence[dict[str, Any]],
    injected: Sequence[dict[str, Any]],
    *,
    broken: str,
    omitted: int = 0,
) -> str:
    """An SVG picture, one row for each call and fault; empty if there is nothing to show.

    The axis gives short and long waits their place: it is neither linear nor logarithmic, but shows
    the order, and the instants are written on it.

    Args:
        calls: As in the report.
        injected: As in the report.
        broken: What the end of it is, in words.
        omitted: How many calls before are not among them.
    """
    rows = sorted([*map(_of_call, calls), *map(_of_fault, injected)], key=lambda row: row.began)
    if not calls:
        return ""
    last = max(call["ended"] for call in calls)
    hidden = max(0, len(rows) - _MOST) + omitted
    rows = [row._replace(ended=min(row.ended, last)) for row in rows if row.began <= last][-_MOST:]
    place = _axis([instant for row in rows for instant in (row.began, row.ended)])
    height = _TOP + _ROW * (len(rows) + 1) + 6
    parts = [
        (
            f'<svg class="timeline" viewBox="0 0 {_WIDTH} {height}" role="img" '
            f'aria-label="{_text(f"{len(rows)} calls and faults before: {broken}")}">'
        )
    ]
    parts += _ticks(rows, place, height)
    for row in rows:
        if row.style == "fault":
            x, width = _span(row, place)
            parts.append(
                f'<rect class="band" x="{x:.1f}" y="{_TOP}" width="{width:.1f}" '
                f'height="{height - _TOP - 6}"/>'
            )
    for number, row in enumerate(rows):
        parts += _drawn(row, _TOP + _ROW * number, place)
    y, end = _TOP + _ROW * len(rows), place(last)
    parts.append(f'<path class="end" d="M{end:.1f} {_TOP}V{y + _ROW - 4}"/>')
    parts.append(f'<text class="end" x="{_LEFT - 10}" y="{y + 14}">{_text(broken)}</text>')
    parts.append("</svg>")
    if hidden:
        parts.append(f'<p class="quiet">{hidden} earlier calls and faults are not shown.</p>')
    return "\n".join(parts)


def _of_call(call: dict[str, Any]) -> _Row:
    ending = ": ".join(call["error"].split(": ")[:2]) or call["outcome"]
    if call["error"] and call["outcome"] == "unknown":
        ending = f"unknown: {ending}"
    return _Row(
        f"client {call['client']}  {call['what']}",
        call["began"],
        call["ended"],
        call["outcome"],
        ending,
        f"{call['what']}: {call['error'] or call['outcome']}",
    )


def _of_fault(fault: dict[str, Any]) -> _Row:
    return _Row(
        f"\u26a1 {fault['what']}", fault["began"], fault["ended"], "fault", "", fault["what"]
    )


def _axis(instants: Iterable[float]) -> Callable[[float], float]:
    """Where an instant stands: the more time between two, the more room, but never too much."""
    known = sorted(set(instants))
    places = [0.0]
    for before, after in itertools.pairwise(known):
        places.append(places[-1] + 6 + 12 * math.log10(1 + (after - before) / 1e-4))
    scale = (_RIGHT - _LEFT) / (places[-1] or 1.0)
    found = dict(zip(known, places, strict=True))
    return lambda instant: _LEFT + scale * found[instant]


def _span(row: _Row, place: Callable[[float], float]) -> tuple[float, float]:
    x = place(row.began)
    return x, max(3.0, place(row.ended) - x)


def _ticks(rows: Sequence[_Row], place: Callable[[float], float], height: int) -> list[str]:
    parts: list[str] = []
    origin, free = rows[0].began, -math.inf
    for row in rows:
        x = place(row.began)
        if x >= free and x <= _RIGHT - 20:
            free = x + 74
            parts.append(f'<path class="grid" d="M{x:.1f} {_TOP - 6}V{height - 6}"/>')
            told = duration(row.began - origin)
            parts.append(f'<text class="tick" x="{x:.1f}" y="14">+{told}</text>')
    return parts


def _drawn(row: _Row, y: int, place: Callable[[float], float]) -> list[str]:
    x, width = _span(row, place)
    label = row.label if len(row.label) <= 45 else f"{row.label[:44]}\u2026"
    ending = row.ending if len(row.ending) <= 36 else f"{row.ending[:35]}\u2026"
    took = duration(row.ended - row.began)
    return [
        f'<g class="{row.style.replace(" ", "-")}"><title>{_text(f"{row.tip} ({took})")}</title>',
        f'<text class="label" x="{_LEFT - 10}" y="{y + 14}">{_text(label)}</text>',
        f'<rect class="bar" x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="13" rx="2"/>',
        f'<text class="ending" x="{_RIGHT + 12}" y="{y + 14}">{_text(ending)}</text></g>',
    ]


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} \u00b5s"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def _text(text: str) -> str:
    return escape(printable(text))


__all__ = ["duration", "timeline"]
