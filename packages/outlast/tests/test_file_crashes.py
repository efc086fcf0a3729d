"""A crash of the machine at any system call leaves a readable store, with all that was done.

The calls of a workload are recorded, every state that a crash may leave at any moment is made as
real files, and the real driver opens each of them. The same is done to drivers with one defect,
which must be found out.
"""

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crash_model import Disk, Event, RecordingFileSystem, State, materialize
from file_kit import (
    SCOPES,
    TASK,
    InlineFileDriver,
    Seen,
    claim,
    drive,
    look,
    sweep_all,
)
from file_workload import World, workload, worlds_of

from outlast.backends import _directory, _objects
from outlast.backends._fs import IN_FLIGHT_NS, Contents, FileSystem
from outlast.driver import Entry, Scope, StoredFence
from outlast.errors import OutlastError
from outlast.heads import key_of

pytestmark = pytest.mark.file


PARTS = 4
"""Of all crashes; one is enough for each day."""


class Violation(NamedTuple):
    """What a crash state broke, and after which recorded call."""

    place: int
    call: str
    what: str


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bucket instead of many: the same calls, in fewer directories."""
    monkeypatch.setattr(_objects, "BUCKETS", ("00",))
    monkeypatch.setattr(_directory, "BUCKETS", ("00",))


class Recorded(NamedTuple):
    """A workload's calls, and the world after each of its steps."""

    events: list[Event]
    worlds: list[World]
    epochs: list[dict[Scope, int]]
    base: Path


def record(fs: RecordingFileSystem, base: Path, driver: InlineFileDriver) -> Recorded:
    """Run the workload; note in the record when each step was done."""
    viewer = InlineFileDriver(base / "s")
    drive(driver.setup(create=True))
    worlds, epochs = drive(worlds_of(driver, viewer, workload(), lambda: fs.note("done")))
    return Recorded(fs.events, worlds, epochs, base)


def violations(
    recorded: Recorded,
    fs: FileSystem | None = None,
    *,
    most: int | None = None,
    only_seen: bool = False,
    part: int = 0,
    parts: int = 1,
) -> list[Violation]:
    """What the crash states of a recorded workload break.

    Args:
        recorded: The workload.
        fs: The calls of the driver that opens what a crash left.
        most: Stop when so many were found.
        only_seen: Look only at moments at which a reader has seen what was not done yet.
        part: Look only at this one of so many ``parts`` of the states, counted from 0.
        parts: As above.
    """
    found: list[Violation] = []
    rng = random.Random(7)
    disk = Disk(str(recorded.base))
    checked: set[tuple[State, int, int]] = set()
    done = seen = 0
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        rooms = (Path(folder) / f"{number}" for number in range(10**9))
        for place, event in enumerate((Event("start"), *recorded.events)):
            if event.call == "done":
                done += 1
            elif event.call == "seen":
                seen = event.data
            else:
                disk.apply(event)
            least = max(done, seen)
            if only_seen and seen <= done:
                continue
            for state in disk.crashes(rng):
                if (state, least, done) in checked:
                    continue
                checked.add((state, least, done))
                if len(checked) % parts != part:
                    continue
                what = judge(state, next(rooms), recorded, fs, least, done)
                if what is not None:
                    found.append(Violation(place, event.call, what))
                    if len(found) == most:
                        return found
    assert len(checked) > 100
    return found


def judge(
    state: State, room: Path, recorded: Recorded, fs: FileSystem | None, least: int, done: int
) -> str | None:
    """What is wrong with a crash state, if anything.

    Args:
        state: What the crash left.
        room: Where to make it.
        recorded: The workload.
        fs: The calls of the driver that opens it.
        least: So many steps are done, or were seen to be, and must be there; 0: not even the
            set-up.
        done: So many steps are done; one more may be under way.
    """
    room.mkdir()
    materialize(state, room)
    allowed = recorded.worlds[max(0, least - 1) : done + 1] or recorded.worlds[:1]
    try:
        driver = InlineFileDriver(room / "s", fs)
        drive(driver.setup(create=not least))
        for scope in SCOPES:
            seen = drive(look(driver, scope))
            if not any(seen == world[scope] for world in allowed) and not _is_returned(
                seen, scope, recorded.worlds[: done + 1]
            ):
                return f"{scope}: {seen} is none of {[world[scope] for world in allowed]}"
        before = {scope: drive(look(driver, scope)) for scope in SCOPES}
        drive(sweep_all(driver, older_than=3600.0))
        drive(sweep_all(driver))
        for scope in SCOPES:
            seen = drive(look(driver, scope))
            if seen != before[scope] and not before[scope].is_empty:
                return f"{scope}: a sweep made {seen} of {before[scope]}"
            epochs = recorded.epochs[max(0, least - 1)]
            if (epoch := drive(claim(driver, scope)).epoch) <= epochs.get(scope, 0):
                return f"{scope}: epoch {epoch} was handed out twice"
        mine = drive(claim(driver, TASK))
        drive(driver.append(TASK, "api", [Entry("new", b"")], fence=mine.fence()))
        if drive(driver.load(TASK, "api", last=1)) != [Entry("new", b"")]:
            return "an append after the crash is not there"
    except OutlastError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _is_returned(seen: Seen, scope: Scope, worlds: list[World]) -> bool:
    """Whether it is a tombstone that was swept, whose removal need not be durable, or a record that
    an unclaimed mutation made for its pieces: both are empty, and say nothing new.
    """
    worlds = [world for world in worlds if world[scope].is_empty]
    return any(seen in (world[scope], Seen(StoredFence(), *world[scope][1:])) for world in worlds)


