"""Defects that only several processes show are found, and the correct one-file backend passes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_backends.onefile import OneFileHarness

from outlast_contract import Settings
from outlast_contract.engine import Result, run_check_sync, select_checks

pytestmark = pytest.mark.slow

PROCESSES = [
    check
    for check in select_checks()
    if "same store in processes" in check.needs and "endpoints" not in check.needs
]

DEFECTS = {
    "torn": {"D1", "S3", "F4", "F1", "A1", "A5"},
    "unlocked": {"A1", "F1", "F2", "A2"},
    "early": {"D1", "F4", "F1"},
    "stuck": {"D1", "F1", "E6"},
    "undeclared": {"E6"},
}
"""Clauses of which at least one must be found broken, by the scheme of the broken backend."""


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the one-file backends for child processes."""
    info = tmp_path / "onefile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onefile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[outlast]\nonefile = broken_backends.onefile\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def run(name: str, **settings: int) -> Iterator[Result]:
    for check in PROCESSES:
        yield run_check_sync(check, lambda: OneFileHarness(name), Settings(**settings))


def test_the_correct_backend_passes() -> None:
    """One file, locked and replaced as a whole, passes every check with several processes."""
    results = list(run("onefile", kills=10))
    assert not [(one.check.name, one.detail) for one in results if one.status == "failed"]
    # That one needs a library which is not everywhere.
    others = {one.check.name for one in results if one.status == "not run"}
    assert others <= {"clocks_decide_nothing"}, others


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    """Each defect breaks one of its clauses."""
    found = []
    for result in run(name, kills=30):
        found.append(result.clause)
        if result.clause in DEFECTS[name]:
            return
    pytest.fail(f"none of {DEFECTS[name]} was found broken, only {set(found) - {None}}")
