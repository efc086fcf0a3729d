"""A backend that keeps all in one file: correct, and with defects that only processes show."""

import fcntl
import os
import pickle
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import outlast
from outlast.backends.memory import MemoryDriver
from outlast.contracts import DriverBackend
from outlast.driver import Capabilities
from outlast.errors import UnavailableError
from outlast_contract import Harness


class OneFileDriver(MemoryDriver):
    """Each step locks, reads the file, does what the memory backend does, and replaces the file."""

    name = "onefile"
    capabilities = Capabilities(
        data_survives=frozenset({"process"}),
        fences_survive=frozenset({"process"}),
        reach="host",
        max_message_bytes=64 * 2**20,
        stopped_writer_blocks=True,
    )

    def __init__(self, path: str, *, namespace: str) -> None:
        super().__init__(None, namespace=namespace)
        self._path = Path(path)

    @classmethod
    def from_url(cls, url: str, *, namespace: str, timeout: float = 10.0) -> "OneFileDriver":
        return cls(url.partition("://")[2], namespace=namespace)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.with_suffix(".lock").open("w") as lock:
            deadline = time.monotonic() + 0.7
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise UnavailableError("somebody else holds the lock") from None
                    time.sleep(0.001)
            yield

    def _read(self) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            data = b""
        self._store.records, self._store.floors = pickle.loads(data) if data else ({}, {})

    def _write(self) -> None:
        self._put(pickle.dumps((self._store.records, self._store.floors)))

    def _put(self, data: bytes) -> None:
        temporary = self._path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(data)
        temporary.rename(self._path)

    @staticmethod
    def _change(name):
        async def step(self, *arguments, **options):
            with self._locked():
                self._read()
                answer = await getattr(MemoryDriver, name)(self, *arguments, **options)
                self._write()
                return answer

        return step

    @staticmethod
    def _look(name):
        async def step(self, *arguments, **options):
            with self._locked():
                self._read()
            return await getattr(MemoryDriver, name)(self, *arguments, **options)

        return step

    claim, write, append, replace, remove, sweep = map(
        _change, ("claim", "write", "append", "replace", "remove", "sweep")
    )
    read, load, scan = map(_look, ("read", "load", "scan"))


class TornWrites(OneFileDriver):
    """The file is rewritten in place."""

    name = "torn"

    def _put(self, data: bytes) -> None:
        with self._path.open("wb", buffering=0) as file:
            for start in range(0, len(data), 512):
                file.write(data[start : start + 512])

    def _read(self) -> None:
        try:
            super()._read()
        except (EOFError, pickle.UnpicklingError):
            # As a tolerant reader does: what cannot be read is not there.
            self._store.records, self._store.floors = {}, {}


class NoLock(OneFileDriver):
    """Nobody locks: two processes read, change and write side by side."""

    name = "unlocked"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        yield

    def _read(self) -> None:
        super()._read()
        time.sleep(0.0005)


class EarlyAnswers(OneFileDriver):
    """A write is answered when it is in memory; every tenth makes the file."""

    name = "early"
    _pending = 0

    def _read(self) -> None:
        if not self._pending:
            super()._read()

    def _write(self) -> None:
        self._pending = (self._pending + 1) % 10
        if not self._pending:
            super()._write()


class LockFilesStay(OneFileDriver):
    """The lock is a file that its owner makes and removes: whoever is killed leaves it."""

    name = "stuck"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._path.with_suffix(".mutex")
        deadline = time.monotonic() + 0.7
        while True:
            try:
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
                break
            except FileExistsError:
                if time.monotonic() > deadline:
                    raise UnavailableError("somebody else holds the lock") from None
                time.sleep(0.001)
        try:
            yield
        finally:
            lock.unlink()


class StoppedWritersAreNotDeclared(OneFileDriver):
    """A process stopped inside its step holds others up, and the backend says that none does."""

    name = "undeclared"
    capabilities = Capabilities(
        data_survives=frozenset({"process"}),
        fences_survive=frozenset({"process"}),
        reach="host",
        max_message_bytes=64 * 2**20,
    )


DRIVERS: dict[str, type[OneFileDriver]] = {
    driver.name: driver
    for driver in (
        OneFileDriver,
        TornWrites,
        NoLock,
        EarlyAnswers,
        LockFilesStay,
        StoppedWritersAreNotDeclared,
    )
}


@outlast.hookimpl
def outlast_backends() -> list[outlast.BackendInfo]:
    """Lets child processes open these by URL."""
    return [
        outlast.BackendInfo(
            name=name,
            schemes=(name,),
            factory=f"broken_backends.onefile:{driver.__name__}.from_url",
        )
        for name, driver in DRIVERS.items()
    ]


class OneFileHarness(Harness):
    """Opens one of the drivers above, here by its class, in child processes by its URL."""

    def __init__(self, name: str) -> None:
        self._driver = DRIVERS[name]
        self._folder = tempfile.TemporaryDirectory()
        self._path = f"{self._folder.name}/store"
        self.url = f"{name}://{self._path}"

    async def stop(self) -> None:
        self._folder.cleanup()

    async def open_with(self, namespace, **options):
        driver = self._driver(self._path, namespace=namespace)
        return DriverBackend(driver, namespace=namespace, **options)

    async def wipe(self, namespace: str) -> None:
        """The folder goes as a whole."""
