"""A TCP proxy that understands what it passes on well enough to spoil one chosen exchange."""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self

from outlast_contract.faults.wires import WIRES, Address, Piece, Wire
from outlast_contract.recording import fault_name, injecting

HOST = "127.0.0.1"
_CAN_SHARE = hasattr(socket, "SO_REUSEPORT")
_CHUNK = 1 << 18


class Exchange:
    """One request of the application and its reply, in the hands of a fault.

    Attributes:
        request: As the client sent it.
        reply: As the server answered it, once `receive` has returned.
    """

    def __init__(self, link: "_Link", request: bytes) -> None:
        """For the proxy."""
        self._link = link
        self._delivered = False
        self.request: bytes = request
        self.reply: bytes = b""
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answer.add_done_callback(_retrieve)

    async def deliver(self, request: bytes | None = None, *, until: int | None = None) -> None:
        """Send the request to the server, another one instead, or only its beginning."""
        self._delivered = True
        if until is None:
            self._link.due.append(self._answer)
        await self._link.to_server((self.request if request is None else request)[:until])

    async def receive(self) -> bytes:
        """The server's reply.

        Raises:
            ConnectionError: The server closed the connection before it answered.
        """
        self.reply = await asyncio.shield(self._answer)
        return self.reply

    async def answer(self, reply: bytes | None = None) -> None:
        """Send the client the server's reply, or another one."""
        await self._link.to_client(self.reply if reply is None else reply)

    async def client_left(self) -> None:
        """Wait until the client has closed the connection."""
        await self._link.client_left.wait()

    def cut(self) -> None:
        """Close the connection to the client."""
        self._link.close_client()

    def reset(self) -> None:
        """Break the connection to the client: it is told that it was reset."""
        self._link.close_client(reset=True)

    async def more(self, data: bytes) -> None:
        """For the proxy: the request goes on."""
        if self._delivered:
            await self._link.to_server(data)
        else:
            self.request += data


Fault = Callable[[Exchange], Awaitable[None]]
"""What becomes of an exchange; when it returns, the next request of the connection has its turn."""


async def pass_on(exchange: Exchange) -> None:
    """No fault."""
    await exchange.deliver()
    await exchange.receive()
    await exchange.answer()


class Shot:
    """A fault and the calls that it is aimed at; made by `Script.arm`.

    Attributes:
        seen: How many calls could have been the one.
        hits: The exchanges that it struck.
    """

    def __init__(
        self, fault: Fault, at: int, times: int | None, matches: Callable[[bytes], bool]
    ) -> None:
        """For `Script`."""
        self.fault = fault
        self._at, self._times, self._matches = at, times, matches
        self.seen: int = 0
        self.hits: list[Exchange] = []
        self._struck = asyncio.Event()

    def takes(self, exchange: Exchange) -> bool:
        """Whether it strikes this exchange, which was not seen before."""
        if not self._matches(exchange.request):
            return False
        self.seen += 1
        if self.seen < self._at or (self._times is not None and len(self.hits) >= self._times):
            return False
        self.hits.append(exchange)
        self._struck.set()
        return True

    async def struck(self) -> None:
        """Wait until it has struck."""
        await self._struck.wait()


class Script:
    """What is to go wrong; proxies of one store share one.

    Attributes:
        calls: How many requests of the application came by.
        asked: How often it waited to be told that it may send the rest of one.
    """

    def __init__(self) -> None:
        self.calls: int = 0
        self.asked: int = 0
        self._shots: list[Shot] = []

    def arm(
        self,
        fault: Fault,
        *,
        at: int = 1,
        times: int | None = 1,
        matches: bytes | Callable[[bytes], bool] = b"",
    ) -> Shot:
        """Aim at one of the next calls.

        Args:
            fault: What happens to it.
            at: Which of those that match, from 1.
            times: How many in a row from there; ``None``: all.
            matches: What the request contains, or a test of its bytes.
        """
        if isinstance(matches, bytes):
            part = matches
            matches = lambda request: part in request  # noqa: E731 - one of two tests
        shot = Shot(fault, at, times, matches)
        self._shots.append(shot)
        return shot

    def disarm(self) -> None:
        """Let everything pass from now on; what was struck already stays so."""
        self._shots.clear()

    def choose(self, exchange: Exchange) -> Fault:
        """For the proxy: what becomes of an exchange. The first shot that takes it decides."""
        self.calls += 1
        taken = [shot for shot in self._shots if shot.takes(exchange)]
        return taken[0].fault if taken else pass_on


