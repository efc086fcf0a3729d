"""The figures of one run: as a table with bars, as JSON, and what is missed."""

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import outlast
from benchmarks.bars import AT_LEAST, IN_PROCESS, bar, is_met
from benchmarks.breakdown import Breakdown
from outlast.cli.bench.rows import TITLES, Row

PEERS = {
    "session": "OpenAI Agents SDK session, times outlast",
    "saver": "LangGraph saver, times outlast",
}


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        store: Its kind; empty for what needs none.
        row: The figure, with its timings.
        length: Of the history, for peers.
    """

    store: str
    row: Row
    length: int = 0

    @property
    def title(self) -> str:
        """For people."""
        if self.row.name in IN_PROCESS:
            return IN_PROCESS[self.row.name][0]
        if self.row.name in PEERS:
            return f"{PEERS[self.row.name]}, at {self.length:,}"
        return TITLES[self.row.name]

    @property
    def limit(self) -> float | None:
        """Its bar."""
        return bar(self.row.name, self.store, self.length)

    @property
    def is_missed(self) -> bool:
        """Whether it has a bar that it does not keep."""
        limit, value = self.limit, self.row.value
        return limit is not None and (value is None or not is_met(self.row.name, value, limit))


@dataclass
class Report:
    """All that one run found.

    Attributes:
        profile: ``whole`` or ``quick``.
        each: Appends of each of the tasks that append at once.
        lines: In the order in which they were taken.
        breakdowns: By store.
        missing: What was not measured, and why.
        seconds: How long it took.
    """

    profile: str
    each: int
    lines: list[Line] = field(default_factory=list[Line])
    breakdowns: dict[str, Breakdown] = field(default_factory=dict[str, Breakdown])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0

    @property
    def missed(self) -> list[Line]:
        """The lines that do not keep their bars."""
        return [line for line in self.lines if line.is_missed]

    def as_json(self) -> dict[str, Any]:
        """For `Report.save` and the charts."""
        return {
            "version": outlast.__version__,
            "profile": self.profile,
            "each": self.each,
            "python": platform.python_version(),
            "machine": {
                "processors": os.cpu_count(),
                "system": platform.system(),
                "load": os.getloadavg()[2],
            },
            "seconds": round(self.seconds),
            "rows": [
                {
                    "store": line.store,
                    "row": line.row.name,
                    "length": line.length,
                    "value": line.row.value,
                    "bar": line.limit,
                    "missed": line.is_missed,
                    "timings": {name: asdict(each) for name, each in line.row.timings.items()},
                }
                for line in self.lines
            ],
            "breakdowns": {store: asdict(each) for store, each in self.breakdowns.items()},
            "missing": self.missing,
        }

    def save(self, path: Path) -> None:
        """Write the figures as JSON."""
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n", "utf-8")

    def show(self, console: Console) -> None:
        """Print every row with its bar."""
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for column in ("store", ""):
            table.add_column(column, no_wrap=True)
        for column in ("figure", "bar", "", "ms", "p95", "beside ms", "p95", "times"):
            table.add_column(column, justify="right", no_wrap=True)
        for line in self.lines:
            table.add_row(*_cells(line))
        console.print(table)
        for what, why in self.missing.items():
            console.print(Text(f"NOT RUN {what}: {why}", style="yellow"))
        for line in self.missed:
            console.print(
                Text(f"MISSED {line.store or 'in process'}: {line.title}: ", style="red"),
                f"{line.row.value:.2f}, bar {line.limit:.2f}",
            )
        bars = sum(line.limit is not None for line in self.lines)
        console.print(
            f"{bars - len(self.missed)} of {bars} bars kept, {len(self.missing)} parts not run, "
            f"in {self.seconds:.0f} s"
        )


def _cells(line: Line) -> Iterator[str | Text]:
    yield line.store
    yield line.title
    yield "" if line.row.value is None else f"{line.row.value:.2f}"
    limit = line.limit
    sign = "≥" if line.row.name in AT_LEAST else "≤"
    yield "" if limit is None else f"{sign} {limit:.2f}"
    if limit is None:
        yield ""
    else:
        yield Text("missed", style="red") if line.is_missed else Text("kept", style="green")
    timings = list(line.row.timings.values())
    for each in timings[:2]:
        yield f"{each.median:.3f}"
        yield f"{each.p95:.3f}"
    yield from [""] * (4 - 2 * len(timings[:2]))
    yield str(timings[0].count) if timings else ""


__all__ = ["Line", "Report"]
