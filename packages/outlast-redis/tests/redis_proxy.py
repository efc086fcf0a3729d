"""A proxy between clients and a server, for replies that come late or never."""

import asyncio
import contextlib
import socket
import ssl
import struct
from typing import Self


class Proxy:
    """Passes bytes between clients and a server, and can hold replies back or lose them.

    Attributes:
        requests: How often a client sent something that contains ``counted``.
        accepted: How many connections there were.
    """

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self._pass = asyncio.Event()
        self._pass.set()
        self._losing = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.counted = b"EVALSHA"
        self.requests = 0
        self.replies = 0
        self.accepted = 0
        self._clients: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def hold(self) -> None:
        """Keep replies back until `release`."""
        self._pass.clear()

    def release(self) -> None:
        self._pass.set()

    def lose(self, count: int = 1) -> None:
        """Close the connection instead of passing the next replies on."""
        self._losing = count

    def say(self, data: bytes) -> None:
        """Send clients what they did not ask for."""
        for writer in self._clients:
            writer.write(data)

    def reset(self) -> None:
        """Break all connections to clients."""
        for writer in self._clients:
            end: socket.socket = writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        self._clients.add(writer)
        upstream, upstream_writer = await asyncio.open_connection(*self._address)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, upstream_writer))
                group.create_task(self._replies(upstream, writer))
        except* (OSError, EOFError):
            pass
        finally:
            for each in (writer, upstream_writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()
            self._tasks.discard(task)
            self._clients.discard(writer)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.requests += data.count(self.counted)
            writer.write(data)
            await writer.drain()
        raise EOFError

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if data.startswith(b"-NOSCRIPT"):  # Another test made the server forget it.
                writer.write(data)
                continue
            self.replies += 1
            await self._pass.wait()
            if self._losing:
                self._losing -= 1
                break
            writer.write(data)
            await writer.drain()
        raise EOFError
