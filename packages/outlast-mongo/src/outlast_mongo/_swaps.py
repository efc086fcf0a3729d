"""Conditional replacements of heads; those that have to wait anyway go together in one command."""

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context
from itertools import islice
from typing import Any, Final, NamedTuple

import pymongo
from pymongo import WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure, PyMongoError, WriteConcernError

from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast.heads import Shield, moment

Document = dict[str, Any]

AT_ONCE: Final = 4
"""So many commands may be under way before another swap waits for the end of one."""

_LONGEST_WAIT: Final = 0.02
"""Seconds after which those that wait are sent whatever is under way."""

_LEAST: Final = 0.001
"""Seconds for a command: PyMongo takes 0 for no limit."""

_MOST: Final = 128
_MOST_BYTES: Final = 2 * 2**20
"""Of heads in one command: others wait for the whole of it."""

_NO_MATCH: Final = 66
"""The code with which the server refuses to give a new document another id than was asked for."""


class Swap(NamedTuple):
    """One replacement.

    Attributes:
        id: Of the document.
        token: The document must have it.
        document: All fields of the new one, but its id.
        size: In bytes, about.
        until: The `moment` at which its caller gives up.
    """

    id: str
    token: bytes
    document: Document
    size: int
    until: float


Outcome = bool | Exception
"""Whether the document had the token, or what became of the swap instead."""


class Swaps:
    """Sends swaps whose outcome can be found out afterwards: the client library repeats none.

    A swap is sent at once, by itself, unless several commands are under way. Then it waits for the
    first of them to end, and goes with all others that wait: a command costs the client and the
    server many times as much as a swap in it. What they share is the request and nothing else: each
    has its own outcome, and its own end.
    """

    def __init__(
        self,
        database: AsyncDatabase[Document],
        collection: str,
        write_concern: WriteConcern,
        shield: Shield,
    ) -> None:
        """Nothing is under way.

        Args:
            database: Where.
            collection: Of the documents.
            write_concern: For every swap.
            shield: Keeps commands that belong to no caller until they end.
        """
        self._database = database
        self._collection = collection
        self._concern = write_concern.document
        # As PyMongo does: the deadline of the call counts.
        self._concern.pop("wtimeout", None)
        self._shield = shield
        self._under_way = 0
        self._waiting: dict[asyncio.Future[Outcome], Swap] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, swap: Swap) -> bool:
        """Replace a document if it has the token; whether it had.

        Raises:
            PyMongoError: As every request does.
            OutcomeUnknownError: The time is over.
            UnavailableError: The time was over before it was sent.
        """
        if self._under_way < AT_ONCE and not self._waiting:
            self._under_way += 1
            try:
                (outcome,) = await self._sent([swap])
            finally:
                self._ended()
        else:
            outcome = await self._together(swap)
        if isinstance(outcome, Exception):
            # Others may be told the same one, each with a way of its own.
            raise outcome.with_traceback(None)
        return outcome

    async def _together(self, swap: Swap) -> Outcome:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
        self._waiting[done] = swap
        if self._timer is None:
            self._timer = loop.call_later(_LONGEST_WAIT, self._send_waiting)
        try:
            async with asyncio.timeout(swap.until - moment()):
                return await done
        except TimeoutError:
            if done in self._waiting:
                raise UnavailableError("not sent: others were under way all the time") from None
            raise OutcomeUnknownError("it went unanswered with others in one command") from None
        finally:
            self._waiting.pop(done, None)

    def _ended(self) -> None:
        self._under_way -= 1
        if self._waiting:
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Begin a command with those that wait; several, if one cannot take them all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while batch := self._take():
            self._under_way += 1
            # In a context of its own: the deadline of whoever happens to run here is not theirs.
            self._shield.start(self._sent_for(batch), context=Context())
            if self._under_way >= AT_ONCE:
                break
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_LONGEST_WAIT, self._send_waiting)

    def _take(self) -> dict[asyncio.Future[Outcome], Swap]:
        """Of those that wait, the first that go into one command."""
        batch: dict[asyncio.Future[Outcome], Swap] = {}
        size = 0
        for done, swap in islice(self._waiting.items(), _MOST):
            size += swap.size
            if batch and size > _MOST_BYTES:
                break
            batch[done] = swap
        for done in batch:
            del self._waiting[done]
        return batch

    async def _sent_for(self, batch: Mapping[asyncio.Future[Outcome], Swap]) -> None:
        swaps = list(batch.values())
        outcomes: Sequence[Outcome]
        try:
            left = max(swap.until for swap in swaps) - moment()
            with pymongo.timeout(max(_LEAST, left)):
                outcomes = await self._sent(swaps)
        except Exception as error:  # noqa: BLE001 - each who waits raises it
            outcomes = [error] * len(swaps)
        finally:
            self._ended()
        for done, outcome in zip(batch, outcomes, strict=True):
            if not done.done():
                done.set_result(outcome)

    async def _sent(self, swaps: Sequence[Swap]) -> Sequence[Outcome]:
        statement = _alone if len(swaps) == 1 else _among_others
        answer: Document = await self._database.command(
            {
                "update": self._collection,
                "updates": [statement(swap) for swap in swaps],
                "ordered": False,
                "writeConcern": self._concern,
            }
        )
        return _outcomes(answer, len(swaps))


def _alone(swap: Swap) -> Document:
    """One whose outcome the number of replaced documents tells."""
    return {"q": {"_id": swap.id, "token": swap.token}, "u": swap.document}


def _among_others(swap: Swap) -> Document:
    """One that fails if there is no such document, since the number would not tell which it was.

    The server would have to make one, and that cannot be: no id is an array, and none is another
    than the filter's.
    """
    return {
        "q": {"_id": swap.id, "token": swap.token},
        "u": {"$set": swap.document, "$setOnInsert": {"_id": []}},
        "upsert": True,
    }


def _outcomes(answer: Document, count: int) -> Sequence[Outcome]:
    failed: dict[int, Document] = {error["index"]: error for error in answer.get("writeErrors", ())}
    replaced: int = answer["n"]
    done: Outcome = True
    if "writeConcernError" in answer:
        error = answer["writeConcernError"]
        done = WriteConcernError(error.get("errmsg", ""), error.get("code"), error)
    if replaced + len(failed) < count:
        # Only one that was alone fails to match without an error.
        done = count > 1 and PyMongoError("the server stopped halfway through several updates")
    return [_failure(failed[place]) if place in failed else done for place in range(count)]


def _failure(error: Document) -> Outcome:
    code = error.get("code")
    return code != _NO_MATCH and OperationFailure(error.get("errmsg", ""), code, error)


__all__ = ["AT_ONCE", "Document", "Swap", "Swaps"]
