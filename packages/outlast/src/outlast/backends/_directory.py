"""The directory of a file store: durable before it is used, verified at every opening."""

import errno
import os
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from shlex import quote
from typing import Final

import msgspec

from outlast.backends._fs import IN_FLIGHT_NS, FileSystem, explain
from outlast.backends._objects import BUCKETS, FileStore, folders
from outlast.backends._threads import Ticket
from outlast.backends._tokens import OpenFiles
from outlast.errors import (
    ConfigurationError,
    CorruptDataError,
    UnavailableError,
    UnsupportedVersionError,
)

STORE_FORMAT: Final = 1
"""Of the directories and their names; heads and pieces have format numbers of their own."""

_PASSING: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EFBIG}
)


class _Marker(msgspec.Struct, omit_defaults=True):
    format: int
    namespace: str | None = None


class StoreDirectory:
    """A store's directory with one namespace in it.

    A marker file in the directory, and one in the namespace's, tell the format and the namespace. A
    marker is written when everything that it stands for is durable, so whoever sees it needs to
    look no further.

    Args:
        root: The store's directory, absolute.
        namespace: The namespace; its directory's name is of fixed length whatever it is called (I1
            to I5).
        fs: The system calls.
    """

    def __init__(self, root: str, namespace: str, fs: FileSystem) -> None:
        self.root = root
        self.namespace = namespace
        self.path = os.path.join(root, f"ns-{sha256(namespace.encode()).hexdigest()}")
        self._fs = fs
        self._markers = {
            os.path.join(root, "outlast.json"): _Marker(STORE_FORMAT),
            os.path.join(self.path, "namespace.json"): _Marker(STORE_FORMAT, namespace),
        }

    def set_up(self, ticket: Ticket, *, create: bool) -> None:
        """Verify the directory; with ``create``, make what is missing first.

        Raises:
            ConfigurationError: It cannot be used, or is not set up and ``create`` is false.
            UnsupportedVersionError: A newer version of outlast made it.
            CorruptDataError: A marker cannot be read, or belongs to another namespace.
            UnavailableError: The system is out of something for the moment.
        """
        try:
            if os.path.lexists(self.root) and not _is_directory(self.root):
                raise ConfigurationError(f"{self.root} is not a directory: use another path")
            missing = [path for path in self._markers if not self._is_marked(path, ticket)]
            if missing and not create:
                option = (
                    "" if self.namespace == "default" else f" --namespace {quote(self.namespace)}"
                )
                raise ConfigurationError(
                    f"{self.root} is not set up for the namespace {self.namespace!r}; open it once "
                    f"with setup=True, or run: outlast setup {Path(self.root).as_uri()}{option}"
                )
            if missing:
                self._make_directories()
                for path in missing:
                    self._mark(path)
            if create:
                self._probe()
        except OSError as error:
            text = explain(error, error.filename if isinstance(error.filename, str) else self.root)
            if error.errno in _PASSING:
                raise UnavailableError(text) from error
            raise ConfigurationError(text) from error

    def ping(self) -> None:
        """Look whether the namespace is there.

        Raises:
            UnavailableError: It is not.
        """
        try:
            os.stat(os.path.join(self.path, "namespace.json"))
        except OSError as error:
            raise UnavailableError(explain(error, self.path)) from error

    def _is_marked(self, path: str, ticket: Ticket) -> bool:
        if not _is_directory(os.path.dirname(path)):
            return False
        data = FileStore(self.path, self._fs, OpenFiles(), ticket).read_settled(path)
        if data is None:
            return False
        try:
            marker = msgspec.json.decode(data, type=_Marker)
        except msgspec.DecodeError as error:
            raise CorruptDataError(f"file {path} cannot be decoded: {error}") from error
        if marker.format > STORE_FORMAT:
            raise UnsupportedVersionError(
                f"{self.root} has format {marker.format}, this version of outlast uses up to "
                f"{STORE_FORMAT}; upgrade outlast"
            )
        if marker != self._markers[path]:
            raise CorruptDataError(
                f"file {path} belongs to the namespace {marker.namespace!r}: it was moved or copied"
            )
        return True

    def _make_directories(self) -> None:
        """Make all directories, and all their names durable, also those that others just made."""
        missing: list[str] = []
        path = self.root
        while not _is_directory(path) and path not in missing:
            missing.append(path)
            path = os.path.dirname(path)
        below = [os.path.join(self.path, folder) for folder in folders()]
        for path in (*reversed(missing), self.path, *below):
            with suppress(FileExistsError):
                self._fs.mkdir(path)
        for path in sorted({os.path.dirname(path) for path in below} | {self.root}, reverse=True):
            self._fs.fsync_dir(path)
        path = self.root
        while path != (parent := os.path.dirname(path)):
            path = parent
            # One that may be searched but not read was not made here, or not lately.
            with suppress(PermissionError):
                self._fs.fsync_dir(path)

    def _mark(self, path: str) -> None:
        temporary = f"{path}.{token_hex(8)}.tmp"
        fd = self._fs.create(temporary)
        try:
            self._fs.write(fd, msgspec.json.encode(self._markers[path]) + b"\n")
            self._fs.set_mtime(fd, IN_FLIGHT_NS)
            self._fs.fsync(fd)
            if not self._fs.renames_open_files:
                self._fs.close(fd)
                fd = -1
            self._fs.rename(temporary, path)
            self._fs.fsync_dir(os.path.dirname(path))
            if fd >= 0:
                self._fs.set_mtime(fd, None)
        except OSError:
            with suppress(OSError):
                self._fs.unlink(temporary)
            raise
        finally:
            if fd >= 0:
                self._fs.close(fd)

    def _probe(self) -> None:
        """Find out now, and not at the first write, whether writing and locking work."""
        path = os.path.join(self.path, f"probe.{token_hex(8)}.tmp")
        self._fs.close(self._fs.create(path))
        self._fs.unlink(path)
        lock = self._fs.open_lock(os.path.join(self.path, "lock", BUCKETS[0]))
        try:
            self._fs.try_lock(lock)
        finally:
            self._fs.close_lock(lock)


def _is_directory(path: str) -> bool:
    """As `os.path.isdir`, which takes what may not be looked at for missing.

    Raises:
        OSError: Nobody can tell.
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


__all__ = ["STORE_FORMAT", "StoreDirectory"]
