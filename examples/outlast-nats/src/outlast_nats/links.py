"""Connections to a server, each with one request at a time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import APIError

from outlast.errors import OutlastError, UnavailableError
from outlast.heads import moment
from outlast_nats.errors import is_denied, translate, unreachable

ResultT = TypeVar("ResultT")
Request = Callable[[JetStreamContext], Awaitable[ResultT]]

CONNECTIONS = 8
_CLOSING = 1.0
"""Seconds for the end of a connection; a server that does not read would hold it up."""


class Server(NamedTuple):
    """Where to connect to, and as whom.

    Attributes:
        url: Without user and password.
        place: Which bucket where, for people.
        login: Further arguments of ``nats.connect``.
    """

    url: str
    place: str
    login: dict[str, Any]


class Link:
    """One connection. It never reconnects: its owner sees that it is lost, and opens another."""

    def __init__(self) -> None:
        self.client = Client()
        self._useless: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._complaint = ""

    async def connect(self, server: Server, seconds: float) -> None:
        """Connect within so many seconds, or leave nothing behind."""
        try:
            async with asyncio.timeout(seconds):
                await self.client.connect(
                    server.url,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=seconds,  # type: ignore[arg-type]  # any number will do
                    error_cb=self._heard,
                    closed_cb=self._ended,
                    **server.login,
                )
        except Exception as error:
            await self.close()
            raise unreachable(self.client.last_error or error, server.place) from error
        except BaseException:
            await self.close()
            raise

    async def ask(self, request: Request[ResultT], seconds: float) -> ResultT:
        """The answer to a request; an error as soon as it is certain that none will come."""
        js = self.client.jetstream(timeout=seconds)
        # A task of its own: nats-py swallows cancellations, and does not hear of a lost connection.
        asked = asyncio.ensure_future(request(js))
        asked.add_done_callback(_retrieve)
        waiting: list[asyncio.Future[Any]] = [asked, self._useless]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
        finally:
            asked.cancel()
        if self._useless.done():
            raise ConnectionError(self._complaint or "the connection was lost")
        raise TimeoutError(self._complaint or "no answer in time")

    async def close(self) -> None:
        """Close it; harmless if it is closed already."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSING):
                await self.client.close()

    async def _heard(self, error: Exception) -> None:
        self._complaint = str(error)
        if is_denied(error):  # Nothing else tells the one who asked.
            await self._ended()

    async def _ended(self) -> None:
        if not self._useless.done():
            self._useless.set_result(None)


class Links:
    """The connections of one driver.

    A connection whose answer did not come is closed: it might bring that of another request.

    Attributes:
        server: Where they lead to.
        max_payload: Bytes that the server takes as one message; known once one was made.
    """

    def __init__(self, server: Server) -> None:
        """No I/O."""
        self.server = server
        self.max_payload = 0
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._idle: list[Link] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def call(
        self, request: Request[ResultT], deadline: float, *, changes: bool = False
    ) -> ResultT:
        """Send one request, and return its answer.

        Args:
            request: Makes it.
            deadline: The `moment` until which to wait.
            changes: Whether an unanswered request leaves the outcome open.

        Raises:
            APIError: What the server answered, for the caller to read.
            OutlastError: It did not answer.
        """
        try:
            async with asyncio.timeout(deadline - moment()):
                await self._free.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                f"not sent: all connections to {self.server.place} are in use"
            ) from error
        link: Link | None = None
        try:
            link = await self._take(deadline)
            answer = await link.ask(request, deadline - moment())
        except APIError:
            assert link is not None
            self._idle.append(link)
            raise
        except OutlastError:
            raise
        except Exception as error:
            self._drop(link)
            raise translate(error, self.server.place, changes=changes) from error
        except BaseException:
            self._drop(link)
            raise
        else:
            self._idle.append(link)
            return answer
        finally:
            self._free.release()

    async def close(self) -> None:
        """Close all connections; none is in use."""
        await asyncio.gather(*(link.close() for link in self._idle), *self._closing)
        self._idle.clear()

    async def _take(self, deadline: float) -> Link:
        while self._idle:
            link = self._idle.pop()
            if link.client.is_connected:
                return link
            self._drop(link)
        link = Link()
        await link.connect(self.server, deadline - moment())
        self.max_payload = link.client.max_payload
        return link

    def _drop(self, link: Link | None) -> None:
        if link is not None:
            closing = asyncio.get_running_loop().create_task(link.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _retrieve(asked: "asyncio.Future[Any]") -> None:
    """Whoever asked may have gone: what there was to tell is no unhandled error."""
    if not asked.cancelled():
        asked.exception()
