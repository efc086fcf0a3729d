"""Memory, a directory and an SQLite file, read with the standard library and the core alone."""

import asyncio
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from outlast.backends.memory import MemoryDriver
from outlast.contracts import DriverBackend
from outlast.errors import ConfigurationError
from outlast_contract.harness import UrlHarness


class MemoryHarness(UrlHarness):
    """A shared memory store of a random name."""

    def __init__(self) -> None:
        """Choose the name."""
        super().__init__(f"memory://contract-{secrets.token_hex(8)}")

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """The records of the namespace."""
        backend = await self.open(namespace)
        assert isinstance(backend, DriverBackend)
        assert isinstance(backend.driver, MemoryDriver)
        found: list[tuple[str, bytes]] = []
        for (space, scope), record in backend.driver.store.records.items():
            if space != namespace:
                continue
            name = f"{scope.kind}/{scope.id}"
            found.append((name, repr((record.fence, record.index)).encode()))
            for slot, register in record.registers.items():
                found.append((f"{name}/{slot}", register.data or b""))
            for log, entries in record.logs.items():
                found += [(f"{name}/{log}/{entry}", data) for entry, data in entries.items()]
        return found


class FileHarness(UrlHarness):
    """A directory, read with the standard library."""

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """All files of the directory, those of other namespaces too."""
        root = Path(unquote(urlsplit(self.url or "").path))
        return await asyncio.to_thread(lambda: list(_files(root)))

    async def wipe(self, namespace: str) -> None:
        """The namespace's folder goes as a whole."""
        root = Path(unquote(urlsplit(self.url or "").path))
        folder = root / f"ns-{sha256(namespace.encode()).hexdigest()}"
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    # `walk` skips what a neighbour removes meanwhile; `rglob` raises.
    found = [
        Path(base) / name for base, folders, files in os.walk(root) for name in folders + files
    ]
    for path in sorted(found):
        name = str(path.relative_to(root))
        try:
            yield name, path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:  # a neighbour's, removed in between
            continue


class SqliteHarness(UrlHarness):
    """An SQLite file, read with the standard library."""

    async def start(self) -> None:
        """Refuse a database in memory: its clients would not meet."""
        path = (self.url or "").partition("://")[2].partition("?")[0]
        if path in ("", "/", "/:memory:"):
            raise ConfigurationError(
                "an SQLite database in memory belongs to one client; the suite needs a file, such "
                "as sqlite:///store.db"
            )

    async def versions(self) -> Mapping[str, str]:
        """The library's, which Python brings."""
        return {"sqlite library": sqlite3.sqlite_version}

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """All rows of all tables, those of other namespaces too."""
        return await asyncio.to_thread(lambda: list(_rows(self._path)))

    async def wipe(self, namespace: str) -> None:
        """Remove everything, what outlives a sweep included."""
        await super().wipe(namespace)
        await asyncio.to_thread(_remove_floor, self._path, namespace)

    @property
    def _path(self) -> str:
        path = (self.url or "").partition("://")[2].partition("?")[0].removeprefix("/")
        return unquote(path)


def _remove_floor(path: str, namespace: str) -> None:
    connection = sqlite3.connect(path, timeout=10)
    try:
        with connection:
            statement = "DELETE FROM outlast_floor WHERE namespace = ?"
            connection.execute(statement, (namespace.encode(),))
    finally:
        connection.close()


def _rows(path: str) -> Iterator[tuple[str, bytes]]:
    connection = sqlite3.connect(path, timeout=10)
    try:
        connection.text_factory = bytes
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in listed.fetchall():
            quoted = table.decode().replace('"', '""')
            for number, row in enumerate(connection.execute(f'SELECT * FROM "{quoted}"')):  # noqa: S608
                parts = [
                    value if isinstance(value, bytes) else str(value).encode() for value in row
                ]
                yield f"{table.decode()}/{number}", b"\x1f".join(parts)
    finally:
        connection.close()


__all__ = ["FileHarness", "MemoryHarness", "SqliteHarness"]
