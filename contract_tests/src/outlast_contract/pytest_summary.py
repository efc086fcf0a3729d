"""The summary clause by clause at the end of a pytest run, and the files of its reports."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from outlast_contract.engine import Result, all_checks
from outlast_contract.report import Report
from outlast_contract.report_files import FORMATS
from outlast_contract.suite_reports import more_in
from outlast_contract.unwritten import lines_of

_MARKUP: dict[str, dict[str, bool]] = {
    "verified": {"green": True},
    "failed": {"red": True, "bold": True},
    "not run": {"yellow": True},
    "head": {"bold": True},
}
_FILES: Final = {"html": "html", "json": "json", "badge": "svg"}
"""The report's forms, and how their files' names end; JUnit's is pytest's own."""


@dataclass
class _Run:
    """What is known of the tests of one class."""

    results: list[Result] = field(default_factory=list[Result])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    seed: int = 0
    began: float = float("inf")


def runs_by_suite(reports: Iterable[Any]) -> Mapping[str, _Run]:
    """The results of the suite's tests, by the class that they belong to."""
    checks = {check.name: check for check in all_checks()}
    found: dict[str, _Run] = {}
    for report in reports:
        properties = dict(report.user_properties)
        check = checks.get(properties.get("outlast_check", ""))
        if check is None:
            continue
        run = found.setdefault(report.nodeid.rpartition("::")[0], _Run())
        notes = properties["outlast_notes"]
        known = f" (expected: {report.wasxfail})" if getattr(report, "wasxfail", "") else ""
        more = more_in(properties.get("outlast_more"))
        run.results.append(
            Result(
                check,
                properties["outlast_status"],
                properties["outlast_clause"] or None,
                properties["outlast_detail"] + known,
                tuple((clause, text) for clause, text in json.loads(notes)),
                getattr(report, "duration", 0.0),
                more.trace,
                more.recording,
            )
        )
        run.versions.update(more.versions)
        run.seed = more.seed
        run.began = min(run.began, getattr(report, "start", run.began))
    return found


def print_summary(terminal: Any, reports: Sequence[Any]) -> None:
    """Write the summary of each suite that was run."""
    verbose = terminal.config.get_verbosity() > 0
    for suite, run in runs_by_suite(reports).items():
        report = Report(run.results)
        terminal.section(f"contract: {suite}", sep="-")
        lines = report.lines(verbose=verbose)
        if not verbose:
            head = next((place for place, line in enumerate(lines) if not line[0]), len(lines))
            lines = lines[:head]
        for text, style in lines:
            terminal.write_line(text, **_MARKUP.get(style, {}))
        for text in lines_of(run.results):
            terminal.write_line(text)


def write_reports(terminal: Any, reports: Sequence[Any], folder: Path) -> None:
    """Write the files of each suite that was run, and say where they are."""
    for suite, run in runs_by_suite(reports).items():
        began = datetime.fromtimestamp(run.began, UTC) if run.began < float("inf") else None
        report = Report(
            run.results, subject=suite, seed=run.seed, versions=run.versions, began=began
        )
        name = re.sub(r"[^A-Za-z0-9_.]+", "-", suite.replace(".py::", "."))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for form, ending in _FILES.items():
                (folder / f"{name}.{ending}").write_text(FORMATS[form](report), "utf-8")
        except OSError as error:
            text = f"the contract's reports cannot be written to {folder}: {error.strerror}"
            terminal.write_line(text, **_MARKUP["failed"])
            return
        terminal.write_line(f"contract report of {suite}: {folder / name}.html")


__all__ = ["print_summary", "runs_by_suite", "write_reports"]
