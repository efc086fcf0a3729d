"""File stores shared by processes that are killed, stopped and raced."""

import asyncio
import itertools
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_kit import (
    SCOPES,
    TASK,
    InlineFileDriver,
    claim,
    drive,
    failing_within,
    ids_of,
    look,
    run_worker,
    sweep_all,
    wait_until,
    worker,
)
from file_worker import SHORT, TinyFileDriver
from file_workload import workload, worlds_of

from outlast.backends import _directory, _objects
from outlast.backends.file import FileDriver
from outlast.driver import Entry, Scope, StoredFence
from outlast.errors import UnavailableError
from outlast.heads import key_of

pytestmark = pytest.mark.file


@pytest.fixture
def fast() -> Iterator[Path]:
    """A folder in memory, if there is one: killing a process loses nothing that the system has."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@pytest.mark.slow
def test_a_process_killed_at_any_call_leaves_the_old_or_the_new_value(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_objects, "BUCKETS", ("00",))
    monkeypatch.setattr(_directory, "BUCKETS", ("00",))
    reference = InlineFileDriver(fast / "reference")
    drive(reference.setup(create=True))
    steps = workload(SHORT)
    worlds, epochs = drive(worlds_of(reference, reference, steps, lambda: None))
    kills = 0
    for k, done, died in run_worker("kill_each", fast):
        kills += died == "1"
        steps_done = int(done) - 1
        driver = InlineFileDriver(fast / k)
        drive(driver.setup(create=steps_done < 0))
        allowed = worlds[max(0, steps_done) : steps_done + 2]
        for scope in SCOPES:
            seen = drive(look(driver, scope))
            begun = seen.is_empty and seen.fence == StoredFence()
            assert begun or seen in [world[scope] for world in allowed], (k, scope)
        before = [drive(look(driver, scope)) for scope in SCOPES]
        drive(sweep_all(driver, older_than=3600.0))
        drive(sweep_all(driver))
        for scope, seen in zip(SCOPES, before, strict=True):
            assert seen.is_empty or drive(look(driver, scope)) == seen, (k, scope)
            known = epochs[max(0, steps_done)].get(scope, 0)
            assert drive(claim(driver, scope)).epoch > known, (k, scope)
        left = [path for path in (fast / k).rglob("*") if path.suffix == ".tmp"]
        assert not left, (k, left)
    assert kills > 250


@pytest.mark.slow
async def test_writers_killed_at_random_moments_lose_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    reader = TinyFileDriver(tmp_path, namespace="n")
    await reader.setup(create=True)
    appended = counted = -1
    reads = kills = 0
    is_over = False

    async def listen(process: asyncio.subprocess.Process) -> None:
        nonlocal appended, counted, kills, is_over
        assert process.stdout is not None
        async for line in process.stdout:
            word, *rest = line.split()
            if word == b"appended":
                appended = max(appended, int(rest[0]))
            elif word == b"counted":
                counted = max(counted, int(rest[0]))
            else:
                assert word in (b"killed", b"end"), line
                kills += word == b"killed"
        is_over = True

    async def check() -> None:
        nonlocal reads
        least = appended, counted
        value = await reader.read(TASK, "state")
        log = await reader.load(TASK, "api")
        assert ids_of(log) == [str(number) for number in range(len(log))]
        assert all(entry.data == entry.id.encode() * 3 for entry in log)
        assert len(log) > least[0]
        number = -1 if value.data is None else int(value.data[: len(value.data) // 12])
        assert value.data in (None, str(number).encode() * 12)
        assert least[1] <= number < len(log)
        reads += 1

    async with worker("kill_writers", tmp_path, 50, 11) as process:
        listener = asyncio.create_task(listen(process))
        assert process.stdin is not None
        while not is_over:
            await check()
            if reads <= 50:  # There is one for each kill, however fast these come.
                process.stdin.write(b"\n")
        await listener
    await check()
    assert kills == 50
    assert appended > 50
    assert reads > 50
    await sweep_all(reader)
    await check()
    await reader.aclose()


async def test_appends_of_eight_processes_are_all_there_in_each_ones_order(tmp_path: Path) -> None:
    assert Counter(map(tuple, run_worker("race", tmp_path, "append", 8))) == {("exit", "0"): 8}
    driver = TinyFileDriver(tmp_path, namespace="n")
    log = ids_of(await driver.load(TASK, "api"))
    await driver.aclose()
    assert len(log) == 8 * 25
    for number in range(8):
        mine = [entry_id for entry_id in log if entry_id.startswith(f"{number}-")]
        assert mine == [f"{number}-{place}" for place in range(25)]


async def test_no_update_of_eight_processes_is_lost(tmp_path: Path) -> None:
    assert Counter(map(tuple, run_worker("race", tmp_path, "count", 8))) == {("exit", "0"): 8}
    driver = TinyFileDriver(tmp_path, namespace="n")
    assert (await driver.read(TASK, "state")).data == str(8 * 20).encode()
    await driver.aclose()


async def test_of_eight_claims_each_has_an_epoch_of_its_own_and_the_newest_owns(
    tmp_path: Path,
) -> None:
    lines = run_worker("race", tmp_path, "claim", 8)
    driver = TinyFileDriver(tmp_path, namespace="n")
    for place in range(10):
        mine = [line for line in lines if line[1] == str(place)]
        epochs = sorted(int(line[2]) for line in mine if line[0] == "claimed")
        accepted = sorted(int(line[2]) for line in mine if line[0] == "accepted")
        assert epochs == list(range(1, 9))
        assert accepted[-1] == 8
        value = await driver.claim(Scope("task", f"claimed {place}"), "f" * 32)
        assert value.fence is not None
        assert value.fence.epoch == 9
        log = ids_of(await driver.load(Scope("task", f"claimed {place}"), "api"))
        assert sorted(map(int, log)) == accepted
        assert log == sorted(log, key=int)
    await driver.aclose()


async def test_sixteen_processes_may_set_up_one_directory_at_once(tmp_path: Path) -> None:
    lines = run_worker("race", tmp_path, "setup", 16)
    assert Counter(map(tuple, lines)) == {("exit", "0"): 16}
    driver = FileDriver(tmp_path / "a" / "b", namespace="n")
    assert sorted(map(int, ids_of(await driver.load(TASK, "api")))) == list(range(16))
    await driver.aclose()


async def test_a_process_stopped_inside_the_lock_holds_up_writers_within_their_timeout(
    tmp_path: Path,
) -> None:
    driver = FileDriver(tmp_path, namespace="n", timeout=1.5)
    await driver.setup(create=True)
    await driver.append(TASK, "api", [Entry("early", b"")], fence=None)
    async with worker("stop_inside", tmp_path) as process:
        await _until_stopped(process.pid)
        error = await failing_within(
            1.5,
            UnavailableError,
            lambda: driver.append(TASK, "api", [Entry("held up", b"")], fence=None),
        )
        assert error.applied is False
        assert "locked" in str(error)
        assert ids_of(await driver.load(TASK, "api")) == ["early"]
        assert (await driver.claim(_in_another_bucket(TASK), "c" * 32)).fence is not None
        os.kill(process.pid, signal.SIGCONT)
        assert await process.wait() == 0
    assert ids_of(await driver.load(TASK, "api")) == ["early", "late"]
    await driver.append(TASK, "api", [Entry("free", b"")], fence=None)
    await driver.aclose()


async def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    driver = FileDriver(tmp_path, namespace="n")
    await driver.setup(create=True)
    async with worker("stop_inside", tmp_path) as process:
        await _until_stopped(process.pid)
        waiting = asyncio.create_task(
            driver.append(TASK, "api", [Entry("waiting", b"")], fence=None)
        )
        process.kill()
        await process.wait()
        assert await waiting == []
    assert ids_of(await driver.load(TASK, "api")) == ["waiting"]
    assert await sweep_all(driver) == (0, 1)
    await driver.aclose()


async def _until_stopped(pid: int) -> None:
    """Wait until a process has stopped itself."""
    status = Path(f"/proc/{pid}/stat")
    await wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", 20)


def _in_another_bucket(scope: Scope) -> Scope:
    for number in itertools.count():
        other = Scope("task", f"{scope.id}{number}")
        if _objects.bucket_of(key_of(other)) != _objects.bucket_of(key_of(scope)):
            return other
    raise AssertionError
