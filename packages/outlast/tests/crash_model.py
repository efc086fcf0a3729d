# Paths are text here, as in the calls that are recorded.
# ruff: noqa: PTH110, PTH118, PTH119, PTH120
"""What a crash may leave on a disk, by the letter of POSIX, worked out from recorded calls.

Without `fsync` of a directory, each of its changed names may be on the disk or not, independently
of all others. Without `fsync` of a file, its bytes may be there, missing, cut in half or zeros of
the right length, and its modification time the old or the new one. Nothing else is promised, and
nothing else is assumed here: in particular no order between the two.
"""

import os
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

from outlast.backends._fs import IN_FLIGHT_NS, FileSystem

_MANY = 48


class Event(NamedTuple):
    call: str
    path: str = ""
    target: str = ""
    inode: int = 0
    data: Any = None


class RecordingFileSystem(FileSystem):
    """Does what it is asked to, and writes down everything that changes the disk."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._inodes: dict[int, int] = {}
        """By the system's inode: that one is given to another file once a file is gone."""
        self._count = 0

    def note(self, call: str, data: Any = None) -> None:
        """Write down what the outside knows from here on."""
        self.events.append(Event(call, data=data))

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        self.events.append(Event("mkdir", path))

    def create(self, path: str) -> int:
        fd = super().create(path)
        self._created(path, fd)
        return fd

    def _created(self, path: str, fd: int) -> None:
        self._count += 1
        self._inodes[os.fstat(fd).st_ino] = self._count
        self.events.append(Event("create", path, inode=self._count))

    def _inode(self, fd: int) -> int:
        return self._inodes[os.fstat(fd).st_ino]

    def write(self, fd: int, data: bytes) -> None:
        super().write(fd, data)
        self.events.append(Event("write", inode=self._inode(fd), data=data))

    def set_mtime(self, fd: int, mtime_ns: int | None) -> None:
        super().set_mtime(fd, mtime_ns)
        is_in_flight = mtime_ns == IN_FLIGHT_NS
        self.events.append(Event("set_mtime", inode=self._inode(fd), data=is_in_flight))

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            self.events.append(Event("fsync", inode=self._inode(fd)))

    def fsync_dir(self, path: str) -> None:
        super().fsync_dir(path)
        self.events.append(Event("fsync_dir", path))

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.events.append(Event("rename", old, new))

    def unlink(self, path: str) -> None:
        existed = os.path.exists(path)
        super().unlink(path)
        if existed:
            self.events.append(Event("unlink", path))

    def open_lock(self, path: str) -> int:
        existed = os.path.exists(path)
        fd = super().open_lock(path)
        if not existed:
            self._created(path, fd)
        return fd

    def rewrite(self, path: str, data: bytes) -> None:
        """What no write path should do: change a file in place."""
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        self.events += [Event("truncate", path), Event("rewrite", path, data=data)]
        self.events.append(Event("fsync_path", path))


Names = dict[str, int | None]
"""The names in a directory: inodes, or ``None`` for directories."""


@dataclass
class _File:
    data: bytes = b""
    was_synced: bytes = b""
    is_in_flight: bool = False
    """Whether its modification time says so."""
    was_in_flight: bool = False
    """What the disk is known to have of that."""


