"""What the tests of this distribution share: URLs of servers, a proxy, a look at commands."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pymongo
import pytest
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent
from pymongo.monitoring import CommandSucceededEvent as Succeeded

from outlast.driver import Fence, StoredFence
from outlast_contract.servers import Server, ServerUnavailable
from outlast_contract.stopwatch import Stopwatch
from outlast_mongo import MongoBackend, MongoDriver
from outlast_mongo._driver import _PATIENCE, _patience

HOST = "127.0.0.1"

Open = Callable[..., Awaitable[MongoDriver]]
"""The fixture ``open_driver``: ``await open_driver(url, namespace=, create=, timeout=, driver=)``.
"""


Start = Callable[..., Server]
"""The fixture ``start``: ``start(kind, *arguments)``."""


def server_of(make: Callable[[], Server]) -> Server:
    """Skip the test where there is no server; where one is required, that is an error already."""
    try:
        return make()
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")


def url_of(server: Server, name: str, **options: object) -> str:
    """The URL of a database of a server."""
    parts = urlsplit(server.url)
    return urlunsplit(parts._replace(path=f"/{name}", query=_joined(parts.query, options)))


def node_url(server: Server, node: int = 0, name: str = "", **options: object) -> str:
    """The URL of one node of a server, alone."""
    host, port = server.addresses[node]
    query = _joined("", {"directConnection": "true", **options})
    return f"mongodb://{host}:{port}/{name}?{query}"


def _joined(query: str, options: Mapping[str, object]) -> str:
    given = [f"{name}={value}" for name, value in options.items()]
    return "&".join([*filter(None, [query]), *given])


def admin(server: Server, command: dict[str, Any], node: int = 0) -> dict[str, Any]:
    """A command to one node."""
    with pymongo.MongoClient[dict[str, Any]](node_url(server, node)) as client:
        return client.admin.command(command)


def primary(server: Server) -> int:
    """Which node is the primary; waits for one."""
    found: list[int] = []

    def look() -> bool:
        for node in range(len(server.addresses)):
            with contextlib.suppress(pymongo.errors.ConnectionFailure):
                if admin(server, {"hello": 1}, node)["isWritablePrimary"]:
                    found.append(node)
        return bool(found)

    wait_until(look)
    return found[0]


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for a condition of another process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


class Commands(CommandListener):
    """The names of the commands that a client sent, how sure they are and how long they may take.

    Attributes:
        concerns: The levels of those that read.
        written: What those that write wait for.
        limits: Milliseconds, of all of them.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.concerns: list[str] = []
        self.written: list[Mapping[str, Any]] = []
        self.limits: list[int] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.names.append(event.command_name)
        if "readConcern" in event.command:
            self.concerns.append(event.command["readConcern"]["level"])
        if event.command_name in ("insert", "update", "delete"):
            self.written.append(event.command.get("writeConcern", {}))
        self.limits.append(event.command.get("maxTimeMS", 0))

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
        self._holds = 0
        self._held = b""
        self._release = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    def lose_answer(self, pattern: bytes) -> None:
        """Deliver the next request that holds ``pattern``, then cut before its answer arrives."""
        self._pattern = pattern

    @contextmanager
    def holding(self, pattern: bytes, count: int) -> Iterator[Callable[[], Awaitable[None]]]:
        """Deliver so many requests that hold ``pattern`` only afterwards.

        Yields what waits until all of them are held.
        """
        self._held, self._holds = pattern, count
        self._release.clear()

        async def all_held() -> None:
            while self._holds:
                await asyncio.sleep(0.01)

        try:
            yield all_held
        finally:
            self._held = b""
            self._release.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await self.cut()  # Since Python 3.12 a server waits for its connections.
            await server.wait_closed()

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
                if self._holds and self._held and self._held in data:
                    self._holds -= 1
                    await self._release.wait()
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


def hurry(opened: MongoDriver | MongoBackend, timeout: float) -> None:
    """Give each call less time from now on than opening had."""
    driver = opened
    if isinstance(opened, MongoBackend):
        opened._timeout = opened._calls._timeout = timeout
        driver = opened.driver
    assert isinstance(driver, MongoDriver)
    driver._patience = _patience(timeout)
    driver._slack = (timeout - driver._patience) * _PATIENCE


def was_cut_short(error: BaseException, watch: Stopwatch) -> bool:
    """Whether a call could say no more than that its time is over: the process did not run."""
    return watch.late > 0.3 and "no answer within" in str(error)


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
