"""The checks of the tree find what they are for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ".ci/check_tree.py"


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a tree."""
    return subprocess.run(
        [sys.executable, tree / SCRIPT], capture_output=True, text=True, check=False, timeout=50
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree in which there is nothing to find."""
    for folder in (".ci", "changelog.d", "packages/x/src", "packages/x/tests", ".venv/lib"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / SCRIPT, tmp_path / SCRIPT)
    (tmp_path / "changelog.d/README.md").write_text("# Fragments\n")
    (tmp_path / "changelog.d/12.added.md").write_text("**x**: now does it.\n")
    (tmp_path / "packages/x/src/x.py").write_text('"""Nothing about pickle."""\n\nimport json\n')
    return tmp_path


def test_a_tree_without_faults_passes(tree: Path) -> None:
    """Nothing is reported that is in order; environments and tests are left alone."""
    (tree / ".venv/lib/other.py").write_text("import pickle\n" + "x = 1\n" * 700)
    (tree / "packages/x/tests/test_x.py").write_text("import pickle\n")
    found = check(tree)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "statement",
    ["import pickle", "import json, marshal as m", "from pickle import loads", "import shelve.x"],
    ids=["plain", "second name", "from", "submodule"],
)
def test_an_import_that_can_run_stored_bytes_is_reported(tree: Path, statement: str) -> None:
    """The report names the file and the line, wherever the import stands."""
    (tree / "packages/x/src/x.py").write_text(f'"""X."""\n\ndef f() -> None:\n    {statement}\n')
    found = check(tree)
    assert found.returncode == 1
    assert "packages/x/src/x.py:4: imports" in found.stdout


def test_a_file_over_the_limit_is_reported(tree: Path) -> None:
    """600 lines are fine, 601 are not."""
    path = tree / "packages/x/src/x.py"
    path.write_text("x = 1\n" * 600)
    assert check(tree).returncode == 0
    path.write_text("x = 1\n" * 601)
    found = check(tree)
    assert found.returncode == 1
    assert "packages/x/src/x.py: 601 lines" in found.stdout


@pytest.mark.parametrize(
    "name", ["12.feature.md", "note.added.md", "12.added.rst", "+Big.added.md"]
)
def test_a_misnamed_fragment_is_reported(tree: Path, name: str) -> None:
    """The report says how to name it."""
    (tree / "changelog.d" / name).write_text("**x**: now does it.\n")
    found = check(tree)
    assert found.returncode == 1
    assert f"changelog.d/{name}: name it" in found.stdout


def test_a_fragment_without_its_package_is_reported(tree: Path) -> None:
    """The first word of a fragment says which distribution changed."""
    (tree / "changelog.d/13.fixed.md").write_text("Now does it.\n")
    found = check(tree)
    assert found.returncode == 1
    assert "changelog.d/13.fixed.md: begin with the package in bold" in found.stdout
