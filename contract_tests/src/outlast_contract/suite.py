"""The suite as a test class for pytest."""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from outlast_contract.engine import (
    TIERS,
    Check,
    Need,
    Result,
    Settings,
    all_checks,
    number_in,
    run_check_sync,
    select_checks,
)
from outlast_contract.expect import Violation
from outlast_contract.harness import Harness
from outlast_contract.suite_reports import more_of, reports_folder
from outlast_contract.unwritten import missing_in

GUARD = "test_no_test_of_the_suite_was_changed"


def contract_suite(
    make_harness: Callable[[], Harness],
    *,
    tiers: Iterable[str] = TIERS,
    settings: Settings | None = None,
    xfail: Mapping[str, str] | None = None,
    cases: int | None = None,
    lacks: Iterable[Need] = (),
    only: Iterable[Need] = (),
) -> type:
    """Make a test class that holds a backend to the contract; name it ``Test...`` in a test module.

    The tests are plain functions that run an event loop each, so no plugin or setting is needed;
    each works in namespaces of its own, also beside others under pytest-xdist. What cannot be run
    is skipped as NOT RUN with the reason.

    Tests of the tier *faults* have the mark ``faults``.

    A subclass may not change or drop a test. What a backend cannot do yet is said by ``xfail``, or
    by an override that is marked ``xfail(strict=True, reason=...)``; the report shows it as failed.

    Args:
        make_harness: A `Harness` class, or a function that makes one; called once for each test.
        tiers: Which tiers; all by default.
        settings: Seed, rounds and kills; see `Settings.from_environment` for the defaults.
        xfail: Names of tests that are known to fail, with the reason for each; for those that are
            left out here, it does not matter.
        cases: For runs that are short: of a check that is there for many cases, such as once for
            each mutation, take so many, spread evenly; which ones differs from harness to harness,
            so that the classes of several stores cover more together. Run all of them elsewhere:
            the report says how many were left out. By default ``OUTLAST_CONTRACT_CASES``, or all.
        lacks: What the store can never offer, such as ``endpoints`` if it has no server: tests
            that need it are left out, instead of skipped. So are heavy ones that ``settings``
            exclude.
        only: Leave out all tests that need none of these: for a second store of the kind, which has
            what the first one lacks, such as a ``secret``.
    """
    if isinstance(make_harness, type) and not _opens(make_harness):
        raise TypeError(f"{make_harness.__name__} defines neither open() nor url")
    expected = dict(xfail or {})
    tests: dict[str, Any] = {}
    without, wanted = frozenset(lacks), frozenset(only)
    count = _cases() if cases is None else cases
    for check in select_checks(tiers=tiers, cases=count, turn=_turn_of(make_harness)):
        if wanted and not check.needs & wanted:
            continue
        if check.needs & without or (check.heavy and settings is not None and not settings.heavy):
            continue
        test = _make_test(check, make_harness, settings)
        if check.tier == "faults":
            test = pytest.mark.faults(test)
        reason = expected.pop(check.test_name, "")
        if reason:
            test = pytest.mark.xfail(strict=True, reason=reason)(test)
        tests[check.test_name] = test
    unknown = expected.keys() - {check.test_name for check in all_checks()}
    if unknown:
        raise ValueError(f"xfail names tests that do not exist: {', '.join(sorted(unknown))}")
    body = {
        "__doc__": "The contract of outlast, check by check.",
        "_originals": dict(tests),
        **tests,
        GUARD: _guard,
    }
    return _Guarded("ContractSuite", (), body)


def _cases() -> int | None:
    """``None``: all."""
    return number_in("OUTLAST_CONTRACT_CASES")


def _turn_of(make_harness: Callable[[], Harness]) -> int:
    """The same for a harness in every run and process."""
    name = getattr(make_harness, "__qualname__", type(make_harness).__qualname__)
    return zlib.crc32(f"{make_harness.__module__}.{name}".encode())


def _opens(harness: type) -> bool:
    names = ("open", "open_with", "url", "__init__")
    return any(getattr(harness, name, None) is not getattr(Harness, name) for name in names)


def _make_test(
    check: Check, make_harness: Callable[[], Harness], settings: Settings | None
) -> Callable[[object, pytest.FixtureRequest], None]:
    def test(self: object, request: pytest.FixtureRequest) -> None:
        chosen = settings or Settings.from_environment()
        result = run_check_sync(check, make_harness, chosen)
        # Not by `record_property`, which warns in every test that is written to a JUnit file.
        request.node.user_properties += _properties(result)
        if reports_folder() is not None:
            more = more_of(result, make_harness, chosen)
            request.node.user_properties.append(("outlast_more", more))
        if result.status == "not run":
            pytest.skip(f"NOT RUN: {result.detail}")
        if result.status == "failed" and missing_in(result.detail):
            # One line for each of hundreds of tests: where it was raised helps nobody.
            pytest.fail(f"[{result.clause}] {result.detail}", pytrace=False)
        if result.status == "failed":
            trace = f"\n{result.trace}" if result.trace else ""
            raise Violation(f"[{result.clause}] {result.detail}{trace}", result.clause)

    test.__name__ = test.__qualname__ = check.test_name
    test.__doc__ = check.title
    test.outlast_check = check  # type: ignore[attr-defined]
    return test


def _properties(result: Result) -> list[tuple[str, object]]:
    """The result for the plugin's summary, also from a worker of pytest-xdist."""
    return [
        ("outlast_check", result.check.name),
        ("outlast_status", result.status),
        ("outlast_clause", result.clause or ""),
        ("outlast_detail", result.detail),
        ("outlast_notes", json.dumps(result.notes)),
    ]


class _Guarded(type):
    """A class whose guard cannot be replaced or deleted, wherever it is inherited."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> "_Guarded":
        if bases:
            body.pop(GUARD, None)
        return super().__new__(cls, name, bases, body)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name in (GUARD, "_originals"):
            raise AttributeError(f"{name} of a contract suite cannot be replaced")
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        if name in (GUARD, "_originals"):
            raise AttributeError(f"{name} of a contract suite cannot be deleted")
        super().__delattr__(name)


def changed_tests(suite: type) -> list[str]:
    """The tests of a suite that were overridden or deleted without a strict xfail and its
    reason.
    """
    originals: dict[str, Any] = getattr(suite, "_originals")  # noqa: B009
    found: list[str] = []
    for name, original in originals.items():
        now = getattr(suite, name, None)
        if now is None:
            found.append(f"{name} was deleted")
        elif now is not original and not _is_strict_xfail(now):
            found.append(f"{name} was overridden")
    return found


def _is_strict_xfail(test: object) -> bool:
    return any(
        mark.name == "xfail" and mark.kwargs.get("strict") is True and mark.kwargs.get("reason")
        for mark in getattr(test, "pytestmark", ())
    )


def _guard(self: object) -> None:
    """Every test of the suite is there, unchanged, or marked as a strict xfail with a reason."""
    changed = changed_tests(type(self))
    assert not changed, (
        "tests of the contract suite were changed: "
        + "; ".join(changed)
        + ". Mark what fails with @pytest.mark.xfail(strict=True, reason=...) instead"
    )


_guard.__name__ = GUARD


__all__ = ["GUARD", "changed_tests", "contract_suite"]
