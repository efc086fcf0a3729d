"""The loss bound of the managers, held to by processes that are really killed."""

import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from manager_worker import MAX_WAIT, STEP

from outlast import open_backend

WORKER = Path(__file__).with_name("manager_worker.py")
SLACK = 0.1
"""Seconds that a change may be older than the bound; pauses and writes are measured."""


def run_and_kill(url: str, seconds: float) -> tuple[list[str], float]:
    """What the process printed in its life, and when it was killed."""
    with subprocess.Popen(
        [sys.executable, str(WORKER), url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            lines.append(process.stdout.readline())
        killed_at = time.monotonic()
        process.kill()
        lines += process.stdout.readlines()
    return lines, killed_at


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_a_killed_process_loses_no_more_than_the_maximum_wait(
    kind: str, seed: int, tmp_path: Path
) -> None:
    """At a random moment: what is missing is younger than the bound; a saved status is there."""
    if kind == "sqlite":
        pytest.importorskip("outlast_sql")
    url = f"sqlite:///{tmp_path / 'x.db'}" if kind == "sqlite" else f"file://{tmp_path / 'x'}"
    rng = random.Random(f"{kind} {seed}")
    lines, killed_at = run_and_kill(url, rng.uniform(0.3, 2.0))
    changed: dict[int, float] = {}
    writes: dict[int, list[float]] = {}
    saved = 0
    for line in lines:
        if line.endswith("\n") and len(line.split()) == 3:
            what, number, when = line.split()
            if what == "changed":
                changed[int(number)] = float(when)
            elif what in ("writing", "written"):
                writes.setdefault(int(number), []).append(float(when))
            else:
                saved = int(number)
    async with open_backend(url) as backend:
        state = await backend.persistence.load_task_state("t")
        messages = await backend.persistence.load_api_messages("t")
    assert [message.id for message in messages] == [f"a{n + 1}" for n in range(len(messages))]
    stored = state.retry_count if state else 0
    assert stored >= saved
    if saved and stored < saved + 40:
        assert state is not None
        assert state.status == ("paused" if saved % 80 else "running")
    for last in (stored, len(messages)):
        lost = [when for number, when in changed.items() if number > last]
        waited = [killed_at - when - busy(when, killed_at, changed, writes) for when in lost]
        assert all(seconds <= MAX_WAIT + SLACK for seconds in waited), (last, len(changed))


def busy(
    since: float, until: float, changed: dict[int, float], writes: dict[int, list[float]]
) -> float:
    """For how many seconds the process could not do what it was to do: it did not run, or a write
    was under way, behind which the next one has to wait.
    """
    moments = sorted([since, *(when for when in changed.values() if since < when < until), until])
    pauses = sum(max(0.0, later - earlier - 2 * STEP) for earlier, later in pairwise(moments))
    spans = [(begun, ended[0] if ended else until) for begun, *ended in writes.values()]
    written = sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in spans)
    return pauses + written
