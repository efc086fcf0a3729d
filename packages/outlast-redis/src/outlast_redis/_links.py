"""Commands to a server: which connection carries them, and whether they may have arrived.

redis-py's own ``execute_command`` repeats what was sent and tells nobody (R1). Here a command is
written once to a connection of redis-py; what fails before that was certainly not applied.
"""

import abc
import asyncio
import inspect
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import ConnectionError as ConnectionsInUseError
from redis.exceptions import NoScriptError, ResponseError

from outlast_redis._errors import RAISED, translate

Command: TypeAlias = Sequence[bytes | str | int]
Connection: TypeAlias = Any
"""A connection of redis-py, which types them in part only."""


class Lender(Protocol):
    """Where connections come from."""

    async def acquire(self) -> Connection:
        """A connection that is connected and idle."""
        ...

    async def release(self, connection: Connection) -> None:
        """Take it back, connected or not."""
        ...


class OwnConnections:
    """Connections that are made here and closed here.

    Args:
        make: Makes one that is not connected.
        patience: Seconds that connecting may take, the server's greeting included.
    """

    def __init__(self, make: Callable[[], Connection], patience: float) -> None:
        self._make = make
        self._patience = patience
        self._free: deque[Connection] = deque()
        self._all: set[Connection] = set()

    async def acquire(self) -> Connection:
        if self._free:
            connection = self._free.pop()
        else:
            connection = self._make()
            self._all.add(connection)
        try:
            await freshen(connection, self._patience)
        except BaseException:
            await connection.disconnect(nowait=True)
            self._free.append(connection)
            raise
        return connection

    async def release(self, connection: Connection) -> None:
        self._free.append(connection)

    async def aclose(self) -> None:
        """Close all, also those in use."""
        for connection in self._all:
            await connection.disconnect(nowait=True)
        self._all.clear()
        self._free.clear()


class LentConnections:
    """Connections of a pool that somebody else owns."""

    def __init__(self, pool: ConnectionPool, patience: float | None = None) -> None:
        self._pool: Any = pool
        self._patience = patience
        # Before redis-py 5.3 it has to be told what for.
        purpose = inspect.signature(self._pool.get_connection).parameters.get("command_name")
        is_asked = purpose is not None and purpose.default is purpose.empty
        self._purpose = ("EVALSHA",) if is_asked else ()

    async def acquire(self) -> Connection:
        # The client's own attempts to connect may take longer than the call has.
        try:
            async with asyncio.timeout(self._patience):
                connection = await self._pool.get_connection(*self._purpose)
        except TimeoutError as error:
            # A pool that lets others wait for its connections would have let us for longer.
            can_get = getattr(self._pool, "can_get_connection", None)
            if can_get is not None and not can_get():
                raise ConnectionsInUseError("No connection available.") from error
            raise
        try:
            await freshen(connection, self._patience)
        except BaseException:
            await connection.disconnect(nowait=True)
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: Connection) -> None:
        # To its end even if the caller is cancelled: the pool counts what is out.
        await asyncio.shield(self._pool.release(connection))


async def freshen(connection: Connection, patience: float | None = None) -> None:
    """Connect, and connect anew if the server closed the connection while it was idle (C8)."""
    if connection.is_connected:
        # Its name in redis-py 8; before, the other one.
        has_data = getattr(connection, "can_read", None) or connection.can_read_destructive
        try:
            if not (_is_readable(connection) or await has_data()):
                return
        except RAISED:
            pass
        await connection.disconnect(nowait=True)
    async with asyncio.timeout(patience):
        await connection.connect()


def _is_readable(connection: Connection) -> bool:
    """Whether something arrived that nobody asked for; on an idle connection that is its end.

    The event loop may not have seen it yet: it was busy elsewhere.
    """
    writer = getattr(connection, "_writer", None)
    transport = None if writer is None else writer.get_extra_info("socket")
    if transport is None or not hasattr(select, "poll"):  # Windows has none.
        return False
    if transport.fileno() < 0:  # The event loop has seen a reset, and closed it.
        return True
    poll = select.poll()
    poll.register(transport, select.POLLIN)
    return bool(poll.poll(0))


