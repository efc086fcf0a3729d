"""The report of `benchmarks`: its bars, what it counts as missed, and the tables of the docs."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
CHARTS = ROOT / "docs/explanation/charts"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_every_row_has_a_bar_for_every_store() -> None:
    from benchmarks.bars import BARS, STORES
    from outlast.cli.bench.rows import TITLES

    assert set(BARS) == set(TITLES)
    assert {len(bars) for bars in BARS.values()} == {len(STORES)}


@pytest.mark.parametrize(
    ("row", "value", "is_missed"),
    [("append", 1.5, False), ("append", 1.51, True), ("fleet", 0.6, False), ("fleet", 0.5, True)],
)
def test_a_figure_is_missed_on_the_wrong_side_of_its_bar(
    row: str, value: float, is_missed: bool
) -> None:
    from benchmarks.report import Line, Report
    from outlast.cli.bench.rows import Row

    report = Report("quick", 1, [Line("redis", Row(row, value))])
    assert bool(report.missed) is is_missed
    output = io.StringIO()
    report.show(Console(file=output, width=200))
    assert ("MISSED redis" in output.getvalue()) is is_missed
    assert f"{1 - is_missed} of 1 bars kept" in output.getvalue()


def test_the_tables_of_the_docs_are_those_of_the_figures_beside_them(tmp_path: Path) -> None:
    from benchmarks.tables import write_tables

    figures = json.loads((CHARTS / "figures.json").read_text(encoding="utf-8"))
    write_tables(figures, tmp_path / "figures.inc")
    assert (tmp_path / "figures.inc").read_text() == (CHARTS / "figures.inc").read_text()


def test_the_figures_of_the_docs_have_every_bar() -> None:
    from benchmarks.bars import BARS, IN_PROCESS, LENGTHS, SESSIONS, STORES

    figures = json.loads((CHARTS / "figures.json").read_text(encoding="utf-8"))
    found = {(row["row"], row["store"], row["length"]) for row in figures["rows"]}
    wanted = {(name, store, 0) for name in BARS for store in STORES}
    wanted |= {(name, "", 0) for name in IN_PROCESS}
    peers = ("session", "saver")
    wanted |= {(name, store, length) for name in peers for store in SESSIONS for length in LENGTHS}
    assert wanted <= found
    assert not figures["missing"]
