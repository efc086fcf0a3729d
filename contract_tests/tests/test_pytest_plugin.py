"""The suite in other people's pytest: silent where it is not used, complete where it is."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from outlast_contract.engine import TIERS, all_checks, select_checks

pytestmark = pytest.mark.slow

STRANGER = """
import sys

def test_nothing_of_the_suite_is_loaded():
    loaded = sorted(name for name in sys.modules if name.partition(".")[0].startswith("outlast"))
    assert loaded in (["outlast_contract", "outlast_contract._pytest_plugin"], [])
"""

USER = """
import outlast
from outlast_contract import Harness, contract_suite


class ThirdParty(Harness):
    async def open(self, namespace):
        return outlast.open_backend("memory://third-party", namespace=namespace)


TestContract = contract_suite(ThirdParty, tiers=["race"])
"""

BROKEN = """
from broken_backends import MUTANTS
from outlast_contract import contract_suite

TestContract = contract_suite(MUTANTS["LastZeroIsAll"].harness, tiers=["contract"])
"""

TELLING = """
from broken_backends import MUTANTS
from outlast_contract import contract_suite
from outlast_contract.engine import Settings
from outlast_contract.recording import injected

class Telling(MUTANTS["LastZeroIsAll"].harness):
    def secrets(self):
        return ["last=0"]

    async def versions(self):
        return {"own": "7"}

TestContract = contract_suite(Telling, settings=Settings(seed=5))
"""

CHANGED = """
import pytest
from broken_backends import MUTANTS
from outlast_contract import contract_suite

NAME = "test_a10_the_newest_n_are_loaded_api"
TestExpected = contract_suite(MUTANTS["LastZeroIsAll"].harness, xfail={NAME: "not done yet"})


class TestChanged(contract_suite(MUTANTS["LastZeroIsAll"].harness)):
    def test_a10_the_newest_n_are_loaded_api(self):
        pass
"""


@pytest.fixture(autouse=True)
def all_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this run itself takes of each check."""
    monkeypatch.delenv("OUTLAST_CONTRACT_CASES", raising=False)


def project(folder: Path, text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest in a folder of its own, without this project's settings."""
    (folder / "test_project.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers --strict-config\n")
    (folder / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_project_that_does_not_use_it_sees_nothing(tmp_path: Path) -> None:
    """No output, no option, no mark, nothing imported but an empty package and a tiny module."""
    done = project(tmp_path, STRANGER, "-v")
    assert done.returncode == 0, done.stdout
    outputs = [done.stdout]
    outputs += [
        project(tmp_path, STRANGER, option).stdout
        for option in ("--help", "--markers", "--fixtures")
    ]
    for output in outputs:
        # pytest itself lists all plugins that are installed.
        lines = [line for line in output.splitlines() if not line.startswith("plugins:")]
        assert not [line for line in lines if "outlast" in line or "contract" in line]


@pytest.mark.parametrize("processes", ["0", "2"], ids=["alone", "with xdist"])
def test_a_third_party_needs_no_settings(tmp_path: Path, processes: str) -> None:
    """A harness of one method is enough, without any plugin for asyncio, under pytest-xdist, too,
    and with a JUnit file, whose warnings would be errors here.
    """
    done = project(tmp_path, USER, "-rs", "-n", processes, "-W", "error", "--junitxml=report.xml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'name="outlast_status" value="passed"' in (tmp_path / "report.xml").read_text()
    assert "contract: test_project.py::TestContract" in done.stdout
    assert "Fencing (F)        passed" in done.stdout
    assert "NOT RUN: needs Harness.url" in done.stdout


def test_a_run_of_some_checks_says_how_many_were_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tiers and by cases; a reader of its summary must not take it for the whole."""
    monkeypatch.setenv("OUTLAST_CONTRACT_CASES", "1")
    done = project(tmp_path, USER, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    rest = Counter(check.tier for check in all_checks())
    rest.subtract(check.tier for check in select_checks(tiers=["race"], cases=1))
    assert rest["race"] > 0
    told = ", ".join(f"{rest[tier]} of tier {tier}" for tier in TIERS)
    assert f" of {len(all_checks())} checks were run; " in done.stdout
    assert f"; left out: {told}\n" in done.stdout


def test_a_broken_backend_fails_with_its_clause(tmp_path: Path) -> None:
    """The failing test names the clause; so does the summary."""
    done = project(tmp_path, BROKEN, "-q", "-k", "newest_n or no_test_of")
    assert done.returncode == 1
    assert "[A10] last=0" in done.stdout
    assert "Atomicity (A, S)   failed" in done.stdout


def test_changed_and_expected_tests_are_shown(tmp_path: Path) -> None:
    """An override fails; an expected failure does not, and counts as failed in the summary."""
    done = project(tmp_path, CHANGED, "-v", "-k", "newest_n or no_test_of")
    assert done.returncode == 1
    assert "test_a10_the_newest_n_are_loaded_api was overridden" in done.stdout
    assert "1 xfailed" in done.stdout
    assert "(expected: not done yet)" in done.stdout


@pytest.mark.parametrize("processes", ["0", "2"], ids=["alone", "with xdist"])
def test_reports_are_written_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    """A page, JSON and a badge for each class, with the calls before the failure, and no secret."""
    monkeypatch.setenv("OUTLAST_CONTRACT_REPORTS", "reports/here")
    done = project(tmp_path, TELLING, "-q", "-n", processes, "-k", "newest_n or no_test_of")
    assert done.returncode == 1
    assert "contract report of test_project.py::TestContract: " in done.stdout
    folder = tmp_path / "reports/here"
    assert sorted(path.name for path in folder.iterdir()) == [
        f"test_project.TestContract.{ending}" for ending in ("html", "json", "svg")
    ]
    found = json.loads((folder / "test_project.TestContract.json").read_text())
    (broken,) = [check for check in found["checks"] if check["broken"]]
    assert (broken["broken"], found["seed"], found["versions"]["own"]) == ("A10", 5, "7")
    assert broken["calls"]["last"][-1]["what"].startswith("load_api_messages")
    assert found["coverage"]["run"] == len(found["checks"])
    assert found["coverage"]["text"] in done.stdout
    assert "A10" in (folder / "test_project.TestContract.html").read_text()
    assert "failed" in (folder / "test_project.TestContract.svg").read_text()
    shown = done.stdout + "".join(path.read_text() for path in folder.iterdir())
    assert "***" in shown
    assert "last=0" not in shown
