"""Charts of one run, as SVG for the documentation and as PNG; its tables beside them."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

from benchmarks.names import NAMES
from benchmarks.tables import write_tables

_RATIOS: Final = {
    "append": "append, 1 KB",
    "put": "checkpoint, 4 KB",
    "state": "state, 2 KB",
    "load": "load 1,000",
}
_PARTS: Final = {
    "encode": "check and encode",
    "loop": "order, deadline, retries",
    "driver": "driver and client library",
    "server": "waiting: network, server, disk",
}
_COLORS: Final = ("#2f6f8f", "#e0a030", "#7a9e4f", "#b5533c")
_GREY: Final = "#b8bdc2"


def draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what the report has figures for; return the files."""
    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "axes.grid": True,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.axisbelow": True,
            "figure.constrained_layout.use": True,
            "figure.facecolor": "white",
            "font.size": 10,
            "grid.color": "#e6e8ea",
            "legend.frameon": False,
            "svg.fonttype": "none",
            "svg.hashsalt": "outlast",
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    rows: Sequence[Mapping[str, Any]] = report["rows"]
    drawn: list[Path] = []
    for name, made in (
        ("ratios", _ratios(rows)),
        ("breakdown", _breakdown(report["breakdowns"])),
        ("peers", _peers(rows)),
    ):
        if made is None:
            continue
        for ending in ("svg", "png"):
            path = folder / f"{name}.{ending}"
            made.savefig(path, dpi=110, metadata={"Date": None} if ending == "svg" else None)
            drawn.append(path)
        plt.close(made)
    drawn.append(folder / "figures.inc")
    write_tables(report, drawn[-1])
    return drawn


def _ratios(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Times the raw driver, with the bar of each figure."""
    found = {
        (row["row"], row["store"]): row
        for row in rows
        if row["row"] in _RATIOS and row["value"] and (row["row"], row["store"]) != ("load", "file")
    }
    stores = [store for store in NAMES if ("append", store) in found]
    if not stores:
        return None
    figure, axes = plt.subplots(figsize=(9, 4))
    width = 0.8 / len(_RATIOS)
    for number, (name, title) in enumerate(_RATIOS.items()):
        places = [place + (number - 1.5) * width for place in range(len(stores))]
        each = [found.get((name, store)) for store in stores]
        values = [0.0 if row is None else float(row["value"]) for row in each]
        axes.bar(places, values, width * 0.92, label=title, color=_COLORS[number])
        for place, row in zip(places, each, strict=True):
            if row is not None and row["bar"]:
                limit = float(row["bar"])
                half = width * 0.46
                axes.plot([place - half, place + half], [limit, limit], color="black", lw=1.6)
    axes.axhline(1, color=_GREY, lw=1)
    axes.set_xticks(range(len(stores)), [NAMES[store] for store in stores])
    axes.set_ylabel("times the raw driver")
    axes.grid(visible=False, axis="x")
    axes.plot([], [], color="black", lw=1.6, label="at most")
    axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.14))
    return figure


def _breakdown(breakdowns: Mapping[str, Mapping[str, float]]) -> Any:
    """Microseconds of one append, by where they go; the long waits are cut and said."""
    stores = [store for store in reversed(NAMES) if store in breakdowns]
    if not stores:
        return None
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(stores) + 1.4))
    left = [0.0] * len(stores)
    colors = (_COLORS[1], _COLORS[3], _COLORS[0], _GREY)
    for (name, title), color in zip(_PARTS.items(), colors, strict=True):
        values = [breakdowns[store][name] / 1000 for store in stores]
        axes.barh(stores, values, 0.62, left=left, label=title, color=color)
        left = [before + value for before, value in zip(left, values, strict=True)]
    for store, end in zip(stores, left, strict=True):
        axes.annotate(f" {end:.2f}", (end, store), va="center")
    axes.set_yticks(range(len(stores)), [NAMES[store] for store in stores])
    axes.set_xlabel("milliseconds of one append")
    axes.grid(visible=False, axis="y")
    axes.legend(ncols=2, loc="lower right")
    return figure


def _peers(rows: Sequence[Mapping[str, Any]]) -> Any:
    """One more message, by the length of the history."""
    found = [row for row in rows if row["row"] in ("session", "saver")]
    stores = [store for store in NAMES if any(row["store"] == store for row in found)]
    if not stores:
        return None
    figure, all_axes = plt.subplots(
        1, len(stores), figsize=(2.5 * len(stores) + 0.5, 3.4), squeeze=False, sharey=True
    )
    titles = {
        "outlast": "outlast, fenced and idempotent",
        "session": "OpenAI Agents SDK session",
        "saver": "LangGraph saver",
    }
    for axes, store in zip(all_axes[0], stores, strict=True):
        for color, (name, title) in zip(_COLORS, titles.items(), strict=False):
            points = [
                (row["length"], row["timings"][name]["median"])
                for row in found
                if row["store"] == store
                and row["row"] == ("session" if name == "outlast" else name)
            ]
            axes.plot(*zip(*points, strict=True), color=color, marker="o", label=title)
        axes.set_title(NAMES[store])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xticks([100, 500, 1000])
        axes.set_xlabel("messages")
    all_axes[0][0].set_ylabel("ms for one more message")
    handles, labels = all_axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=3, loc="outside upper center")
    return figure


def main() -> None:
    """Draw the charts of a saved report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.charts", description=main.__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    for path in draw(json.loads(arguments.report.read_text("utf-8")), arguments.folder):
        print(path)


if __name__ == "__main__":
    main()
