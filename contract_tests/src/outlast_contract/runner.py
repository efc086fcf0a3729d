"""The whole suite, one check after the other, for the command and for programs."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from outlast_contract.engine import Check, Result, Settings, run_check_sync, select_checks
from outlast_contract.harness import Harness
from outlast_contract.report import Report


def run_suite(
    make_harness: Callable[[], Harness],
    *,
    checks: Iterable[Check] | None = None,
    settings: Settings | None = None,
    subject: str = "",
    versions: Mapping[str, str] | None = None,
    secrets: Iterable[str] = (),
    before: Callable[[Check], object] = lambda check: None,
    after: Callable[[Result], object] = lambda result: None,
) -> Report:
    """Run checks and report on every clause.

    Args:
        make_harness: Makes a harness; called once for each check.
        checks: Which; all of them by default.
        settings: Seed, rounds, kills.
        subject: What is tested, for the report.
        versions: Of what is tested, for the report.
        secrets: What the report must not show.
        before: Called with each check before it is run.
        after: Called with each result.
    """
    settings = settings or Settings()
    began = datetime.now(UTC)
    results: list[Result] = []
    for check in select_checks() if checks is None else checks:
        before(check)
        result = run_check_sync(check, make_harness, settings)
        after(result)
        results.append(result)
    return Report(
        results,
        subject=subject,
        seed=settings.seed,
        versions=versions,
        began=began,
        secrets=secrets,
    )


__all__ = ["run_suite"]
