"""The figures of one run as Markdown, for the documentation to include."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.bars import AT_LEAST, BARS, IN_PROCESS, LENGTHS, is_met
from benchmarks.names import NAMES
from outlast.cli.bench.rows import FLEET, TITLES

WRITES: Final = 5.5
"""Writes a second of a task whose model is talking: four checkpoints, a state, half a message."""


def write_tables(report: Mapping[str, Any], path: Path) -> None:
    """Write all tables into one file, in sections that are included by their marks."""
    sections = {
        "ratios": _ratios(report),
        "in-process": _in_process(report),
        "breakdown": _breakdown(report),
        "peers": _peers(report),
        "fleet": _fleet(report),
    }
    lines: list[str] = []
    for name, table in sections.items():
        lines += [f"<!-- {name} -->", "", *table, "", f"<!-- end of {name} -->", ""]
    path.write_text("\n".join(lines), "utf-8")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' for _ in head)}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _found(report: Mapping[str, Any]) -> dict[tuple[str, str, int], Mapping[str, Any]]:
    return {(row["row"], row["store"], row["length"]): row for row in report["rows"]}


def _figure(row: Mapping[str, Any] | None) -> str:
    """The value, with its bar."""
    if row is None or row["value"] is None:
        return ""
    limit = row["bar"]
    if limit is None:
        return f"{row['value']:.2f}"
    sign = "≥" if row["row"] in AT_LEAST else "≤"
    value = f"{row['value']:.2f}"
    if not is_met(row["row"], row["value"], limit):
        value = f"**{value}**"
    return f"{value} ({sign} {limit:.3g})"


def _ratios(report: Mapping[str, Any]) -> Iterator[str]:
    found = _found(report)
    rows = [
        [TITLES[name], *(_figure(found.get((name, store, 0))) for store in NAMES)] for name in BARS
    ]
    yield from _table(("", *NAMES.values()), rows)


def _in_process(report: Mapping[str, Any]) -> Iterator[str]:
    found = _found(report)
    rows = [
        [title, f"{_figure(found.get((name, '', 0)))} {unit}".removesuffix(" x")]
        for name, (title, unit, _) in IN_PROCESS.items()
    ]
    yield from _table(("", "figure (bar)"), rows)


def _breakdown(report: Mapping[str, Any]) -> Iterator[str]:
    parts = ("encode", "loop", "driver", "server")
    rows = [
        [NAMES[store], *(f"{each[part]:.0f}" for part in parts)]
        for store, each in report["breakdowns"].items()
    ]
    head = ("µs", "check and encode", "order, deadline, retries", "driver, client", "waiting")
    yield from _table(head, rows)


def _peers(report: Mapping[str, Any]) -> Iterator[str]:
    found = _found(report)
    stores = [store for store in NAMES if ("session", store, LENGTHS[0]) in found]
    titles = {"session": "OpenAI Agents SDK session", "saver": "LangGraph saver"}
    rows = [
        [
            f"{title}, at {length:,}",
            *(_figure(found.get((name, store, length))) for store in stores),
        ]
        for name, title in titles.items()
        for length in LENGTHS
    ]
    yield from _table(("times outlast", *(NAMES[store] for store in stores)), rows)


def _fleet(report: Mapping[str, Any]) -> Iterator[str]:
    found = _found(report)
    rows: list[list[str]] = []
    for store, name in NAMES.items():
        fleet, size = found.get(("fleet", store, 0)), found.get(("size", store, 0))
        if fleet is None or size is None:
            continue
        seconds = fleet["timings"]["outlast"]["median"] / 1000
        per_second = FLEET * report["each"] / seconds
        rows.append(
            [name, f"{per_second:,.0f}", f"{per_second / WRITES:,.0f}", f"{size['value']:.2f}"]
        )
    head = ("", "writes a second", "tasks whose model is talking", "bytes stored, times sent")
    yield from _table(head, rows)


__all__ = ["WRITES", "write_tables"]
