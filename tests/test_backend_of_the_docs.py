"""The backend that "Start a backend" makes, step by step, is held to the contract at each step."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import outlast
from outlast.contracts import DriverBackend
from outlast_contract import Harness, Report, Settings, run_suite
from outlast_contract.engine import Check, select_checks
from outlast_contract.unwritten import missing_methods

ROOT = Path(__file__).resolve().parent.parent


def load(name: str, path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses look there
    specification.loader.exec_module(module)
    return module


skeleton: Any = load("skeleton", Path(__file__).with_name("skeleton.py"))
METHODS = [skeleton.methods_of(step) for step in skeleton.steps()]
ABSTRACT = outlast.driver.Driver.__abstractmethods__
UNWRITTEN = [
    "setup",
    "ping",
    "aclose",
    "claim",
    "read",
    "write",
    "load",
    "append",
    "replace",
    "remove",
    "scan",
    "sweep",
]
STEPS = [number for number, methods in enumerate(METHODS) if methods]


@pytest.fixture
def module_name() -> Iterator[str]:
    """A name for the driver's module, taken back afterwards."""
    name = "outlast_dict_of_the_docs"
    yield name
    sys.modules.pop(name, None)


def some_checks() -> list[Check]:
    """One for each clause of what is done one thing at a time, and one more."""
    chosen: dict[str, Check] = {}
    for check in select_checks(tiers=["contract"]):
        if not check.heavy and "processes" not in check.needs:
            chosen.setdefault(check.clauses[0], check)
    return list(chosen.values())


def held_to_the_contract(driver: ModuleType) -> Report:
    class DictHarness(Harness):
        async def open_with(self, namespace: str, **options: Any) -> outlast.Backend:
            made = driver.DictDriver.from_url("dict://docs", namespace=namespace)
            return DriverBackend(made, namespace=namespace, **options)

    settings = Settings(rounds=1, kills=1, listed=100, heavy=False)
    return run_suite(DictHarness, checks=some_checks(), settings=settings)


def tasks_of(project: Path) -> dict[str, str]:
    """What the methods that are not written are to do, by the driver's source."""
    driver = (project / "src/outlast_dict/driver.py").read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(driver)) if isinstance(node, ast.Call)]
    return {
        ast.literal_eval(call.args[0]): ast.literal_eval(call.args[1])
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "NotWrittenError"
    }


@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [*STEPS, len(METHODS)])
def test_each_failure_names_what_the_next_steps_write(
    count: int, tmp_path: Path, module_name: str
) -> None:
    """Before each step of the page, whatever fails names a method of the steps to come, the first
    in line is one of the next step, and what was written before is not named any more.
    """
    project = skeleton.write(tmp_path, count)
    driver = load(module_name, project / "src/outlast_dict/driver.py")
    report = held_to_the_contract(driver)
    found = missing_methods(report.results)
    assert {one.method: one.task for one in found}.items() <= tasks_of(project).items()
    missing = [one.method for one in found]
    written = {method for methods in METHODS[:count] for method in methods}
    assert missing == [name for name in UNWRITTEN if name in missing]
    assert not written.intersection(missing)
    failures = [one for one in report.results if one.status == "failed"]
    assert all("is not written yet: " in one.detail for one in failures), failures
    assert not any(one.trace for one in failures)
    if count == len(METHODS):
        assert not failures
        assert report.executed > 30
    else:
        assert missing[0] in METHODS[count]


def test_the_methods_of_the_skeleton_are_those_of_a_driver() -> None:
    """The page writes all that a driver must have, in the order of the interface."""
    written = [method for methods in METHODS for method in methods]
    assert [name for name in written if name in ABSTRACT] == UNWRITTEN


def install(project: Path, folder: Path) -> None:
    """What pip adds beside the package: its metadata."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = folder / f"outlast_dict-{about['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    entries = [f"{name} = {at}" for name, at in about["entry-points"]["outlast"].items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[outlast]", *entries, ""]))


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    search_path = [str(project / "src"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search_path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_backend_of_the_how_to_passes_the_contract_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its URL, as the page says, it verifies clauses and fails none."""
    project = skeleton.write(tmp_path)
    install(project, project / "src")
    # pytest-asyncio, which the project does not need, warns of a setting that it does not have.
    monkeypatch.setenv("OUTLAST_CONTRACT_HEAVY", "0")
    found = run(project, "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio")
    assert found.returncode == 0, found.stdout[-4000:]
    passed = re.search(r"^(\d+) passed", found.stdout.splitlines()[-1])
    assert passed is not None, found.stdout[-4000:]
    assert int(passed[1]) > 100


def test_the_skeleton_says_to_both_doors_what_to_write(tmp_path: Path) -> None:
    """The command and pytest end with the method to write next, and show no traceback."""
    project = skeleton.write(tmp_path, 0)
    install(project, project / "src")
    found = run(project, "outlast_contract.cli", "dict://try", "--clause", "F2")
    assert found.returncode == 1, found.stderr
    last = "\n".join(found.stdout.splitlines()[-8:])
    assert "-> setup" in last
    assert "connect to the store" in last
    assert "Traceback" not in found.stdout + found.stderr
    found = run(project, "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio")
    assert found.returncode == 1, found.stderr
    assert "-> setup    1 check waits for it" in found.stdout
    assert "Traceback" not in found.stdout + found.stderr
    assert len(found.stdout.splitlines()) < 40


def test_the_other_commands_say_what_is_missing_in_a_line(tmp_path: Path) -> None:
    """What opens the store says why it cannot; random work without checks ends at once."""
    project = skeleton.write(tmp_path, 0)
    install(project, project / "src")
    code = "from outlast.cli import main; main()"
    found = run(project, "outlast_contract.cli", "dict://try", "--minutes", "0")
    asked = subprocess.run(
        [sys.executable, "-c", code, "setup", "dict://try"],
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    for done in (found, asked):
        assert done.returncode != 0
        assert "setup() is not written yet: connect" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_last_lines_of_the_report_are_the_page_s(tmp_path: Path) -> None:
    """What the page shows of the skeleton's report is what is printed."""
    page = skeleton.PAGE.read_text(encoding="utf-8")
    shown = re.search(r"-> setup .*\n +(?P<task>.+?) \.\.\.\n", page)
    assert shown is not None
    assert tasks_of(skeleton.write(tmp_path, 0))["setup"].startswith(shown["task"])