async def exchange(connection: Connection, commands: Sequence[Command]) -> list[Any]:
    """Send commands in one go and return their answers as bytes; refusals are returned, too."""
    answers: list[Any] = []
    try:
        packed = pack(commands)
        before = cancellations()
        await connection.send_packed_command(packed, check_health=False)
        check_cancelled(before)
        for _ in commands:
            try:
                answers.append(await connection.read_response(disable_decoding=True))
            except ResponseError as error:
                answers.append(error)
    except BaseException:
        # An answer that comes late must meet nobody (R2).
        await connection.disconnect(nowait=True)
        raise
    return answers


def cancellations() -> int:
    """How often the running task was cancelled; for `check_cancelled`."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def check_cancelled(before: int) -> None:
    """Raise a cancellation that came after ``before`` was counted, and that redis-py swallowed.

    A client with a socket timeout sends through wait_for(), which does so before Python 3.12 (X1).
    """
    if cancellations() > before:
        raise asyncio.CancelledError


def pack(commands: Sequence[Command]) -> list[bytes]:
    """What is sent for commands; redis-py's own way to it takes twice as long."""
    parts: list[bytes] = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for word in command:
            data = word if type(word) is bytes else str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return [b"".join(parts)]


class Link(abc.ABC):
    """The way to a server or a cluster.

    Args:
        place: The server, for people.
        limit: How many commands may be under way at once.

    Attributes:
        scheme: Of URLs to such a server, without TLS, for advice.
    """

    is_cluster = False
    scheme = "redis"

    def __init__(self, place: str, limit: int) -> None:
        self.place = place
        self._limit = asyncio.Semaphore(limit)

    async def send(self, key: bytes, command: Command) -> Any:
        """The answer to one command on ``key``'s slot.

        Raises:
            OutlastError: What went wrong; a `ResponseError` with NOSCRIPT is returned instead.
        """
        return (await self.send_all([(key, command)]))[0]

    @abc.abstractmethod
    async def send_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Any]:
        """The answers to several commands, each on its key's slot; no atomicity among them."""

    @abc.abstractmethod
    async def ask_all(self, command: Command) -> list[Any]:
        """The answer of each server that holds data."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close what was opened here."""

    async def on(self, lender: Lender, place: str, commands: Sequence[Command]) -> list[Any]:
        """The answers of one server."""
        async with self._limit:
            before = cancellations()
            try:
                connection = await lender.acquire()
            except RAISED as error:
                raise translate(error, place, sent=False, scheme=self.scheme) from error
            try:
                check_cancelled(before)  # It may have greeted the server on the way.
                return await exchange(connection, commands)
            except RAISED as error:
                raise translate(error, place, sent=True, scheme=self.scheme) from error
            finally:
                await lender.release(connection)

    def checked(self, answers: list[Any], place: str) -> list[Any]:
        """The answers, if none is a refusal other than NOSCRIPT."""
        for answer in answers:
            if isinstance(answer, ResponseError) and not is_noscript(answer):
                raise translate(answer, place, sent=True, scheme=self.scheme) from answer
        return answers


class ServerLink(Link):
    """The way to a single server."""

    def __init__(
        self,
        lender: Lender,
        place: str,
        limit: int,
        close: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(place, limit)
        self._lender = lender
        self._close = close

    async def send_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Any]:
        answers = await self.on(self._lender, self.place, [command for _, command in commands])
        return self.checked(answers, self.place)

    async def ask_all(self, command: Command) -> list[Any]:
        return [await self.send(b"", command)]

    async def aclose(self) -> None:
        if self._close is not None:
            await self._close()


def is_noscript(answer: object) -> bool:
    """Whether the server does not know the script, and did nothing."""
    return isinstance(answer, NoScriptError)


__all__ = [
    "Command",
    "Connection",
    "LentConnections",
    "Link",
    "OwnConnections",
    "ServerLink",
    "exchange",
    "freshen",
    "is_noscript",
]
