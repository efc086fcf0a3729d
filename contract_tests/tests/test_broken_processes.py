"""Defects of child processes are found: clocks that are believed, files left, words not said.

Each folder in broken_processes has a module that Python runs when it starts, and which breaks the
file backend; the suite hands its path on to the processes that it makes.
"""

import os
import runpy
import sys
from pathlib import Path

import pytest

from outlast.backends.file import FileDriver
from outlast_contract.engine import Result, run_check_sync, select_checks
from outlast_contract.servers import REQUIRED
from outlast_contract.stores import harness_for

pytestmark = pytest.mark.faults

BROKEN = {
    "clock_bound": "clocks_decide_nothing",
    "drops_quietly": "a_process_that_can_store_no_more_says_so",
    "leaves_files": "a_process_leaves_no_temporary_file",
}


def run(name: str, folder: Path) -> Result:
    (check,) = [one for one in select_checks() if one.name == name]
    result = run_check_sync(check, harness_for(folder.as_uri()))
    if result.status == "not run" and os.environ.get(REQUIRED) != "1":
        pytest.skip(f"NOT RUN: {result.detail}")
    return result


@pytest.mark.parametrize("name", BROKEN.values())
def test_a_backend_that_is_right_passes(name: str, tmp_path: Path) -> None:
    """And the check is carried out."""
    assert run(name, tmp_path).status == "passed"


@pytest.mark.parametrize("broken", BROKEN)
def test_a_backend_that_is_wrong_in_every_process_is_found(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the check that is about it."""
    monkeypatch.setenv("OUTLAST_TEST_NEWEST", str(tmp_path / "newest"))
    monkeypatch.setattr(FileDriver, "append", FileDriver.append)
    folder = Path(__file__).parent / "broken_processes" / broken
    runpy.run_path(str(folder / "sitecustomize.py"))
    monkeypatch.setattr("sys.path", [str(folder), *sys.path])
    result = run(BROKEN[broken], tmp_path / "store")
    assert result.status == "failed", result
