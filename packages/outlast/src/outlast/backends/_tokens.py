"""What stands for a head between its reading and its replacement."""

import threading
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from outlast.backends._fs import FileSystem, Identity

NO_FILE: Final = -1


class OpenFile:
    """A head's file, kept open: so no other file can get its inode while that stands for the head.

    Closed with the last token that has it, or by `OpenFiles.close`.
    """

    __slots__ = ("__weakref__", "_fd", "_fs", "file")

    def __init__(self, fs: FileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self.file: Identity | None = fs.identify(fd)

    def close(self) -> None:
        """Close it; from then on it stands for nothing."""
        fd, self._fd, self.file = self._fd, NO_FILE, None
        if fd != NO_FILE:
            with suppress(OSError):
                self._fs.close(fd)

    def __del__(self) -> None:
        self.close()


class OpenFiles:
    """The files that one driver keeps open."""

    def __init__(self) -> None:
        self._files: WeakSet[OpenFile] = WeakSet()
        self._lock = threading.Lock()

    def keep(self, fs: FileSystem, fd: int) -> OpenFile:
        """Take over an open file."""
        opened = OpenFile(fs, fd)
        with self._lock:
            self._files.add(opened)
        return opened

    def close(self) -> None:
        """Close all, also those that somebody still refers to, such as a traceback."""
        with self._lock:
            files = list(self._files)
        for opened in files:
            opened.close()


class Token:
    """Stands for a head: its first bytes, and its file where that can be kept open."""

    __slots__ = ("opened", "stamp")

    def __init__(self, stamp: bytes, opened: OpenFile | None = None) -> None:
        self.stamp = stamp
        self.opened = opened

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and self.stamp == other.stamp

    __hash__ = None  # type: ignore[assignment]  # compared only


__all__ = ["NO_FILE", "OpenFile", "OpenFiles", "Token"]
