"""Heads and pieces as files: a directory per namespace, names of fixed length, fixed locks."""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from secrets import token_hex
from types import TracebackType
from typing import Final

from outlast.backends._fs import IN_FLIGHT_NS, Contents, FileSystem, explain
from outlast.backends._threads import Pause, Ticket
from outlast.backends._tokens import NO_FILE, OpenFiles, Token
from outlast.driver import ScopeKind
from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast.heads import (
    HEAD_STAMP,
    Candidate,
    Floor,
    Head,
    Listing,
    ObjectStore,
    Ref,
    Stored,
    decode_floor,
    encode_floor,
)
from outlast.retry import backoff

BUCKETS: Final = tuple(f"{number:02x}" for number in range(32))
"""Directories, lock files and floors are shared by the scopes of a bucket."""

_FOLDERS: Final = ("task", "run", "piece", "floor", "lock")
_HEAD_NAME: Final = re.compile(r"[0-9a-f]{64}")
_PIECE_NAME: Final = re.compile(r"(task|run)-([0-9a-f]{64})-([0-9a-f]+)")
_TEMPORARY: Final = ".tmp"
_PROCESS: Final = token_hex(8)
_numbers = count()
_QUICK_TRIES: Final = 4
_QUICK_WAIT: Final = 0.0002
_LOCK_WAIT: Final = 0.001
_LOCK_WAIT_CAP: Final = 0.02
"""Seconds; a lock is held for some ten microseconds."""


def folders() -> Iterator[str]:
    """The directories of a namespace, parents first, relative to its own."""
    for folder in _FOLDERS:
        yield folder
        if folder in ("task", "run", "piece"):
            for bucket in BUCKETS:
                yield f"{folder}/{bucket}"


