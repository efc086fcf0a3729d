"""The driver that the documentation shows is held to the contract like any other."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """\
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


@pytest.mark.slow
def test_the_driver_of_the_how_to_passes_the_contract_suite(tmp_path: Path) -> None:
    """Put into a test module, as the page says, its blocks verify clauses and fail none."""
    page = (ROOT / "docs/how-to/write-a-backend.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    driver = next(block for block in blocks if "class DictDriver(Driver)" in block)
    harness = next(block for block in blocks if "class DictHarness(Harness)" in block)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "test_dict.py").write_text(driver + harness)
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rf", "test_dict.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    assert found.returncode == 0, found.stdout[-4000:]
    passed = re.search(r"^(\d+) passed", found.stdout.splitlines()[-1])
    assert passed is not None, found.stdout[-4000:]
    assert int(passed[1]) > 100
