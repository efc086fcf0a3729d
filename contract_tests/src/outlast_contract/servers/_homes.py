"""The folders of running servers: found by those who share one, removed when nobody is left."""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

from outlast_contract.servers._errors import ServerError
from outlast_contract.servers._recipe import SOCKET

_ANSWER_TIMEOUT = 120.0
_MEMORY = Path("/dev/shm")  # noqa: S108 - the owner of the folder below is checked
"""A file system that outlives processes, which is what is killed here, and syncs at once."""
_ROOM = 4 * 2**30
_LONGEST_FOLDER = 60
"""The path of a Unix socket has about 100 bytes."""


def enter(kind: str, key: str, arguments: Sequence[str]) -> socket.socket:
    """A connection to the keeper of a server, which is started if it does not run yet.

    Raises:
        ServerError: It did not start.
    """
    base = _base()
    _remove_stale(base)
    with _locked(base / f"{kind}-{key}") as home:
        connection = _connect(home)
        if connection is None:
            _start_keeper(kind, home, arguments)
            connection = _connect(home)
    if connection is None:
        raise ServerError(f"the keeper of the {kind} server ended at once")
    connection.settimeout(_ANSWER_TIMEOUT)
    return connection


def _base() -> Path:
    """The folder of all servers of this user; others may pass through it, not look into it."""
    folder = Path(tempfile.gettempdir())
    if "TMPDIR" not in os.environ and _has_room(_MEMORY):
        folder = _MEMORY
    base = folder / f"outlast-{os.getuid()}"
    if len(os.fsencode(base)) > _LONGEST_FOLDER:
        raise ServerError(f"{base} is too long for a Unix socket; set TMPDIR to a shorter path")
    base.mkdir(mode=0o711, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise ServerError(f"{base} belongs to somebody else; set TMPDIR to another folder")
    return base


def _has_room(folder: Path) -> bool:
    try:
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ROOM
    except OSError:
        return False


@contextlib.contextmanager
def _locked(home: Path, *, wait: bool = True) -> Generator[Path]:
    """Hold the lock of a server's folder, made if it is missing.

    Raises:
        BlockingIOError: Somebody else holds it, and ``wait`` is false.
    """
    while True:
        home.mkdir(mode=0o711, exist_ok=True)
        try:
            descriptor = os.open(home, os.O_RDONLY)
        except FileNotFoundError:  # It was taken for a stale one in between.
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            with contextlib.suppress(FileNotFoundError):
                # A keeper that ended while we waited took the folder that we have locked along.
                if home.stat().st_ino == os.fstat(descriptor).st_ino:
                    yield home
                    return
        finally:
            os.close(descriptor)


def _connect(home: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(home / SOCKET))
    except OSError:
        connection.close()
        return None
    return connection


def _start_keeper(kind: str, home: Path, arguments: Sequence[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    keeper = "outlast_contract.servers._keeper"
    with subprocess.Popen(
        [sys.executable, "-m", keeper, kind, str(home), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd="/",
        env=environment,
        start_new_session=True,
    ) as starter:
        assert starter.stdout is not None
        line = starter.stdout.readline()
    answer = json.loads(line) if line else {"error": f"the keeper of the {kind} server died"}
    if "error" in answer:
        raise ServerError(str(answer["error"]))


def _remove_stale(base: Path) -> None:
    """Remove the folders of keepers that were killed themselves."""
    for home in base.iterdir():
        with contextlib.suppress(OSError), _locked(home, wait=False):
            connection = _connect(home)
            if connection is None:
                shutil.rmtree(home, ignore_errors=True)
            else:
                connection.close()


__all__ = ["enter"]