class _Explained:
    """Errors of the system become those of outlast: certainly not applied."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise UnavailableError(explain(error, self._path)) from error


class FileStore(ObjectStore):
    """The store as one operation sees it; made anew for each, and used in one thread at a time.

    A head is replaced by a temporary file that is complete and durable before it gets the head's
    name. The lock of its bucket is held for the comparison and the renaming only, never while data
    is written.

    A reader may see a new name before it is durable. What it returns must not be lost in a crash
    afterwards (F4, A5), so a head carries the modification time ``IN_FLIGHT_NS`` until its name is
    known to be durable; who reads it with that time makes the directory durable himself first. The
    same holds for the repetition of a mutation whose process died between renaming and answering.
    """

    def __init__(self, path: str, fs: FileSystem, files: OpenFiles, ticket: Ticket) -> None:
        """Make a view.

        Args:
            path: The directory of the namespace.
            fs: The system calls.
            files: Where the driver keeps what stays open.
            ticket: Of the operation.
        """
        self._path = path
        self._fs = fs
        self._files = files
        self._ticket = ticket

    async def read(self, key: str) -> Stored | None:
        path = self._head(key)
        with _Explained(path):
            found = self._open_settled(path)
            if found is None:
                return None
            fd, contents = found
            return Stored(contents.data, self._token(contents.data, fd))

    async def is_current(self, key: str, token: object) -> bool | None:
        assert isinstance(token, Token)
        self._ticket.check()
        path = self._head(key)
        with _Explained(path):
            return self._is_at(path, token)

    async def create(self, key: str, data: bytes, head: Head) -> object | None:
        return await self._replace(self._head(key), data, None, bucket_of(key))

    async def swap(self, key: str, data: bytes, head: Head, token: object) -> object | None:
        assert isinstance(token, Token)
        return await self._replace(self._head(key), data, token, bucket_of(key))

    async def delete(self, key: str, token: object) -> bool:
        assert isinstance(token, Token)
        path = self._head(key)
        with _Explained(path):
            lock = await self._lock(bucket_of(key))
            try:
                if not self._is_at(path, token):
                    return False
                self._ticket.commit()
                # Not made durable: a tombstone that comes back in a crash is what it was.
                self._fs.unlink(path)
                return True
            finally:
                self._fs.close_lock(lock)

    async def put_pieces(self, key: str, pieces: Mapping[str, bytes]) -> None:
        for name, data in pieces.items():
            self._ticket.check()
            path = self._piece(key, name)
            with _Explained(path):
                fd = self._fs.create(path)
                try:
                    self._fs.write(fd, data)
                    self._fs.fsync(fd)
                finally:
                    self._fs.close(fd)
        folder = os.path.join(self._path, "piece", bucket_of(key))
        with _Explained(folder):
            self._fs.fsync_dir(folder)

    async def read_pieces(
        self, key: str, refs: Sequence[Ref], *, prefix: bool = False
    ) -> list[bytes | None]:
        return [
            self._read(self._piece(key, ref.name), ref.prefix if prefix else None) for ref in refs
        ]

    async def delete_pieces(self, key: str, names: Sequence[str]) -> None:
        for name in names:
            path = self._piece(key, name)
            with _Explained(path):
                self._fs.unlink(path)

    async def list_heads(self, kind: ScopeKind, after: str | None, limit: int) -> Sequence[str]:
        behind = "" if after is None else after.partition("/")[2]
        keys: list[str] = []
        for bucket in BUCKETS:
            if behind and bucket < _bucket_of_digest(behind):
                continue
            names = self._list(os.path.join(self._path, kind, bucket))
            keys += [
                f"{kind}/{name}" for name in names if name > behind and _HEAD_NAME.fullmatch(name)
            ]
            if len(keys) >= limit:
                break
        return keys[:limit]

    async def list_pieces(self, after: str | None, limit: int) -> Listing:
        first, _, behind = (after or "").partition("/")
        now = time.time()
        found: list[Candidate] = []
        for bucket in BUCKETS:
            if bucket < first:
                continue
            folder = os.path.join(self._path, "piece", bucket)
            for name in self._list(folder):
                if bucket == first and name <= behind:
                    continue
                if (parts := _PIECE_NAME.fullmatch(name)) is None:
                    continue
                kind, digest, piece = parts.groups()
                with suppress(FileNotFoundError), _Explained(folder):
                    age = max(0.0, now - os.stat(os.path.join(folder, name)).st_mtime)
                    found.append(Candidate(f"{kind}/{digest}", piece, age))
                if len(found) >= limit:
                    return Listing(found, f"{bucket}/{name}")
        return Listing(found, None)

    async def sweep_temporary(
        self, *, older_than: float, dry_run: bool, after: str | None
    ) -> tuple[int, str | None]:
        removed = 0
        now = time.time()
        below = [os.path.join(self._path, folder) for folder in folders()]
        for folder in (_folder(self._path), self._path, *below):
            for name in self._list(folder):
                if not name.endswith(_TEMPORARY):
                    continue
                path = os.path.join(folder, name)
                with suppress(FileNotFoundError), _Explained(path):
                    # Not the modification time: that of a file in flight is no time at all.
                    if max(0.0, now - os.stat(path).st_ctime) < older_than:
                        continue
                    if not dry_run:
                        self._fs.unlink(path)
                    removed += 1
        return removed, None

    async def floor(self, key: str) -> Floor:
        path = self._floor(key)
        data = self.read_settled(path)
        return Floor() if data is None else decode_floor(data, f"file {path}")

    async def raise_floor(self, key: str, floor: Floor) -> None:
        path = self._floor(key)
        while True:
            data = self.read_settled(path)
            old = Floor() if data is None else decode_floor(data, f"file {path}")
            raised = old.raised_to(floor)
            if raised == old:
                return
            token = None if data is None else Token(data)
            if await self._replace(path, encode_floor(raised), token, bucket_of(key)):
                return

    async def now(self) -> float:
        return time.time()

    async def pause(self, seconds: float) -> None:
        self._ticket.check("other writers of the same record were always faster")
        await Pause(seconds)

    def place(self, key: str, piece: str | None = None) -> str:
        return f"file {self._head(key) if piece is None else self._piece(key, piece)}"

    def read_settled(self, path: str) -> bytes | None:
        """A file's bytes, once its name is durable; ``None`` if there is none."""
        with _Explained(path):
            found = self._open_settled(path)
            if found is None:
                return None
            fd, contents = found
            self._fs.close(fd)
        return contents.data

    def _open_settled(self, path: str) -> tuple[int, Contents] | None:
        self._ticket.check()
        try:
            fd = self._fs.open(path)
        except FileNotFoundError:
            if os.path.isdir(_folder(path)):
                return None
            raise
        try:
            contents = self._fs.read(fd)
            if contents.file.mtime_ns == IN_FLIGHT_NS:
                self._settle(path, fd)
        except BaseException:
            self._fs.close(fd)
            raise
        return fd, contents

    async def _replace(
        self, path: str, data: bytes, token: Token | None, bucket: str
    ) -> Token | None:
        """Put a file with ``data`` in the place of the one that ``token`` stands for (or of none).

        Returns its token; ``None``: there is another one, nothing changed.
        """
        temporary = f"{path}.{_new_suffix()}{_TEMPORARY}"
        is_renamed = False
        fd = NO_FILE
        self._ticket.check()
        try:
            with _Explained(path):
                fd = self._fs.create(temporary)
                self._fs.write(fd, data)
                self._fs.set_mtime(fd, IN_FLIGHT_NS)
                self._fs.fsync(fd)
                lock = await self._lock(bucket)
                try:
                    if not self._is_at(path, token):
                        return None
                    if not self._fs.renames_open_files:
                        self._fs.close(fd)
                        fd = NO_FILE
                    self._ticket.commit()
                    if token is not None and token.opened is not None:
                        # Before the renaming, which then frees the file: later that costs more.
                        token.opened.close()
                    is_renamed = self._rename(temporary, path)
                finally:
                    self._fs.close_lock(lock)
            if not is_renamed:
                return None
            try:
                self._settle(path, fd)
            except OSError as error:
                raise OutcomeUnknownError(explain(error, path)) from error
            made, fd = self._token(data, fd), NO_FILE
            return made
        finally:
            if fd != NO_FILE:
                self._fs.close(fd)
            if not is_renamed:
                with suppress(OSError):
                    self._fs.unlink(temporary)

    def _token(self, data: bytes, fd: int) -> Token:
        """A token that takes over an open file, where open files are in nobody's way."""
        if fd != NO_FILE and not self._fs.renames_open_files:
            self._fs.close(fd)
            fd = NO_FILE
        opened = None if fd == NO_FILE else self._files.keep(self._fs, fd)
        return Token(data[:HEAD_STAMP], opened)

    def _rename(self, temporary: str, path: str) -> bool:
        try:
            self._fs.rename(temporary, path)
        except FileNotFoundError:
            if os.path.isdir(_folder(path)):
                return False  # A sweep took the temporary file for left over.
            raise
        return True

    async def _lock(self, bucket: str) -> int:
        """Take the lock of a bucket: at first in this thread, then outside, up to the deadline."""
        path = os.path.join(self._path, "lock", bucket)
        fd = self._fs.open_lock(path)
        try:
            for attempt in count():
                if self._fs.try_lock(fd):
                    return fd
                self._ticket.check(
                    f"another process keeps {path} locked: it was stopped, or its disk hangs"
                )
                if attempt < _QUICK_TRIES:
                    time.sleep(_QUICK_WAIT)  # noqa: ASYNC251 - in a thread, see `Workers`
                else:
                    await Pause(
                        backoff(attempt - _QUICK_TRIES, base=_LOCK_WAIT, cap=_LOCK_WAIT_CAP)
                    )
            raise AssertionError("unreachable")
        except BaseException:
            self._fs.close(fd)
            raise

    def _is_at(self, path: str, token: Token | None) -> bool:
        """Whether ``token`` stands for the file of this name; ``None``: whether there is none."""
        try:
            file = None if token is None or token.opened is None else token.opened.file
            if file is not None:
                return self._fs.identify(path) == file
            fd = self._fs.open(path)
        except FileNotFoundError:
            return token is None
        try:
            return token is not None and self._fs.read(fd, len(token.stamp)).data == token.stamp
        finally:
            self._fs.close(fd)

    def _settle(self, path: str, fd: int) -> None:
        """Make the name of an open file durable, and say so in its modification time."""
        self._fs.fsync_dir(_folder(path))
        if fd != NO_FILE:
            with suppress(OSError):  # Another user's file: then everybody looks after himself.
                self._fs.set_mtime(fd, None)

    def _read(self, path: str, size: int | None) -> bytes | None:
        self._ticket.check()
        with _Explained(path):
            try:
                fd = self._fs.open(path)
            except FileNotFoundError:
                return None
            try:
                return self._fs.read(fd, size).data
            finally:
                self._fs.close(fd)

    def _list(self, folder: str) -> list[str]:
        self._ticket.check()
        with _Explained(folder):
            return sorted(os.listdir(folder))

    def _head(self, key: str) -> str:
        kind, _, digest = key.partition("/")
        return f"{self._path}/{kind}/{_bucket_of_digest(digest)}/{digest}"

    def _piece(self, key: str, name: str) -> str:
        return f"{self._path}/piece/{bucket_of(key)}/{key.replace('/', '-')}-{name}"

    def _floor(self, key: str) -> str:
        return f"{self._path}/floor/{bucket_of(key)}"


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _new_suffix() -> str:
    """Part of a name that no other process or thread uses at the same time."""
    return f"{_PROCESS}{os.getpid():x}-{next(_numbers):x}"


def bucket_of(key: str) -> str:
    """The bucket of a head's key; buckets are in the order of keys."""
    return _bucket_of_digest(key.partition("/")[2])


def _bucket_of_digest(digest: str) -> str:
    return BUCKETS[int(digest[:2], 16) * len(BUCKETS) >> 8]


__all__ = ["BUCKETS", "FileStore", "bucket_of", "folders"]
