"""The programs in examples/ run offline, and do what their page says."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
ANSWER = "Answer: Read A Short Bright Flash: it is ordered, and tells how the lens came to be."


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended with the test, whatever state they are in."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], text: str, seconds: float = 30) -> str:
    """What the process prints, up to ``text``."""
    assert process.stdout is not None
    seen = ""
    deadline = time.monotonic() + seconds
    while text not in seen:
        left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([process.stdout], [], [], left)
        assert ready, seen
        piece = os.read(process.stdout.fileno(), 1)
        assert piece, seen
        seen += piece.decode(errors="replace")
    return seen


@pytest.mark.slow
def test_the_research_agent_is_killed_and_goes_on(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    """In a sentence, in a sub-task, before an order: the book is ordered once."""
    program = str(EXAMPLES / "research_agent.py")
    for moment in ("library", "waiting_for_subtask", "Fresnel", "best one", "Then I or"):
        process = start(tmp_path, program)
        started.append(process)
        read_until(process, moment)
        time.sleep(random.Random(moment).uniform(0, 0.3))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    process = start(tmp_path, program)
    output, errors = process.communicate(timeout=50)
    assert process.returncode == 0, errors
    assert "[found: " in output
    assert output.endswith(f"\n{ANSWER}\n")
    (line,) = (tmp_path / "orders.txt").read_text().splitlines()
    assert line.endswith(" A Short Bright Flash")

    again = start(tmp_path, program)
    output, errors = again.communicate(timeout=50)
    assert output == f"[found: completed, 8 messages]\n\n{ANSWER}\n", errors


@pytest.mark.slow
def test_two_workers_compete_and_each_step_is_made_once(tmp_path: Path) -> None:
    """One is fenced by the other, and is told."""
    process = start(tmp_path, str(EXAMPLES / "two_workers.py"))
    output, errors = process.communicate(timeout=55)
    assert process.returncode == 0, output + errors
    assert output.endswith("Each step was made once, in order.\n")
    assert output.count("finishes it") == 1
    assert "stops, superseded" in output
