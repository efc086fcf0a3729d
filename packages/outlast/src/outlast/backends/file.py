"""The file backend: records as files in a directory, safe between the processes of one host."""

import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from outlast.backends._directory import StoreDirectory
from outlast.backends._fs import FileSystem
from outlast.backends._objects import FileStore
from outlast.backends._threads import Ticket, Workers
from outlast.backends._tokens import OpenFiles
from outlast.codec import Codec
from outlast.contracts import DriverBackend
from outlast.contracts.backend import check_timeout
from outlast.driver import Capabilities
from outlast.errors import ConfigurationError
from outlast.filesystem import network_mount
from outlast.heads import HeadDriver, Layout, Operation
from outlast.url import parse_url, redact
from outlast.values import check_id

ResultT = TypeVar("ResultT")

MAX_MESSAGE_BYTES: Final = 64 * 2**20

LAYOUT: Final = Layout(
    # Each keeps a file open, by which a glance tells whether the head is still the same.
    cached_heads=32,
    # A checkpoint of any usual length is one file. A task's registers are rewritten by each append.
    run_inline_bytes=256 * 1024,
    task_inline_bytes=16 * 1024,
    # Rewriting the newest piece costs bandwidth, a new one costs files: with this, an append of
    # 1 KiB writes about 18 KiB on average, and 10 MiB of log are some 80 files.
    merge_bytes=128 * 1024,
    piece_bytes=1024 * 1024,
    retry_delay=0.001,
)
"""How this backend divides its records; see `outlast.heads.Layout`."""


class FileDriver(HeadDriver):
    """One file per scope, with its registers and the newest entries of its logs; see `HeadDriver`.

    **What survives** (D1). A done write, and a claim, is on the disk when the call returns, in a
    file whose name is on the disk, too: it survives the process and the machine, as far as the disk
    keeps what it has confirmed. What a read returned is not lost either, even if its writer had not
    finished.

    **Who may share it.** Processes of one host, on a local file system. A process that is stopped
    in the few microseconds in which it holds a lock holds up the writers of one bucket, not the
    readers (E6).
    """

    name: str = "file"
    capabilities: Capabilities = Capabilities(
        data_survives=frozenset({"process", "server"}),
        fences_survive=frozenset({"process", "server"}),
        reach="host",
        max_message_bytes=MAX_MESSAGE_BYTES,
        stopped_writer_blocks=True,
    )
    filesystem: FileSystem = FileSystem()
    layout = LAYOUT

    def __init__(
        self, path: str | os.PathLike[str], *, namespace: str = "default", timeout: float = 10.0
    ) -> None:
        """Make a driver; no I/O.

        Args:
            path: The directory; a relative one is taken from where the process is now.
            namespace: A world of its own within the directory (I5).
            timeout: Seconds that one call may take.

        Raises:
            ConfigurationError: No path.
        """
        super().__init__(self.layout)
        self._directory = StoreDirectory(_absolute(path), namespace, self.filesystem)
        self._files = OpenFiles()
        self._workers = Workers(timeout, "outlast-file")

    @classmethod
    def from_url(
        cls, url: str, *, namespace: str = "default", timeout: float = 10.0
    ) -> "FileDriver":
        """A driver for ``file:///dir``: always an absolute path, percent-decoded, without options.

        Raises:
            ConfigurationError: A relative path, a host, or options.
        """
        return cls(_path_of(url), namespace=namespace, timeout=timeout)

    async def setup(self, *, create: bool) -> None:
        await self._call(lambda ticket: self._directory.set_up(ticket, create=create))

    async def hazards(self) -> Sequence[str]:
        mount = await self._call(lambda _: network_mount(self._directory.root))
        if mount is None:
            return ()
        text = (
            f"{self._directory.root} is on a network file system ({mount.type}, mounted on "
            f"{mount.point}), where locks and durable renames are not reliable: accepted writes "
            "may be lost; use a directory on a local disk, or a database"
        )
        return (text,)

    async def ping(self) -> None:
        await self._call(lambda _: self._directory.ping())

    async def aclose(self) -> None:
        await self._workers.aclose()
        self.forget()
        self._files.close()

    async def _run(self, operation: Operation[ResultT]) -> ResultT:
        async def start(ticket: Ticket) -> ResultT:
            return await operation(self._store(ticket))

        return await self._workers.run(start)

    def _store(self, ticket: Ticket) -> FileStore:
        return FileStore(self._directory.path, self.filesystem, self._files, ticket)

    async def _call(self, function: Callable[[Ticket], ResultT]) -> ResultT:
        async def operation(ticket: Ticket) -> ResultT:
            return function(ticket)

        return await self._workers.run(operation)


class FileBackend(DriverBackend):
    """Keeps everything in a directory on a local disk, shared by the processes of one host."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "default",
        setup: bool = True,
        strict: bool = False,
        codec: Codec | None = None,
        timeout: float = 10.0,
        checkpoint_ttl: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """Make a backend; no I/O.

        Args:
            path: The directory; a relative one is taken from where the process is now.
            namespace: As in `DriverBackend`, like the other options.
            setup: ``True``: make the directory if it is missing; ``False``: only verify it.
            strict: Refuse a directory on a network file system, instead of warning.
            codec: How records become bytes.
            timeout: Seconds that one call may take.
            checkpoint_ttl: Age beyond which a checkpoint reads as ``None``.
            clock: Source of ``updated_at``.

        Raises:
            ConfigurationError: An option that does not fit.
            InvalidIdError: ``namespace`` is not an id.
        """
        check_id(namespace, "namespace")
        super().__init__(
            FileDriver(path, namespace=namespace, timeout=check_timeout(timeout)),
            namespace=namespace,
            setup=setup,
            strict=strict,
            codec=codec,
            timeout=timeout,
            checkpoint_ttl=checkpoint_ttl,
            clock=clock,
        )


def _absolute(path: object) -> str:
    try:
        text = os.fspath(path)  # type: ignore[call-overload]  # whatever it is, this decides
    except TypeError:
        raise ConfigurationError(f"path must be a path, not {type(path).__name__}") from None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f"path must name a directory, not {text!r:.80}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"path cannot be a file's name: {error.reason} at index {error.start} of {text!r:.80}"
        ) from None
    return os.path.abspath(text)


def _path_of(url: str) -> str:
    parts = parse_url(url)
    shown = redact(url)
    if parts.host or parts.username is not None or parts.port is not None:
        raise ConfigurationError(
            f"{shown!r} names a host; a directory here has three slashes: file:///dir"
        )
    try:
        path = unquote(urlsplit(url).path, errors="strict")
    except UnicodeDecodeError:
        raise ConfigurationError(f"the path of {shown!r} is not UTF-8, percent-encoded") from None
    if sys.platform == "win32" and path[2:3] == ":":
        path = path[1:]  # file:///C:/dir
    if not os.path.isabs(path):
        raise ConfigurationError(
            f"{shown!r} must hold an absolute path: file:///dir; FileBackend() takes relative ones"
        )
    return path


__all__ = ["LAYOUT", "MAX_MESSAGE_BYTES", "FileBackend", "FileDriver"]
