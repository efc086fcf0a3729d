"""Turns whose processes are killed or stopped for real, over the stores of one host."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stream_kit import content_of, says

from outlast import open_backend

WORKER = Path(__file__).with_name("stream_worker.py")
TEXT, CALLS = "It rains in Århus.", [("c1", "search", '{"q": "r"}')]
EVENTS = says(TEXT, *CALLS)
WHOLE = content_of(EVENTS)


@pytest.fixture(
    params=["file", pytest.param("sqlite", marks=[pytest.mark.sqlite, pytest.mark.slow])]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        pytest.importorskip("outlast_sql")
        return f"sqlite:///{tmp_path / 'agent.db'}"
    return f"file://{tmp_path / 'agent'}"


on_every_store = pytest.mark.parametrize(
    "url",
    ["file", pytest.param("sqlite", marks=[pytest.mark.sqlite, pytest.mark.long])],
    indirect=True,
)
"""In short runs on one: a process starts in half a second, and with SQLAlchemy in one."""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended with the test, whatever state they are in."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(
    url: str, *, after: int | None = None, saved: bool = True, how: str = "kill"
) -> subprocess.Popen[str]:
    order = {"text": TEXT, "calls": CALLS, "after": after, "saved": saved, "how": how}
    return subprocess.Popen(
        [sys.executable, str(WORKER), url, json.dumps(order)], stdout=subprocess.PIPE, text=True
    )


def kill_in_turn(url: str, after: int, *, saved: bool = True) -> None:
    """A process that dies after so many events, by SIGKILL."""
    process = start(url, after=after, saved=saved)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL, output


def finish(url: str) -> dict[str, Any]:
    """A process that is left alone."""
    process = start(url)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


async def check(url: str, result: dict[str, Any]) -> None:
    """One message is committed, it equals the uncut one, and nothing is left to resume."""
    assert result["content"] == result["shown"] == WHOLE
    async with open_backend(url) as backend:
        (message,) = await backend.persistence.load_api_messages("t")
        assert (message.id, message.role, message.content) == ("m1", "assistant", WHOLE)
        assert await backend.checkpoints.get("r") is None


async def resume_after(url: str, after: int, kind: str) -> None:
    assert len(EVENTS) == 10
    kill_in_turn(url, after)
    result = finish(url)
    await check(url, result)
    assert result["recoveries"] == [kind]
    assert len(result["prefixes"]) == (0 if kind == "R2" else 1)


@pytest.mark.parametrize(("after", "kind"), [(0, "R4"), (3, "R1"), (7, "R3"), (9, "R2")])
async def test_a_killed_process_is_resumed_by_a_new_one(url: str, after: int, kind: str) -> None:
    """Killed with its checkpoint up to date: the plan follows from what was saved."""
    await resume_after(url, after, kind)


@pytest.mark.slow
@on_every_store
@pytest.mark.parametrize(
    ("after", "kind"), [(1, "R1"), (2, "R1"), (4, "R1"), (5, "R1"), (6, "R3"), (8, "R3")]
)
async def test_a_process_killed_after_any_event_is_resumed(url: str, after: int, kind: str) -> None:
    """The events between those of the test above."""
    await resume_after(url, after, kind)


@pytest.mark.parametrize("after", [2, 8])
async def test_a_process_that_is_killed_before_it_saved_is_resumed(url: str, after: int) -> None:
    """What the checkpoint lacks is asked for again."""
    kill_in_turn(url, after, saved=False)
    await check(url, finish(url))


@pytest.mark.slow
@on_every_store
@pytest.mark.parametrize("deaths", [(1, 1), (2, 6), (6, 3), (1, 2, 1), (3, 1, 4)], ids=str)
async def test_a_turn_outlives_several_processes(url: str, deaths: tuple[int, ...]) -> None:
    """Prefix and continuation stay one message, however often the process dies."""
    for after in deaths:
        kill_in_turn(url, after)
    await check(url, finish(url))


async def test_a_turn_is_committed_once_by_two_processes(url: str) -> None:
    """A process that comes later finds the message, and calls no model."""
    first, second = finish(url), finish(url)
    assert len(first["prefixes"]) == 1
    assert (second["content"], second["prefixes"], second["shown"]) == (WHOLE, [], [])
    await check(url, first)


@pytest.mark.parametrize("after", [4, 9])
async def test_a_stopped_process_that_wakes_up_late_changes_nothing(
    url: str, after: int, started: list[subprocess.Popen[str]]
) -> None:
    """It was superseded while it slept: it learns that by an error, and its successor's message
    stands.
    """
    stopped = start(url, after=after, how="stop")
    started.append(stopped)
    assert stopped.stdout is not None
    assert json.loads(stopped.stdout.readline()) == {"stopping": True}
    result = finish(url)
    stopped.send_signal(signal.SIGCONT)
    output, _ = stopped.communicate(timeout=30)
    assert json.loads(output.splitlines()[-1]) == {"fenced": "superseded"}
    await check(url, result)
