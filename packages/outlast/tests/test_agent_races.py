"""Two real processes that take the same task over at the same moment, again and again."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_kit import shape
from race_worker import make_agent

from outlast import open_backend

WORKER = Path(__file__).with_name("race_worker.py")
CONVERSATION = ["user Go.", "assistant act(c1)", "tool =acted", "assistant Done."]


class Worker:
    """One of the two processes."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(
    params=[
        pytest.param(("file", 200), id="file"),
        pytest.param(("sqlite", 200), id="sqlite", marks=pytest.mark.long),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int]:
    """A URL, and how many rounds."""
    kind, rounds = request.param
    if kind == "sqlite":
        pytest.importorskip("outlast_sql")
        return f"sqlite:///{tmp_path / 'x.db'}", rounds
    return f"file://{tmp_path / 'x'}", rounds


@pytest.fixture
def workers(store: tuple[str, int]) -> Iterator[list[Worker]]:
    started = [Worker(store[0]) for _ in range(2)]
    yield started
    for worker in started:
        worker.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_of_two_processes_that_load_a_task_exactly_one_goes_on(
    store: tuple[str, int], workers: list[Worker]
) -> None:
    """The other one is fenced, or comes when all is done; the conversation is whole."""
    url, rounds = store
    assert [worker.hear() for worker in workers] == ["ready", "ready"]
    outcomes: Counter[str] = Counter()
    async with open_backend(url) as backend:
        agent = make_agent(backend)
        for number in range(rounds):
            task_id = f"t{number}"
            task = await agent.create_task("Go.", task_id=task_id)
            await task.aclose()
            for worker in workers:
                worker.say(task_id)
            became = sorted(worker.hear() for worker in workers)
            assert became in (["completed", "fenced"], ["completed", "late"]), (number, became)
            outcomes.update(became)
            messages = await backend.persistence.load_api_messages(task_id)
            assert shape(messages) == CONVERSATION
            assert await backend.checkpoints.get(task_id) is None
    print(dict(outcomes))
    assert outcomes["fenced"] > rounds / 10
