"""Faults of client libraries that are known are found; the versions without them pass."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast_contract.servers import ServerUnavailable, shared_server

pytest.importorskip("redis")
pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parent / "known_faults" / "redis_py.py"


def result_of(*first: Path) -> list[str]:
    """What the program prints, with folders before all others on the path."""
    try:
        url = shared_server("redis").url
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")
    path = os.pathsep.join([*map(str, first), *sys.path])
    done = subprocess.run(
        [sys.executable, PROGRAM, url],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_installed_redis_py_mixes_no_answers_up() -> None:
    """H-R2: a cancelled read takes its connection with it."""
    _, status, _, detail = result_of()
    assert status == "passed", detail


def test_redis_py_4_5_1_mixes_answers_up(tmp_path: Path) -> None:
    """H-R2: after a cancelled read its connection gives the next caller the answer to it."""
    wanted = ("redis==4.5.1", "async-timeout")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    installed = subprocess.run(
        [*command, tmp_path, *wanted], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        reason = f"redis-py 4.5.1 cannot be installed: {installed.stderr.strip()[-300:]}"
        if os.environ.get("OUTLAST_REQUIRE_SERVERS") == "1":
            pytest.fail(reason)
        pytest.skip(f"NOT RUN: {reason}")
    version, status, clause, detail = result_of(tmp_path)
    assert version == "4.5.1"
    assert (status, clause) == ("failed", "X2"), detail
