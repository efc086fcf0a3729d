"""The clause by clause summary at the end of a pytest run."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from outlast_contract.engine import Result, all_checks
from outlast_contract.report import Report
from outlast_contract.unwritten import lines_of

_MARKUP: dict[str, dict[str, bool]] = {
    "verified": {"green": True},
    "failed": {"red": True, "bold": True},
    "not run": {"yellow": True},
    "head": {"bold": True},
}


def results_by_suite(reports: Iterable[Any]) -> dict[str, list[Result]]:
    """The results of the suite's tests, by the class that they belong to."""
    checks = {check.name: check for check in all_checks()}
    found: dict[str, list[Result]] = {}
    for report in reports:
        properties = dict(report.user_properties)
        check = checks.get(properties.get("outlast_check", ""))
        if check is None:
            continue
        suite = report.nodeid.rpartition("::")[0]
        notes = properties["outlast_notes"]
        known = f" (expected: {report.wasxfail})" if getattr(report, "wasxfail", "") else ""
        found.setdefault(suite, []).append(
            Result(
                check,
                properties["outlast_status"],
                properties["outlast_clause"] or None,
                properties["outlast_detail"] + known,
                tuple((clause, text) for clause, text in json.loads(notes)),
                getattr(report, "duration", 0.0),
            )
        )
    return found


def print_summary(terminal: Any, reports: Sequence[Any]) -> None:
    """Write the summary of each suite that was run."""
    verbose = terminal.config.get_verbosity() > 0
    for suite, results in results_by_suite(reports).items():
        report = Report(results)
        terminal.section(f"contract: {suite}", sep="-")
        lines = report.lines(verbose=verbose)
        if not verbose:
            head = next((place for place, line in enumerate(lines) if not line[0]), len(lines))
            lines = lines[:head]
        for text, style in lines:
            terminal.write_line(text, **_MARKUP.get(style, {}))
        for text in lines_of(results):
            terminal.write_line(text)


__all__ = ["print_summary", "results_by_suite"]