def _fast_folder() -> str | None:
    """Where files are made quickly: the crashes are worked out, no real disk is needed."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))]
)
def test_every_crash_leaves_the_old_or_the_new_value_and_what_was_done(
    base: Path, part: int
) -> None:
    fs = RecordingFileSystem()
    recorded = record(fs, base, InlineFileDriver(base / "s", fs))
    assert violations(recorded, part=part, parts=PARTS) == []


class Defect(RecordingFileSystem):
    """A defect that sets in with the set-up, or with the first write after it."""

    def __init__(self, *, is_in_setup: bool) -> None:
        super().__init__()
        self._is_in_setup = is_in_setup

    @property
    def is_active(self) -> bool:
        """Whether it has set in, and not ended with the set-up."""
        is_set_up = Event("done") in self.events
        return is_set_up is not self._is_in_setup


class WithoutFsync(Defect):
    def fsync(self, fd: int) -> None:
        if not self.is_active:
            super().fsync(fd)


class WithoutDirectoryFsync(Defect):
    def fsync_dir(self, path: str) -> None:
        if not self.is_active:
            super().fsync_dir(path)


class WithoutPieceDirectoryFsync(Defect):
    def fsync_dir(self, path: str) -> None:
        if not self.is_active or "/piece/" not in path:
            super().fsync_dir(path)


class WithoutFsyncOfParents(Defect):
    def fsync_dir(self, path: str) -> None:
        if not self.is_active or path.endswith("/00"):
            super().fsync_dir(path)


class RewritingInPlace(Defect):
    def rename(self, old: str, new: str) -> None:
        if not self.is_active or not Path(new).exists():
            super().rename(old, new)
            return
        self.rewrite(new, Path(old).read_bytes())
        self.unlink(old)


class UnlinkingFirst(Defect):
    def rename(self, old: str, new: str) -> None:
        if self.is_active:
            self.unlink(new)
        super().rename(old, new)


@pytest.mark.parametrize(
    ("mutant", "is_in_setup"),
    [
        (WithoutFsync, True),
        (WithoutDirectoryFsync, True),
        (WithoutFsyncOfParents, True),
        (WithoutFsync, False),
        (WithoutDirectoryFsync, False),
        (WithoutPieceDirectoryFsync, False),
        (RewritingInPlace, False),
        (UnlinkingFirst, False),
    ],
)
def test_a_defect_in_the_write_path_is_found(
    mutant: type[Defect], is_in_setup: bool, base: Path
) -> None:
    fs = mutant(is_in_setup=is_in_setup)
    recorded = record(fs, base, InlineFileDriver(base / "s", fs))
    (found,) = violations(recorded, most=1)
    setup_ends = recorded.events.index(Event("done"))
    assert (found.place <= setup_ends) is is_in_setup


class LocksAreMadeInSetUp(FileSystem):
    """Takes a lock file for one of the files that set-up has made."""

    def open_lock(self, path: str) -> int:
        return os.open(path, os.O_RDWR)


class LockFilesAreHeld(FileSystem):
    """Takes a lock that is there for one that somebody holds, as if its owner would remove it."""

    def __init__(self) -> None:
        self._held: dict[int, str] = {}

    def open_lock(self, path: str) -> int:
        fd = self.create(path)
        self._held[fd] = path
        return fd

    def close_lock(self, fd: int) -> None:
        super().close_lock(fd)
        self.unlink(self._held.pop(fd))


class WhatIsInFlightIsNotThere(FileSystem):
    """Its readers wait for a file's writer to say that its name is durable."""

    def open(self, path: str) -> int:
        if self.identify(path).mtime_ns == IN_FLIGHT_NS:
            raise FileNotFoundError(path)
        return super().open(path)


@pytest.mark.parametrize(
    "mutant", [LocksAreMadeInSetUp, LockFilesAreHeld, WhatIsInFlightIsNotThere]
)
def test_a_defect_in_opening_what_a_crash_left_is_found(
    mutant: type[FileSystem], base: Path
) -> None:
    fs = RecordingFileSystem()
    recorded = record(fs, base, InlineFileDriver(base / "s", fs))
    assert violations(recorded, mutant(), most=1)


class WatchedFileSystem(RecordingFileSystem):
    """Lets a reader look at a head in the moment between its renaming and `fsync_dir`."""

    def __init__(self, base: Path) -> None:
        super().__init__()
        self.steps = 0
        self.reader = InlineFileDriver(base / "s", self)

    def note(self, call: str, data: Any = None) -> None:
        super().note(call, data)
        self.steps += call == "done"

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        for scope in SCOPES:
            if new.endswith(key_of(scope).partition("/")[2]):
                drive(look(self.reader, scope))
                super().note("seen", self.steps + 1)


def test_what_a_reader_saw_is_not_lost_even_if_its_writer_was_not_done(base: Path) -> None:
    fs = WatchedFileSystem(base)
    recorded = record(fs, base, InlineFileDriver(base / "s", fs))
    assert violations(recorded, only_seen=True) == []


class Careless(WatchedFileSystem):
    """Its readers believe every name to be durable."""

    def read(self, fd: int, size: int | None = None) -> Contents:
        contents = super().read(fd, size)
        return contents._replace(file=contents.file._replace(mtime_ns=1))


def test_a_reader_that_believes_every_name_is_found(base: Path) -> None:
    fs = Careless(base)
    recorded = record(fs, base, InlineFileDriver(base / "s", fs))
    assert violations(recorded, most=1)
