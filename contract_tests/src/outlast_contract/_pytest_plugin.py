"""The pytest plugin: after a run with tests of the suite it sums up what became of each clause, and
writes the files that ``OUTLAST_CONTRACT_REPORTS`` asks for.

pytest loads it in every project of an environment: it does nothing where the suite was not used,
and imports nothing before it was.
"""

from typing import Any


def pytest_configure(config: Any) -> None:
    """Register the mark of the tests that let a network fail."""
    config.addinivalue_line("markers", "faults: injects faults")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the clauses, if tests of a contract suite were run."""
    reports = [
        report
        for outcome in ("passed", "failed", "skipped", "xfailed", "xpassed")
        for report in terminalreporter.stats.get(outcome, ())
        if any(name == "outlast_check" for name, _ in getattr(report, "user_properties", ()))
    ]
    if reports:
        from outlast_contract.pytest_summary import print_summary, write_reports
        from outlast_contract.suite_reports import reports_folder

        print_summary(terminalreporter, reports)
        folder = reports_folder()
        if folder is not None:
            write_reports(terminalreporter, reports, folder)
