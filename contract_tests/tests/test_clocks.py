"""Clocks that are wrong: the check of them is run, and finds a store that goes by them."""

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


def run(folder: Path) -> Result:
    (check,) = [one for one in select_checks() if one.name == "clocks_decide_nothing"]
    result = run_check_sync(check, harness_for(folder.as_uri()))
    if result.status == "not run" and os.environ.get(REQUIRED) != "1":
        pytest.skip(f"NOT RUN: {result.detail}")
    return result


def test_a_store_that_does_not_look_at_clocks_passes(tmp_path: Path) -> None:
    """And the check is carried out."""
    assert run(tmp_path).status == "passed"


def test_a_store_that_refuses_what_is_older_by_the_clock_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the writer whose clock is behind for a stale one."""
    monkeypatch.setenv("OUTLAST_TEST_NEWEST", str(tmp_path / "newest"))
    monkeypatch.setattr(FileDriver, "append", FileDriver.append)
    broken = Path(__file__).parent / "clock_bound"
    runpy.run_path(str(broken / "sitecustomize.py"))
    monkeypatch.setattr("sys.path", [str(broken), *sys.path])
    result = run(tmp_path / "store")
    assert result.status == "failed", result
