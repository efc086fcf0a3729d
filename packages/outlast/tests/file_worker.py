"""Processes that use a file store, for the tests that kill, stop, starve and race them.

Run as ``python file_worker.py ROLE FOLDER ...``; it reports line by line on standard output. A
process that needs many others forks them before it has threads.
"""

import asyncio
import itertools
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from file_kit import TASK, TINY, Claimed, InlineFileDriver, claim, drive
from file_workload import workload

from outlast.backends import _directory, _objects
from outlast.backends._fs import FileSystem
from outlast.backends.file import FileDriver
from outlast.driver import Entry, PreconditionFailedError, Scope
from outlast.errors import OutlastError

SHORT = 8
"""Appends in the workload that is killed at every call."""


class TinyFileDriver(FileDriver):
    layout = TINY


def say(*words: object) -> None:
    """Write one line at once; whole even if several processes write."""
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a child process; its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:  # noqa: BLE001 - reported
        say("error", type(error).__name__, str(error).replace("\n", " "))
    os._exit(status)


class DyingFileSystem(FileSystem):
    """Kills its process before its ``k``-th call that changes the disk, or inside a write."""

    def __init__(self, k: int) -> None:
        self._left = k

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def mkdir(self, path: str) -> None:
        self._count()
        super().mkdir(path)

    def create(self, path: str) -> int:
        self._count()
        return super().create(path)

    def write(self, fd: int, data: bytes) -> None:
        self._count()
        super().write(fd, data[: len(data) // 2])
        self._count()
        super().write(fd, data[len(data) // 2 :])

    def set_mtime(self, fd: int, mtime_ns: int | None) -> None:
        self._count()
        super().set_mtime(fd, mtime_ns)

    def fsync(self, fd: int) -> None:
        self._count()
        super().fsync(fd)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)


def kill_each(folder: Path) -> None:
    """Run the workload once for each of its calls, killed there: ``k``, steps done, is it dead."""
    _objects.BUCKETS = _directory.BUCKETS = ("00",)  # type: ignore[misc, attr-defined]
    for k in itertools.count():
        ours, theirs = os.pipe()

        def work(k: int = k, theirs: int = theirs) -> None:
            driver = InlineFileDriver(folder / str(k), DyingFileSystem(k))
            drive(driver.setup(create=True))
            os.write(theirs, b".")
            claims: dict[str, Claimed] = {}
            for step in workload(SHORT):
                drive(step(driver, claims))
                os.write(theirs, b".")

        pid = fork(work)
        os.close(theirs)
        done = 0
        while part := os.read(ours, 4096):
            done += len(part)
        os.close(ours)
        _, status = os.waitpid(pid, 0)
        died = os.WIFSIGNALED(status)
        say(k, done, int(died))
        if not died:
            return


def write_on(folder: Path, told: Callable[[], object]) -> None:
    """Append ``0``, ``1``, ... and count in the state, for ever; say what was acknowledged."""

    async def main() -> None:
        driver = TinyFileDriver(folder, namespace="n")
        await driver.setup(create=True)
        mine = await claim(driver, TASK)
        first = len(await driver.load(TASK, "api"))
        for number in itertools.count(first):
            entry = Entry(str(number), str(number).encode() * 3)
            await driver.append(TASK, "api", [entry], fence=mine.fence())
            say("appended", number)
            told()
            data = str(number).encode() * 12
            await driver.write(TASK, "state", data, fence=mine.fence())
            say("counted", number)

    asyncio.run(main())


def kill_writers(folder: Path, count: str, seed: str) -> None:
    """Start writers one after the other, and kill each at a random moment: by turns of its life, or
    behind a few of its writes. Each waits for a line of standard input, too.
    """
    rng = random.Random(int(seed))
    for number in range(int(count)):
        ours, theirs = os.pipe()

        def work(theirs: int = theirs) -> None:
            write_on(folder, lambda: os.write(theirs, b"."))

        pid = fork(work)
        os.close(theirs)
        if number % 2:
            for _ in range(rng.randrange(1, 6)):
                os.read(ours, 1)
        time.sleep(rng.uniform(0, 0.03) if number % 2 else rng.uniform(0.03, 0.15))
        sys.stdin.readline()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ours)
        say("killed")
    say("end")


def together(count: int, work: Callable[[int], None]) -> None:
    """Let ``count`` children do ``work`` at the same moment."""
    ours, theirs = os.pipe()

    def child(number: int) -> None:
        os.close(theirs)
        os.read(ours, 1)  # Returns in all of them when the parent closes its end.
        work(number)

    pids = [fork(lambda number=number: child(number)) for number in range(count)]  # type: ignore[misc]
    os.close(theirs)
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        say("exit", os.waitstatus_to_exitcode(status))


def race(folder: Path, kind: str, count: str) -> None:
    """Let several processes do the same to one task."""
    kinds = {"append": _append_many, "count": _count_up, "claim": _claim_once, "setup": _set_up}
    together(int(count), lambda number: asyncio.run(kinds[kind](folder, number)))


async def _append_many(folder: Path, number: int) -> None:
    driver = TinyFileDriver(folder, namespace="n")
    await driver.setup(create=True)
    for place in range(25):
        await driver.append(TASK, "api", [Entry(f"{number}-{place}", b"x")], fence=None)
    await driver.aclose()


async def _count_up(folder: Path, number: int) -> None:
    driver = TinyFileDriver(folder, namespace="n")
    await driver.setup(create=True)
    for _ in range(20):
        while True:
            value = await driver.read(TASK, "state")
            try:
                await driver.write(
                    TASK,
                    "state",
                    str(int(value.data or b"0") + 1).encode(),
                    fence=None,
                    if_version=value.version,
                )
            except PreconditionFailedError:
                continue
            break
    await driver.aclose()


async def _claim_once(folder: Path, number: int) -> None:
    driver = TinyFileDriver(folder, namespace="n")
    await driver.setup(create=True)
    for place in range(10):
        scope = Scope("task", f"claimed {place}")
        mine = await claim(driver, scope)
        say("claimed", place, mine.epoch, mine.value.fence.claim_id if mine.value.fence else "")
        try:
            await driver.append(scope, "api", [Entry(str(mine.epoch), b"")], fence=mine.fence())
        except OutlastError as error:
            say("refused", place, mine.epoch, type(error).__name__)
        else:
            say("accepted", place, mine.epoch)
    await driver.aclose()


async def _set_up(folder: Path, number: int) -> None:
    driver = FileDriver(folder / "a" / "b", namespace="n")
    await driver.setup(create=True)
    await driver.append(TASK, "api", [Entry(str(number), b"x")], fence=None)
    await driver.aclose()


class StoppingFileSystem(FileSystem):
    """Stops its process inside the lock, before the renaming that puts a task's head in place."""

    def rename(self, old: str, new: str) -> None:
        if "/task/" in new:
            # To this thread: it must not get any further before the process has stopped.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        super().rename(old, new)


def stop_inside(folder: Path) -> None:
    """Append one message, stopped inside the lock."""

    class Driver(FileDriver):
        filesystem = StoppingFileSystem()

    async def main() -> None:
        driver = Driver(folder, namespace="n", timeout=60)
        await driver.append(TASK, "api", [Entry("late", b"")], fence=None)
        await driver.aclose()
        say("appended")

    asyncio.run(main())


def write_limited(folder: Path, limit: str) -> None:
    """Write 64 KiB to the state and to the log with files limited to ``limit`` bytes."""

    async def main() -> None:
        driver = FileDriver(folder, namespace="n")
        await driver.setup(create=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
        for name, call in (
            ("write", driver.write(TASK, "state", bytes(65536), fence=None)),
            ("append", driver.append(TASK, "api", [Entry("big", bytes(65536))], fence=None)),
            ("small", driver.append(TASK, "api", [Entry("small", b"")], fence=None)),
        ):
            await _report(name, call)
        await driver.aclose()

    asyncio.run(main())


def use_unprivileged(folder: Path, mode: str) -> None:
    """Set up and write as a user who owns nothing here."""

    async def main() -> None:
        os.setgid(65534)
        os.setuid(65534)
        driver = FileDriver(folder, namespace="n")
        await _report("setup", driver.setup(create=mode == "create"))
        await _report("append", driver.append(TASK, "api", [Entry("m", b"")], fence=None))
        await driver.aclose()

    asyncio.run(main())


async def _report(name: str, call: object) -> None:
    try:
        await call  # type: ignore[misc]
    except OutlastError as error:
        say(name, type(error).__name__, error.applied, str(error).replace("\n", " "))
    else:
        say(name, "done")


ROLES: dict[str, Callable[..., None]] = {
    "kill_each": kill_each,
    "kill_writers": kill_writers,
    "race": race,
    "stop_inside": stop_inside,
    "write_limited": write_limited,
    "use_unprivileged": use_unprivileged,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
