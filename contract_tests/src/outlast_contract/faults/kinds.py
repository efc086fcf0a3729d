"""The faults: what becomes of the one exchange that a `Shot` strikes."""

import asyncio
from typing import Any, Final

from outlast_contract.faults.proxy import Exchange, Fault


async def cut(exchange: Exchange) -> None:
    """The connection is closed, and the server never sees the request."""
    exchange.cut()


async def reset(exchange: Exchange) -> None:
    """The connection is reset, and the server never sees the request."""
    exchange.reset()


async def cut_short(exchange: Exchange) -> None:
    """The server sees the first half of the request, then the connection is closed."""
    await exchange.deliver(until=len(exchange.request) // 2)
    exchange.cut()


async def lose_reply(exchange: Exchange) -> None:
    """The server does it; instead of the reply the client sees the connection closed."""
    await exchange.deliver()
    await exchange.receive()
    exchange.cut()


async def reset_reply(exchange: Exchange) -> None:
    """The server does it; instead of the reply the client sees the connection reset."""
    await exchange.deliver()
    await exchange.receive()
    exchange.reset()


class Truncate:
    """The server does it; of the reply only a part arrives, then the connection is closed."""

    def __init__(self, part: float) -> None:
        """Let so much of the reply through: 0 is one byte, 0.5 half, 1 all but the last byte."""
        self._part = part

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.deliver()
        reply = await exchange.receive()
        await exchange.answer(reply[: min(max(1, int(len(reply) * self._part)), len(reply) - 1)])
        exchange.cut()


class Delay:
    """Everything arrives, late."""

    def __init__(self, *, request: float = 0.0, reply: float = 0.0) -> None:
        """Wait so many seconds before the request, and before the reply, is passed on."""
        self._request, self._reply = request, reply

    async def __call__(self, exchange: Exchange) -> None:
        await asyncio.sleep(self._request)
        await exchange.deliver()
        await exchange.receive()
        await asyncio.sleep(self._reply)
        await exchange.answer()


class Slow:
    """Request and reply arrive in small pieces."""

    def __init__(self, *, pieces: int = 8, seconds: float = 0.05) -> None:
        """Cut each into so many pieces, which take so long altogether."""
        self._pieces, self._pause = pieces, seconds / pieces

    async def __call__(self, exchange: Exchange) -> None:
        request, *rest = self._cut(exchange.request)
        await exchange.deliver(request)
        for piece in rest:
            await asyncio.sleep(self._pause)
            await exchange.more(piece)
        for piece in self._cut(await exchange.receive()):
            await exchange.answer(piece)
            await asyncio.sleep(self._pause)

    def _cut(self, data: bytes) -> list[bytes]:
        size = len(data) // self._pieces + 1
        return [data[start : start + size] for start in range(0, len(data), size)]


class Trickle:
    """The server does it; the reply arrives a byte at a time, and never to its end."""

    def __init__(self, *, seconds: float = 0.1) -> None:
        """Pause so long before each byte."""
        self._pause = seconds

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.deliver()
        reply = await exchange.receive()
        left = asyncio.ensure_future(exchange.client_left())
        try:
            for position in range(len(reply) - 1):
                await exchange.answer(reply[position : position + 1])
                if (await asyncio.wait([left], timeout=self._pause))[0]:
                    return
            await left
        finally:
            left.cancel()


class Hold:
    """The request does not go on before it is released: by then its caller may have given up.

    Attributes:
        reply: What the server answered in the end.
    """

    def __init__(self, *, delivered: bool = False) -> None:
        """Hold the request; with ``delivered`` only its reply."""
        self._delivered = delivered
        self._arrived = asyncio.Event()
        self._released = asyncio.Event()
        self._over = asyncio.Event()
        self.reply: bytes = b""

    async def __call__(self, exchange: Exchange) -> None:
        try:
            if self._delivered:
                await exchange.deliver()
                await exchange.receive()
            self._arrived.set()
            await self._released.wait()
            if not self._delivered:
                await exchange.deliver()
            self.reply = await exchange.receive()
            await exchange.answer()
        finally:
            self._arrived.set()
            self._over.set()

    @property
    def has_arrived(self) -> bool:
        """Whether something is or was held."""
        return self._arrived.is_set()

    async def arrived(self) -> None:
        """Wait until something is held."""
        await self._arrived.wait()

    async def arrived_or(self, other: "asyncio.Future[Any]") -> None:
        """Wait until something is held, or something else has ended, which goes on otherwise."""
        arrived = asyncio.ensure_future(self.arrived())
        await asyncio.wait([arrived, other], return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()
        await asyncio.wait([arrived])

    async def release(self) -> None:
        """Let it go on, and wait until the server has answered."""
        self._released.set()
        await self._over.wait()


class BlackHole:
    """Nothing comes back, and the connection stays open."""

    def __init__(self, *, delivered: bool) -> None:
        """Swallow the reply; without ``delivered`` the request, too."""
        self._delivered = delivered

    async def __call__(self, exchange: Exchange) -> None:
        if self._delivered:
            await exchange.deliver()
            await exchange.receive()
        await exchange.client_left()


BROKEN: Final[dict[str, Fault]] = {
    "cut": cut,
    "reset": reset,
    "cut short": cut_short,
    "reply lost": lose_reply,
    "reply reset": reset_reply,
    "reply cut behind its first byte": Truncate(0),
    "reply cut in half": Truncate(0.5),
    "reply cut before its last byte": Truncate(1),
}
"""Faults that end the connection, by name."""

__all__ = [
    "BROKEN",
    "BlackHole",
    "Delay",
    "Hold",
    "Slow",
    "Trickle",
    "Truncate",
    "cut",
    "cut_short",
    "lose_reply",
    "reset",
    "reset_reply",
]
