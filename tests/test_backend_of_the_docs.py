"""The backend that the documentation shows, built as it says, is held to the contract."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """\
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""
LAYOUT = ("__init__.py", "driver.py", "_plugin.py")


def build_project(folder: Path) -> None:
    """Write the page's files, and what installing them adds."""
    page = (ROOT / "docs/how-to/write-a-backend.md").read_text(encoding="utf-8")
    found = re.findall(r"^```(python|toml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    project = tomllib.loads(next(text for language, text in found if language == "toml"))["project"]
    blocks = [text for language, text in found if language == "python"]

    def block(mark: str) -> str:
        (text,) = (text for text in blocks if mark in text)
        return text

    package = folder / project["name"].replace("-", "_")
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "driver.py").write_text(block("class DictDriver(Driver)") + block("def from_url("))
    (package / "_plugin.py").write_text(block("@outlast.hookimpl"))
    for name in LAYOUT:
        assert f"src/{package.name}/{name}" in page
    (folder / "test_contract.py").write_text(block("contract_suite(DictHarness)"))
    (folder / "pytest.ini").write_text(SETTINGS)

    metadata = folder / f"{package.name}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    entries = [f"{name} = {at}" for name, at in project["entry-points"]["outlast"].items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[outlast]", *entries, ""]))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    search_path = [str(folder), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search_path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_backend_of_the_how_to_passes_the_contract_suite(tmp_path: Path) -> None:
    """Found by its URL, as the page says, it verifies clauses and fails none."""
    build_project(tmp_path)
    found = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "-rf", "test_contract.py")
    assert found.returncode == 0, found.stdout[-4000:]
    passed = re.search(r"^(\d+) passed", found.stdout.splitlines()[-1])
    assert passed is not None, found.stdout[-4000:]
    assert int(passed[1]) > 100


def test_the_backend_of_the_how_to_is_found_by_the_command(tmp_path: Path) -> None:
    """The command of the suite opens it by its URL."""
    build_project(tmp_path)
    found = run(tmp_path, "outlast_contract.cli", "dict://try", "--clause", "S5")
    assert found.returncode == 0, found.stderr
    assert "Contract of outlast on dict://try" in found.stdout