class Proxy:
    """Stands before one address of a server; ``async with Proxy(address, "redis") as proxy:``.

    Attributes:
        target: Where the server is.
        script: What goes wrong.
        accepted: How many connections were made so far.
        most: How many were open at once.
        moved: Addresses that servers tell their clients, as those of a cluster do, and the proxies
            that stand before them.
        is_deaf: Whether new connections are accepted and then left alone.
    """

    def __init__(self, target: Address, wire: str = "turns", script: Script | None = None) -> None:
        """Make a proxy; nothing is opened yet.

        Args:
            target: Host and port of the server.
            wire: Its protocol, one of `WIRES`.
            script: To share one with other proxies.
        """
        self.target = target
        self.script: Script = script or Script()
        self.accepted: int = 0
        self.most: int = 0
        self.moved: Mapping[Address, Address] = {}
        self.is_deaf: bool = False
        self._wire = WIRES[wire]
        self._server: asyncio.Server | None = None
        self._place: socket.socket | None = None
        self._links: set[_Link] = set()
        self._port = 0

    @property
    def address(self) -> Address:
        """Where clients connect to."""
        return HOST, self._port

    @property
    def connections(self) -> int:
        """How many connections clients hold open."""
        return sum(not link.client_left.is_set() for link in self._links)

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def accept(self) -> None:
        """Listen, at the same port as before if it did once."""
        if self._place is None:
            self._place = _place(self._port)
            self._port = self._place.getsockname()[1]
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, HOST, self._port, reuse_port=_CAN_SHARE or None
            )

    async def refuse(self) -> None:
        """Let nobody connect, as if the server were gone; open connections are broken.

        Nor may anybody else listen there, which would be taken for the server that came back.
        """
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.break_all(reset=True)

    async def break_all(self, *, reset: bool = False) -> None:
        """Close all connections, on both sides, whatever is under way."""
        links = tuple(self._links)
        for link in links:
            link.abandon(reset=reset)
        await asyncio.gather(*(link.ended.wait() for link in links))

    async def aclose(self) -> None:
        """Stop listening and break what is open; idempotent."""
        await self.refuse()
        place, self._place = self._place, None
        if place is not None:
            place.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(self, self._wire(), reader, writer)
        self._links.add(link)
        self.most = max(self.most, self.connections)
        try:
            await link.run()
        finally:
            self._links.discard(link)


def _place(port: int) -> socket.socket:
    """A socket that holds a port, any if it is 0, for those of this user that share it.

    Where ports cannot be shared, it only finds one.
    """
    place = socket.socket()
    try:
        if _CAN_SHARE:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        place.bind((HOST, port))
    except OSError:
        place.close()
        raise
    return place


class _Link:
    """One client's connection and the one behind it."""

    def __init__(
        self, proxy: Proxy, wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy, self._wire = proxy, wire
        self._reader, self._writer = reader, writer
        self._server_writer: asyncio.StreamWriter | None = None
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._current: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self.due: deque[asyncio.Future[bytes] | None] = deque()
        """Who waits for the next replies; ``None``: they are passed on at once."""
        self.client_left: asyncio.Event = asyncio.Event()
        self._has_server_left = False
        self.ended: asyncio.Event = asyncio.Event()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        pumps: list[asyncio.Task[None]] = []
        try:
            if self._proxy.is_deaf:
                while await self._reader.read(_CHUNK):
                    pass
                return
            there, self._server_writer = await asyncio.open_connection(*self._proxy.target)
            pumps += [
                asyncio.ensure_future(self._hear_client()),
                asyncio.ensure_future(self._hear_server(there)),
            ]
            while (piece := await self._pieces.get()) is not None:
                await self._handle(piece)
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, or the proxy breaks the connection
        finally:
            for pump in pumps:
                pump.cancel()
            self.close_client()
            if self._server_writer is not None:
                self._server_writer.transport.abort()
            self.ended.set()

    async def _handle(self, piece: Piece) -> None:
        if piece.kind == "call":
            self._current = exchange = Exchange(self, piece.data)
            try:
                fault = self._proxy.script.choose(exchange)
                if fault is pass_on:
                    await fault(exchange)
                else:
                    with injecting(fault_name(fault), self._proxy.script):
                        await fault(exchange)
            finally:
                self._current = None
            return
        if piece.kind == "setup" and self._wire.is_established:
            self.due.append(None)
        await self.to_server(piece.data)

    async def _hear_client(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._reader.read(_CHUNK):
                pieces = self._wire.requests(data)
                if not pieces and (interim := self._wire.interim(data)):
                    self._proxy.script.asked += 1
                    await self.to_client(interim)
                for piece in pieces:
                    if piece.kind == "rest" and self._current is not None:
                        await self._current.more(piece.data)
                    else:
                        self._pieces.put_nowait(piece)
        self.client_left.set()
        self._pieces.put_nowait(None)

    async def _hear_server(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                for reply in self._wire.replies(data):
                    await self._sort(self._wire.translated(reply, self._proxy.moved))
        self._has_server_left = True
        rest = self._wire.rest()
        if rest:
            await self._sort(rest)
        for waiting in self.due:
            if waiting is not None and not waiting.done():
                waiting.set_exception(ConnectionError("the server closed the connection"))
        self._pieces.put_nowait(None)

    async def _sort(self, reply: bytes) -> None:
        waiting = None
        if not self._wire.is_unasked(reply) and self.due:
            waiting = self.due.popleft()
        if waiting is None:
            await self.to_client(reply)
        elif not waiting.done():
            waiting.set_result(reply)

    async def to_server(self, data: bytes) -> None:
        assert self._server_writer is not None
        if self._has_server_left:
            raise ConnectionResetError("the server has closed the connection")
        self._server_writer.write(data)
        await self._server_writer.drain()

    async def to_client(self, data: bytes) -> None:
        if not self.client_left.is_set():
            with contextlib.suppress(OSError):
                self._writer.write(data)
                await self._writer.drain()

    def close_client(self, *, reset: bool = False) -> None:
        self.client_left.set()
        if reset and (connection := self._writer.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._writer.transport.abort()
            return
        self._writer.close()

    def abandon(self, *, reset: bool) -> None:
        """Give both connections up."""
        self.close_client(reset=reset)
        if self._task is not None:
            self._task.cancel()
        else:
            self.ended.set()


def _retrieve(future: asyncio.Future[bytes]) -> None:
    if not future.cancelled():
        future.exception()


__all__ = ["HOST", "Address", "Exchange", "Fault", "Proxy", "Script", "Shot", "pass_on"]
