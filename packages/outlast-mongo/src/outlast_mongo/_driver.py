"""`MongoDriver`: heads and pieces as documents of a MongoDB database."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import pymongo
from pymongo.asynchronous.database import AsyncDatabase

from outlast.driver import Capabilities, sealed_until
from outlast.errors import ClosedError, UnavailableError
from outlast.heads import HeadDriver, Layout, Operation, Shield, moment
from outlast_mongo._durability import Durability
from outlast_mongo._links import DriverName, MotorDatabase, link_of
from outlast_mongo._schema import set_up
from outlast_mongo._store import MongoStore, Place

ResultT = TypeVar("ResultT")

LAYOUT: Final = Layout(
    # A run has no logs: with this, a checkpoint of any usual length is one document.
    run_inline_bytes=256 * 1024,
    task_inline_bytes=16 * 1024,
    # A flush rewrites the newest piece, which costs more than all else of it; but many pieces
    # need index pieces, which cost loads a request.
    merge_bytes=128 * 1024,
)
"""How this backend divides its records; see `outlast.heads.Layout`."""

_PATIENCE: Final = 0.9
"""The part of the timeout that a call uses, so that its answer comes before the caller's end."""

_SHORT: Final = 0.4
"""The same part where a timeout of about a second leaves no more, for what `_SELECTION` says."""

_LEAST: Final = 0.001
_SELECTION: Final = 0.7
"""Seconds by which PyMongo may be late to say that it finds no server: it looks twice a second."""


_FAREWELL: Final = 1.0
"""Seconds for ending sessions at the server, which otherwise ends them itself."""

_begun: Final[ContextVar[float | None]] = ContextVar("_begun", default=None)
"""The deadline of the call whose first attempt has begun."""


def _patience(timeout: float) -> float:
    return min(timeout * _PATIENCE, max(timeout * _SHORT, timeout - _SELECTION))


class MongoDriver(HeadDriver):
    """One document per scope, with its registers and the newest entries of its logs; see
    `HeadDriver`.

    **What survives** (D1). Writes wait for the journals of a majority, and reads return only what a
    majority has: both survive the process, the server and a failover. With another write concern,
    given to the client, ``capabilities`` say what is left of that, and what such reads alone would
    settle is confirmed by a write that changes nothing, with the same write concern.

    **In a failover** a primary that was cut off and has not noticed yet, or one that has just taken
    over, may answer reads with what was true some seconds ago (F4). No mutation and no claim rests
    on that.

    **Unanswered writes** of a claim are settled by reading the head, whose fence tells (F6):
    PyMongo does not repeat them. Without a claim nothing in the head would tell, so for those
    PyMongo's own retries stay on, if the client has them.
    """

    name = "mongodb"
    layout = LAYOUT

    def __init__(
        self,
        *,
        url: str | None = None,
        database: AsyncDatabase[Any] | MotorDatabase | None = None,
        namespace: str = "default",
        timeout: float = 10.0,
        driver: DriverName = "pymongo",
        **options: Any,
    ) -> None:
        """Make a driver; no I/O.

        Args:
            url: Of ``mongodb://`` or ``mongodb+srv://``, for a client that the driver makes and
                closes.
            database: Instead: of a ready client, which stays open.
            namespace: A world of its own within the database (I5).
            timeout: Seconds that one call may take.
            driver: ``"motor"``: for ``url``, which may name it, too, use Motor instead of PyMongo's
                asyncio client.
            **options: Of PyMongo's client, such as ``password``; for ``url`` only.

        Raises:
            ConfigurationError: What was given does not fit, or reads or writes would not keep
                the contract.
        """
        super().__init__(self.layout)
        self._link = link_of(url, database, driver, options)
        self._described = self._link.described
        self._durability = Durability(self._link.settings, self._described)
        self.capabilities: Capabilities = self._durability.capabilities
        self._namespace = namespace
        self._patience = _patience(timeout)
        # A call that waited for its turn began later.
        self._slack = (timeout - self._patience) * _PATIENCE
        self._place: Place | None = None
        self._has_failovers = True
        self._is_closed = False
        self._shield = Shield()

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "default",
        timeout: float = 10.0,
        driver: DriverName = "pymongo",
        **options: Any,
    ) -> "MongoDriver":
        """A driver for a ``mongodb://`` URL; arguments as for the class."""
        return cls(url=url, namespace=namespace, timeout=timeout, driver=driver, **options)

    async def setup(self, *, create: bool) -> None:
        self._check_open()
        if self._place is None:
            self._place = Place(
                await self._link.connect(),
                self._namespace,
                write_concern=self._durability.write_concern,
                read_concern=self._durability.read_concern,
                described=self._described,
                shield=self._shield,
            )
        self._has_failovers = await self._sent(
            set_up(self._place, create=create, hint=self._link.hint), self._patience
        )
        if self._has_failovers:
            self._place.expect_failovers()

    async def hazards(self) -> Sequence[str]:
        return self._durability.hazards(has_failovers=self._has_failovers)

    async def ping(self) -> None:
        await self._sent(self._ready().ping(), self._patience)

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._shield.drain()
            # The client takes leave of the server, and by itself looks for it for half a minute.
            with pymongo.timeout(min(self._patience, _FAREWELL)):
                await self._link.close()

    async def _run(self, operation: Operation[ResultT]) -> ResultT:
        seconds = self._time_left()
        store = MongoStore(self._ready(), moment() + seconds)
        return await self._sent(operation(store), seconds)

    async def _sent(self, call: Coroutine[Any, Any, ResultT], seconds: float) -> ResultT:
        """See requests through, within the time of a call.

        Cancelled itself, PyMongo drops its connection, leaves a socket behind that was being
        connected, and before Python 3.12 may overlook it (github.com/python/cpython/issues/86296).
        """
        in_time = _in_time(call, seconds)
        if sealed_until.get() is not None:
            return await in_time
        return await self._shield.run(in_time)

    def _time_left(self) -> float:
        """Seconds in which the running call must end by itself.

        Raises:
            UnavailableError: So few are left to a repetition that its end would come too late.
        """
        until = sealed_until.get()
        if until is None:
            return self._patience
        is_repetition = _begun.get() == until
        _begun.set(until)
        left = until - asyncio.get_running_loop().time()
        if not is_repetition and left < self._slack:
            # The layer above has less time than the driver was made for.
            return max(_LEAST, _patience(left))
        left -= self._slack
        if left < 0:
            raise UnavailableError(f"{self._described} cannot be reached in the time that is left")
        return max(_LEAST, min(self._patience, left))

    def _ready(self) -> Place:
        self._check_open()
        if self._place is None:
            raise ClosedError("the MongoDB driver is not set up yet")
        return self._place

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the MongoDB driver is closed")


async def _in_time(call: Coroutine[Any, Any, ResultT], seconds: float) -> ResultT:
    with pymongo.timeout(seconds):
        return await call


__all__ = ["LAYOUT", "MongoDriver"]
