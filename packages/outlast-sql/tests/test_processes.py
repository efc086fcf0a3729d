"""Several processes on one file: setup, races, kills and stops, all of them real."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sql_support import Open, Raw, in_a_hurry, wait_until

from outlast.driver import Entry, Scope
from outlast.errors import UnavailableError
from outlast_contract.stopwatch import Stopwatch

pytestmark = [pytest.mark.sql, pytest.mark.sqlite]

WORKER = Path(__file__).with_name("sql_worker.py")
TASK = Scope("task", "t")


class Process:
    """A process that was forked by a nursery, and is spoken to by lines."""

    def __init__(self, pid: int, heard: Path, said: Path) -> None:
        self.pid = pid
        self.said = said
        self._input = heard.open("w") if heard.is_fifo() else None
        self._output = said.open() if said.is_fifo() else None

    def hear(self) -> str:
        assert self._output is not None
        return self._output.readline().strip()

    def wait_for_lines(self, count: int) -> None:
        """Of one that talks into a file."""
        wait_until(lambda: self.said.read_bytes().count(b"\n") >= count)

    def say(self) -> None:
        assert self._input is not None
        self._input.write("\n")
        self._input.flush()

    @property
    def is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """End it by SIGKILL, wherever it is."""
        if self.is_alive:
            os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not self.is_alive)
        for pipe in (self._input, self._output):
            if pipe is not None:
                pipe.close()


class Nursery:
    """Starts processes, and ends them with the test."""

    def __init__(self, database: Path, folder: Path) -> None:
        self._folder = folder
        self._popen = subprocess.Popen(
            [sys.executable, str(WORKER), f"sqlite:///{database}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started: list[Process] = []

    def start(self, job: str, *arguments: object, into_file: bool = False) -> Process:
        """Fork a process; with ``into_file`` it is heard only after its death."""
        name = f"{len(self._started)}"
        heard, said = self._folder / f"{name}.in", self._folder / f"{name}.out"
        if into_file:
            heard.touch()
            said.touch()
        else:
            os.mkfifo(heard)
            os.mkfifo(said)
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        print(heard, said, job, *arguments, file=self._popen.stdin, flush=True)
        process = Process(int(self._popen.stdout.readline()), heard, said)
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
        self._popen.communicate()


@pytest.fixture
def nursery(path: Path, tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(path, tmp_path)
    yield made
    made.close()


async def test_sixteen_processes_set_up_at_once(nursery: Nursery, path: Path) -> None:
    """X4: all succeed, and find one set of tables."""
    workers = [nursery.start("setup") for _ in range(16)]
    assert [worker.hear() for worker in workers] == ["ready"] * 16
    for worker in workers:
        worker.say()
    assert [worker.hear() for worker in workers] == ["done"] * 16
    with Raw(path) as raw:
        assert raw.db.execute("SELECT version FROM outlast_schema").fetchall() == [(1,)]
        assert raw.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_two_processes_append_200_times_each(nursery: Nursery, open_driver: Open) -> None:
    """A1, A3, A5: no error, no loss, no doubling, and loads meanwhile are prefixes."""
    driver = await open_driver()
    workers = [nursery.start("append", name, 20) for name in "ab"]
    assert [worker.hear() for worker in workers] == ["ready"] * 2
    loads: list[list[str]] = [[]]
    for _ in range(20):
        for worker in workers:
            worker.say()
        for _ in range(5):
            loads.append([entry.id for entry in await driver.load(TASK, "api")])
            assert loads[-1][: len(loads[-2])] == loads[-2]
        assert [worker.hear() for worker in workers] == ["done"] * 2
    found = [entry.id for entry in await driver.load(TASK, "api")]
    for name in "ab":
        expected = [f"{name}.{number}" for number in range(200)]
        assert [entry for entry in found if entry.startswith(name)] == expected
    assert len(found) == 400
    assert len({tuple(load) for load in loads}) >= 10


@pytest.mark.slow
async def test_a_writer_killed_at_50_moments_loses_nothing_acknowledged(
    nursery: Nursery, open_driver: Open
) -> None:
    """A1, A4, A7, D1, S3: what it had said is there, and nothing is a mixture of two steps."""
    rng = random.Random(50)
    driver = await open_driver()
    cut_after: Counter[str] = Counter()
    for number in range(50):
        worker = nursery.start("churn", into_file=True)
        if number % 5:  # The others do not get far.
            worker.wait_for_lines(rng.randrange(1, 25))
        await asyncio.sleep(rng.uniform(0, 0.03))
        worker.kill()
        said = [line.split() for line in worker.said.read_text().splitlines()]
        done = {kind: int(word) for kind, word in said}
        cut_after[said[-1][0] if said else "nothing"] += 1

        api = await driver.load(TASK, "api")
        steps = [int(entry.id.split(".")[0]) for entry in api]
        newest = max(steps, default=0)
        assert steps == [step for step in range(1, newest + 1) for _ in range(3)]
        assert all(entry.data == entry.id.split(".")[0].encode() * 500 for entry in api)
        assert newest >= done.get("api", 0)
        value = await driver.read(TASK, "state")
        assert value.epoch >= done.get("ready", 0)
        state = int(value.data or b"0")
        assert state in (newest, newest - 1)
        assert state >= done.get("state", 0)
        user = await driver.load(TASK, "user")
        assert len(user) in (0, 50)
        assert len({entry.data for entry in user}) <= 1
        whole = int(user[0].data) if user else 0
        # A life that was cut before this step left it to none: the next one goes on from the state.
        assert done.get("user", 0) <= whole <= state
    assert {"api", "state", "user"} <= set(cut_after), cut_after


async def test_a_process_stopped_inside_its_transaction_holds_others_for_their_time(
    nursery: Nursery, open_driver: Open
) -> None:
    """E6: declared as stopped_writer_blocks; reads go on, and writes do when it is gone."""
    driver = await open_driver()
    assert driver.capabilities.stopped_writer_blocks
    worker = nursery.start("hold")
    assert worker.hear() == "inside"
    os.kill(worker.pid, signal.SIGSTOP)
    with in_a_hurry(driver, 1.0), Stopwatch() as watch:
        with pytest.raises(UnavailableError):
            await driver.append(TASK, "api", [Entry("1", b"")], fence=None)
        assert watch.seconds < 1.0
    assert await driver.load(TASK, "api") == []
    worker.kill()
    assert await driver.append(TASK, "api", [Entry("1", b"")], fence=None) == []


async def test_of_eight_contenders_one_wins(nursery: Nursery) -> None:
    """F2, F9, S1, A8 (H-Q1): ten rounds of every kind, in processes that start them together."""
    workers = [nursery.start("contend", f"w{number}", 10) for number in range(8)]
    assert [worker.hear() for worker in workers] == ["ready"] * 8
    for _ in range(10):
        for worker in workers:
            worker.say()
        for kind in ("claim", "owner", "compare and set", "append", "replace"):
            answers = [worker.hear() for worker in workers]
            assert sorted(answers) == [f"{kind} 0"] * 7 + [f"{kind} 1"], answers


async def test_a_child_after_a_fork_leaves_the_connections_alone(open_driver: Open) -> None:
    """X3, C7: closing in the child ends, and the parent goes on."""
    driver = await open_driver()
    await driver.append(TASK, "api", [Entry("1", b"")], fence=None)
    child = os.fork()
    if not child:
        status = 1
        try:
            # The loop of the parent is of no use here: run the coroutine by hand.
            coroutine = driver.aclose()
            try:
                coroutine.send(None)
            except StopIteration:
                status = 0
        finally:
            os._exit(status)
    answers = [(0, 0)]

    def ended() -> bool:
        answers.append(os.waitpid(child, os.WNOHANG))
        return answers[-1][0] == child

    wait_until(ended)
    assert answers[-1] == (child, 0)
    assert await driver.append(TASK, "api", [Entry("2", b"")], fence=None) == []
    assert [entry.id for entry in await driver.load(TASK, "api")] == ["1", "2"]
