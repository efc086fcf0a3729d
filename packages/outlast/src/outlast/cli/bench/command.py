"""`outlast bench`: what a store costs from here."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

import outlast
from outlast.cli.bench.raw import raw_for
from outlast.cli.bench.rows import QUICK, TITLES, WHOLE, Row, Target, measure
from outlast.url import redact


async def run_bench(
    url: str, *, quick: bool, output: Path | None, console: Console, progress: Console
) -> None:
    """Measure a store, print a table, and write the figures as JSON if asked to."""
    raw = raw_for(url)
    with progress.status("opening the store") as status:
        rows = await measure(
            Target(url, raw=raw),
            QUICK if quick else WHOLE,
            lambda name: status.update(TITLES[name]),
        )
    console.print(table_of(rows, f"outlast {outlast.__version__} on {redact(url)}"))
    if raw is None:
        console.print("There is no raw driver to compare this store with.")
    if output is not None:
        output.write_text(json.dumps(as_json(redact(url), rows), indent=2) + "\n", "utf-8")


def table_of(rows: Sequence[Row], title: str) -> Table:
    """One line for each row: times in milliseconds, median and 95th percentile."""
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    table.add_column("")
    for column in ("ratio", "outlast ms", "p95", "raw ms", "p95"):
        table.add_column(column, justify="right")
    for row in rows:
        mine = row.timings.get("outlast") or row.timings.get("long")
        other = row.timings.get("raw") or row.timings.get("short")
        cells: list[str] = []
        for timing in (mine, other):
            cells += ["", ""] if timing is None else [f"{timing.median:.2f}", f"{timing.p95:.2f}"]
        ratio = "" if row.value is None else f"{row.value:.2f}"
        table.add_row(TITLES[row.name], ratio, *cells)
    return table


def as_json(url: str, rows: Sequence[Row]) -> dict[str, object]:
    """The figures, times in milliseconds."""
    return {"version": outlast.__version__, "url": url, "rows": [asdict(row) for row in rows]}


__all__ = ["as_json", "run_bench", "table_of"]
