"""The files that a report can be written to, and what none of them may show."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from outlast.url import redact
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


def secrets_of(url: str) -> set[str]:
    """The passwords and keys in a URL, as they are written there and decoded."""
    shown = redact(url)
    parts = urlsplit(url)
    values = [parts.password or ""]
    values += [value for _, value in parse_qsl(parts.query) if value and value not in shown]
    found = {form for value in values for form in (value, unquote(value))}
    # What is shorter would blot out half of the report.
    return {text for text in found if len(text) >= 3}


__all__ = ["FORMATS", "secrets_of", "written"]
