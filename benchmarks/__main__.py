"""Measures everything: ``python -m benchmarks``, as ``nox -s bench`` runs it.

The exit code is 1 if a bar is missed, and 2 if something could not be measured.
"""

import argparse
import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from benchmarks.bars import STORES
from benchmarks.breakdown import measure_breakdown
from benchmarks.in_process import measure_in_process
from benchmarks.peers import PEERS, measure_peers
from benchmarks.places import Place, running
from benchmarks.report import Line, Report
from benchmarks.sizes import measure_size
from benchmarks.traffic import to_files, to_servers
from outlast.cli.bench.raw import raw_for
from outlast.cli.bench.rows import QUICK, WHOLE, Profile, Row, Target, measure
from outlast_contract.servers import ServerError, ServerUnavailable

Said = Callable[[str], object]
PARTS = ("size", "rows", "breakdown", "peers")
IN_PROCESS = "in-process"


def main() -> int:
    """Measure what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument(
        "--only", action="append", choices=(*STORES, IN_PROCESS), help="one store; repeatable"
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="one part; repeatable")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--charts", type=Path, help="draw charts into this folder")
    arguments = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())  # Peers log through the root.
    console = Console(highlight=False, width=None if os.isatty(1) else 160)
    profile = QUICK if arguments.quick else WHOLE
    report = Report("quick" if arguments.quick else "whole", profile.each)
    begun = time.monotonic()
    for kind in arguments.only or (IN_PROCESS, *STORES):
        _measure(kind, arguments.part or PARTS, profile, report, console)
    report.seconds = time.monotonic() - begun
    report.show(console)
    if arguments.json is not None:
        report.save(arguments.json)
    if arguments.charts is not None:
        from benchmarks.charts import draw

        draw(report.as_json(), arguments.charts)
    if report.missing:
        return 2
    return 1 if report.missed else 0


def _measure(
    kind: str, parts: Sequence[str], profile: Profile, report: Report, console: Console
) -> None:
    def said(what: str) -> None:
        console.print(f"[dim]{kind}: {what}[/dim]")

    if kind == IN_PROCESS:
        figures = asyncio.run(measure_in_process(profile, said))
        report.lines += [Line("", Row(name, value)) for name, value in figures.items()]
        return
    try:
        with running(kind) as place:
            for part in PARTS:
                if part in parts:
                    asyncio.run(_MEASURED[part](place, profile, report, said))
    except (ServerError, ServerUnavailable) as error:
        report.missing[kind] = str(error)


async def _size(place: Place, profile: Profile, report: Report, said: Said) -> None:
    said("size")
    report.lines.append(Line(place.kind, await measure_size(place)))


async def _rows(place: Place, profile: Profile, report: Report, said: Said) -> None:
    counter = to_files if place.kind in ("file", "sqlite") else to_servers
    target = Target(place.url, place.options, raw_for(place.url, place.options), counter)
    report.lines += [Line(place.kind, row) for row in await measure(target, profile, said)]


async def _breakdown(place: Place, profile: Profile, report: Report, said: Said) -> None:
    said("breakdown")
    report.breakdowns[place.kind] = await measure_breakdown(place, profile)


async def _peers(place: Place, profile: Profile, report: Report, said: Said) -> None:
    if place.kind not in PEERS:
        return
    wanted = {"agents": "openai-agents", "langgraph": "langgraph-checkpoint"}
    absent = [package for module, package in wanted.items() if find_spec(module) is None]
    if absent:
        report.missing[f"peers on {place.kind}"] = f"{' and '.join(absent)} not installed"
        return
    found = await measure_peers(place, profile, said)
    report.lines += [Line(place.kind, row, length) for length, row in found]


_MEASURED = {"size": _size, "rows": _rows, "breakdown": _breakdown, "peers": _peers}


if __name__ == "__main__":
    raise SystemExit(main())
