"""The files that a report can be written to, and what none of them may show."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Final

from outlast_contract.badge import badge
from outlast_contract.html_report import html_report
from outlast_contract.report import Report

FORMATS: Final[Mapping[str, Callable[[Report], str]]] = {
    "json": Report.to_json,
    "junit": Report.to_junit,
    "html": lambda report: html_report(report.to_dict()),
    "badge": lambda report: badge(report.to_dict()),
}
"""By the name of the command's option."""


def written(report: Report, options: argparse.Namespace) -> bool:
    """Write the files that were asked for, and tell whether that could be done."""
    for name, text in FORMATS.items():
        path = getattr(options, name)
        if path is None:
            continue
        try:
            path.write_text(text(report), encoding="utf-8")
        except OSError as error:
            reason = f"the report cannot be written to {path}: {error.strerror}"
            print(f"outlast-contract: {reason}", file=sys.stderr)
            return False
    return True


__all__ = ["FORMATS", "written"]
