"""The raw drivers of stores without a server."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from outlast.cli.bench.raw import Raw
from outlast.url import parse_url


class RawFile(Raw):
    """Write, fsync, rename, fsync of the directory, in a thread."""

    def __init__(self, url: str) -> None:
        """Work beside the store."""
        super().__init__()
        self._folder = Path(parse_url(url).path) / f".{self.name}"
        self._count = 0

    async def open(self) -> None:
        self._folder.mkdir(parents=True)

    async def write(self, data: bytes) -> None:
        self._count += 1
        await asyncio.to_thread(self._write, str(self._count), data)

    def _write(self, name: str, data: bytes) -> None:
        temporary = self._folder / f".{name}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def fill(self, rows: Sequence[bytes]) -> None:
        self._folder.joinpath("rows").write_bytes(b"".join(rows))
        self._rows = len(rows)

    async def read(self) -> int:
        await asyncio.to_thread(self._folder.joinpath("rows").read_bytes)
        return self._rows

    async def aclose(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._folder)


class RawSqlite(Raw):
    """aiosqlite, an INSERT under ``synchronous=FULL`` in write-ahead mode."""

    def __init__(self, url: str) -> None:
        """Work in a file of its own beside the database."""
        super().__init__()
        path = parse_url(url).path[1:]
        in_memory = path in ("", ":memory:")
        folder = Path(tempfile.gettempdir()) if in_memory else Path(path).absolute().parent
        self._path = folder / f"{self.name}.db"

    async def open(self) -> None:
        self._db: Any = await import_module("aiosqlite").connect(self._path, isolation_level=None)
        await self._db.execute("PRAGMA journal_mode=WAL")
        await self._db.execute("PRAGMA synchronous=FULL")
        await self._db.execute("CREATE TABLE written (id INTEGER PRIMARY KEY, data BLOB)")
        await self._db.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, data BLOB)")

    async def write(self, data: bytes) -> None:
        await self._db.execute("INSERT INTO written (data) VALUES (?)", (data,))

    async def fill(self, rows: Sequence[bytes]) -> None:
        # Row by row, as outlast's come in: the pages are then filled alike.
        for row in rows:
            await self._db.execute("INSERT INTO rows (data) VALUES (?)", (row,))

    async def read(self) -> int:
        return len(await self._db.execute_fetchall("SELECT data FROM rows ORDER BY id"))

    async def aclose(self) -> None:
        await self._db.close()
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._path}{ending}").unlink(missing_ok=True)


__all__ = ["RawFile", "RawSqlite"]
