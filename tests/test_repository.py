"""What the distributions have in common must not drift apart."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = sorted([*ROOT.glob("packages/*/pyproject.toml"), ROOT / "contract_tests/pyproject.toml"])
BY_FOLDER = pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)


def project(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return table


def requirements(path: Path) -> list[str]:
    table = project(path)
    extras = table.get("optional-dependencies", {}).values()
    return [*table.get("dependencies", []), *(entry for extra in extras for entry in extra)]


def test_all_distributions_carry_one_version() -> None:
    """Siblings are released together (decision 0006)."""
    versions = {project(path)["name"]: project(path)["version"] for path in PROJECTS}
    assert len(versions) >= 2
    assert len(set(versions.values())) == 1, versions


@BY_FOLDER
def test_siblings_are_pinned_to_the_common_version(path: Path) -> None:
    """A requirement on a sibling names exactly its version."""
    names = {project(other)["name"] for other in PROJECTS}
    for requirement in requirements(path):
        name = re.match(r"[A-Za-z0-9-]+", requirement)
        assert name is not None
        if name[0] in names:
            assert requirement.endswith(f"=={project(path)['version']}"), requirement


@BY_FOLDER
def test_metadata_is_the_same_everywhere(path: Path) -> None:
    """Licence, Python versions and authors are those of the core."""
    core = project(ROOT / "packages/outlast/pyproject.toml")
    for key in ("license", "license-files", "requires-python", "authors", "readme"):
        assert project(path)[key] == core[key], key
    pythons = {entry for entry in core["classifiers"] if "Python :: 3" in entry}
    assert pythons <= set(project(path)["classifiers"])


@BY_FOLDER
def test_every_distribution_ships_its_licence(path: Path) -> None:
    """The licence beside each pyproject.toml is the repository's."""
    licence = (path.parent / "LICENSE").read_text(encoding="utf-8")
    assert licence == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_core_needs_msgspec_and_pluggy_only() -> None:
    """Everything else is an extra."""
    core = project(ROOT / "packages/outlast/pyproject.toml")
    names = {re.split(r"[<>=~! \[]", entry)[0] for entry in core["dependencies"]}
    assert names == {"msgspec", "pluggy"}


def test_extras_of_the_core_exist_in_the_siblings() -> None:
    """An extra such as outlast-sql[sqlite] is one that outlast-sql has."""
    extras = {
        project(path)["name"]: set(project(path).get("optional-dependencies", {}))
        for path in PROJECTS
    }
    for requirement in requirements(ROOT / "packages/outlast/pyproject.toml"):
        found = re.match(r"(outlast-[a-z0-9]+)\[([a-z0-9,]+)\]", requirement)
        if found:
            assert set(found[2].split(",")) <= extras[found[1]], requirement


def test_the_extra_all_brings_what_every_other_extra_brings() -> None:
    """Nothing is left out of `all`."""
    extras = project(ROOT / "packages/outlast/pyproject.toml")["optional-dependencies"]
    others = {entry for name, entries in extras.items() if name != "all" for entry in entries}
    assert set(extras["all"]) == others


def test_ci_runs_every_python_of_the_classifiers() -> None:
    """The matrix of the workflow and the classifiers name the same versions."""
    core = project(ROOT / "packages/outlast/pyproject.toml")
    declared = re.findall(r"Python :: (3\.\d+)", " ".join(core["classifiers"]))
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    matrix = re.search(r"python: \[(.*)\]", workflow)
    assert matrix is not None
    assert re.findall(r"3\.\d+", matrix[1]) == declared


def test_every_ci_installs_the_same_servers() -> None:
    """What no wheel brings is listed once, and there before any session that needs it."""
    runner = (ROOT / ".ci/run").read_text(encoding="utf-8")
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert "apt-get" not in runner + workflow
    assert re.search(r"^\.ci/install$.*nox -s tests", runner, re.MULTILINE | re.DOTALL)
    jobs = re.split(r"^  (?=\w+:$)", workflow.partition("\njobs:\n")[2], flags=re.MULTILINE)
    required = [job for job in jobs if re.search("nox -s tests|third_party", job)]
    assert len(required) == 2
    for job in required:
        assert re.search(r"run: sudo \.ci/install\n.*run: python -m nox", job, re.DOTALL), job
