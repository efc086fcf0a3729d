"""The system calls of the file backend, each behind one method, and what their errors mean.

All that changes the disk goes through here, one call per method, so that tests can stop a process
before any of them and work out what a crash may leave behind.
"""

import errno
import os
import sys
import time
from typing import Final, NamedTuple

if sys.platform != "win32":
    import fcntl
else:
    import msvcrt

IN_FLIGHT_NS: Final = 0
"""The modification time of a file whose name is not known to be durable yet; see `FileStore`."""

_IS_WINDOWS: Final = sys.platform == "win32"
_BINARY: Final = getattr(os, "O_BINARY", 0)
_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_SHARING_RETRIES: Final = 20


class Identity(NamedTuple):
    """Tells a file from all others while it is open; the rest tells whether it was written to."""

    device: int
    inode: int
    size: int
    mtime_ns: int


class Contents(NamedTuple):
    """A file's bytes, and which file it was."""

    data: bytes
    file: Identity


class FileSystem:
    """The calls. Files are made once, under a new name, and written in one go."""

    renames_open_files = not _IS_WINDOWS

    def mkdir(self, path: str) -> None:
        """Make a directory; its name is durable after `fsync_dir` of its parent."""
        os.mkdir(path)

    def create(self, path: str) -> int:
        """Open a new file for writing.

        Raises:
            FileExistsError: There is one of this name.
        """
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _BINARY | _CLOEXEC, 0o666)

    def write(self, fd: int, data: bytes) -> None:
        """Write all of ``data``."""
        done = os.write(fd, data)
        while done < len(data):
            done += os.write(fd, memoryview(data)[done:])

    def set_mtime(self, fd: int, mtime_ns: int | None) -> None:
        """Set a file's modification time; ``None``: now. Does nothing where a descriptor cannot."""
        if os.utime in os.supports_fd:
            if mtime_ns is None:
                os.utime(fd)
            else:
                os.utime(fd, ns=(mtime_ns, mtime_ns))

    def fsync(self, fd: int) -> None:
        """Make a file's bytes durable."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory durable; Windows knows no such call."""
        if _IS_WINDOWS:
            return
        fd = os.open(path, os.O_RDONLY | _CLOEXEC)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        """Put ``old`` in the place of ``new``, in one step."""
        for _ in range(_SHARING_RETRIES if _IS_WINDOWS else 0):
            try:
                os.replace(old, new)
            except PermissionError:
                # Windows: a reader has the file open for a moment.
                time.sleep(0.005)
            else:
                return
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        """Remove a file; one that is gone is no error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def open(self, path: str) -> int:
        """Open a file for reading."""
        return os.open(path, os.O_RDONLY | _BINARY | _CLOEXEC)

    def read(self, fd: int, size: int | None = None) -> Contents:
        """Read an open file from its beginning: all of it, or at most ``size`` bytes."""
        status = os.fstat(fd)
        wanted = status.st_size if size is None else min(size, status.st_size)
        data = os.read(fd, wanted)
        if len(data) < wanted:
            parts = [data]
            missing = wanted - len(data)
            while missing and (part := os.read(fd, missing)):
                parts.append(part)
                missing -= len(part)
            data = b"".join(parts)
        return Contents(data, _identity(status))

    def identify(self, file: str | int) -> Identity:
        """Which file has a name, or is open."""
        return _identity(os.stat(file))

    def open_lock(self, path: str) -> int:
        """Open a lock file anew each time: so its lock excludes threads of one process, too."""
        return os.open(path, os.O_CREAT | os.O_RDWR | _BINARY | _CLOEXEC, 0o666)

    def try_lock(self, fd: int) -> bool:
        """Take the lock if it is free. It ends with `close_lock`, or with the process."""
        try:
            if sys.platform != "win32":
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK, errno.EINTR):
                return False
            raise
        return True

    def close_lock(self, fd: int) -> None:
        """Give the lock back, even if a forked child has inherited the descriptor, and close it."""
        try:
            if sys.platform != "win32":
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            os.close(fd)


def _identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def explain(error: OSError, path: str) -> str:
    """What went wrong and what to do, for people."""
    place = path if os.path.isdir(path) else os.path.dirname(path)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"no space left in {place}: free some, or raise the quota"
        case errno.EFBIG:
            return (
                f"a file in {place} would be larger than the system allows: "
                "raise the limit (ulimit -f), or use another file system"
            )
        case errno.EROFS:
            return (
                f"{place} is on a read-only file system: mount it for writing, or use another path"
            )
        case errno.EACCES | errno.EPERM:
            return f"no permission to read and write in {place}: change its owner or mode"
        case errno.ENOENT:
            if os.path.isdir(place):
                return f"{path} cannot be made, or was removed meanwhile: use another path"
            return f"{place} is gone: it was removed or unmounted"
        case errno.ENOTDIR | errno.EEXIST:
            return f"a part of {path} is a file, not a directory: use another path"
        case errno.EMFILE | errno.ENFILE:
            return f"too many open files, {place} cannot be used: raise the limit (ulimit -n)"
        case errno.ENOLCK | errno.ENOTSUP:
            return f"the file system of {place} has no file locks: use a local one"
        case errno.ENAMETOOLONG:
            return f"a name below {place} is too long for its file system: use a shorter path"
        case _:
            return f"{place} cannot be used: {error.strerror or type(error).__name__}"


__all__ = ["IN_FLIGHT_NS", "Contents", "FileSystem", "Identity", "explain"]