@dataclass
class Disk:
    """A disk with what is durable and what is not, under a base directory that is."""

    base: str
    names: dict[str, Names] = field(default_factory=dict[str, Names])
    durable: dict[str, Names] = field(default_factory=dict[str, Names])
    pending: dict[str, list[Event]] = field(default_factory=dict[str, list[Event]])
    files: dict[int, _File] = field(default_factory=dict[int, _File])
    _tried: dict[str, list[Event]] = field(default_factory=dict[str, list[Event]])

    def __post_init__(self) -> None:
        self._add_directory(self.base)

    def _add_directory(self, path: str) -> None:
        self.names[path], self.durable[path], self.pending[path] = {}, {}, []

    def apply(self, event: Event) -> None:
        """Follow one call."""
        match event.call:
            case "mkdir":
                self._change(event)
                self._add_directory(event.path)
            case "create":
                self.files[event.inode] = _File()
                self._change(event)
            case "rename" | "unlink":
                inode = self.names[os.path.dirname(event.path)][os.path.basename(event.path)]
                self._change(event._replace(inode=inode or 0))
            case "write":
                file = self.files[event.inode]
                file.data, file.is_in_flight = file.data + event.data, False
            case "set_mtime":
                self.files[event.inode].is_in_flight = event.data
            case "fsync":
                self._sync(event.inode)
            case "truncate" | "rewrite":
                file = self.files[self._inode(event.path)]
                file.data = event.data or b""
            case "fsync_path":
                self._sync(self._inode(event.path))
            case "fsync_dir" if event.path in self.names:
                self.durable[event.path] = dict(self.names[event.path])
                self.pending[event.path] = []
            case _:
                pass

    def _inode(self, path: str) -> int:
        return self.names[os.path.dirname(path)][os.path.basename(path)] or 0

    def _sync(self, inode: int) -> None:
        file = self.files[inode]
        file.was_synced, file.was_in_flight = file.data, file.is_in_flight

    def _change(self, event: Event) -> None:
        folder = os.path.dirname(event.path)
        _apply_name(self.names[folder], event)
        self.pending[folder].append(event)

    def crashes(self, rng: random.Random) -> Iterator["State"]:
        """The states that a crash may leave now: all, or many of them if there are too many.

        A single name that has been pending for longer is there or not, at random: in combination
        with all others it was tried both ways when it was new.
        """
        folders = [path for path, events in self.pending.items() if events]
        choices: list[list[tuple[int, ...]]] = []
        for path in folders:
            count = len(self.pending[path])
            if count == 1 and self._tried.get(path) == self.pending[path]:
                choices.append([tuple(range(rng.choice((0, 1))))])
            else:
                choices.append(list(_subsets(count, rng)))
        self._tried = {path: list(self.pending[path]) for path in folders}
        for chosen in _some(choices, rng):
            names = {path: dict(entries) for path, entries in self.durable.items()}
            for path, kept in zip(folders, chosen, strict=True):
                for place in kept:
                    _apply_name(names[path], self.pending[path][place])
            tree = dict(_reachable(self.base, names))
            unsynced = sorted(
                {
                    inode
                    for inode in tree.values()
                    if inode is not None and self.files[inode].data != self.files[inode].was_synced
                }
            )
            variants = [_variants(self.files[inode]) for inode in unsynced]
            are_times_kept = rng.random() < 0.5
            for contents in _some(variants, rng):
                lost = dict(zip(unsynced, contents, strict=True))
                yield frozenset(
                    self._entry(path, inode, lost, are_times_kept=are_times_kept)
                    for path, inode in tree.items()
                )

    def _entry(
        self, path: str, inode: int | None, lost: dict[int, bytes], *, are_times_kept: bool
    ) -> "Entry":
        name = os.path.relpath(path, self.base)
        if inode is None:
            return Entry(name, None)
        file = self.files[inode]
        is_in_flight = file.is_in_flight if are_times_kept else file.was_in_flight
        return Entry(name, lost.get(inode, file.was_synced), is_in_flight)


class Entry(NamedTuple):
    """A path below the base: its bytes, ``None`` for a directory; whether it is in flight."""

    path: str
    data: bytes | None
    is_in_flight: bool = False


State = frozenset[Entry]


def materialize(state: State, base: Path) -> None:
    """Make the files and directories of a state."""
    for path, data, is_in_flight in sorted(state):
        if data is None:
            (base / path).mkdir()
            continue
        (base / path).write_bytes(data)
        if is_in_flight:
            os.utime(base / path, ns=(IN_FLIGHT_NS, IN_FLIGHT_NS))


def _apply_name(names: Names, event: Event) -> None:
    name = os.path.basename(event.path)
    match event.call:
        case "mkdir":
            names[name] = None
        case "create":
            names[name] = event.inode
        case "unlink":
            names.pop(name, None)
        case _:
            names.pop(name, None)
            names[os.path.basename(event.target)] = event.inode


def _reachable(folder: str, names: dict[str, Names]) -> Iterator[tuple[str, int | None]]:
    for name, inode in names[folder].items():
        path = os.path.join(folder, name)
        yield path, inode
        if inode is None:
            yield from _reachable(path, names)


def _subsets(count: int, rng: random.Random) -> Iterator[tuple[int, ...]]:
    """All subsets of few changes; of many: beginnings, ends, single gaps and some others."""
    if count <= 5:
        for size in range(count + 1):
            yield from combinations(range(count), size)
        return
    places = range(count)
    for place in places:
        yield tuple(places[:place])
        yield tuple(places[place:])
        yield tuple(other for other in places if other != place)
    for _ in range(16):
        yield tuple(place for place in places if rng.random() < 0.5)


def _variants(file: _File) -> list[bytes]:
    half = len(file.data) // 2
    return [file.was_synced, file.data, file.data[:half], bytes(len(file.data))]


def _some(choices: list[list[Any]], rng: random.Random) -> Iterator[tuple[Any, ...]]:
    total = 1
    for options in choices:
        total *= len(options)
    if total <= _MANY:
        yield from product(*choices)
        return
    yield tuple(options[0] for options in choices)
    yield tuple(options[-1] for options in choices)
    for _ in range(_MANY - 2):
        yield tuple(rng.choice(options) for options in choices)
