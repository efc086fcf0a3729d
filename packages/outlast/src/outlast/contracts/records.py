"""Records through a driver: encoded, sized, claimed, checked, listed; for both contracts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from outlast.codec import Codec
from outlast.contracts.calls import Calls
from outlast.contracts.claim import Claim
from outlast.driver import (
    PRIMARY,
    Decoding,
    Driver,
    Fence,
    Item,
    Scope,
    ScopeKind,
    StoredFence,
    Value,
    Where,
    admit,
)
from outlast.errors import CorruptDataError, FencedError, PayloadTooLargeError
from outlast.models import Record
from outlast.retry import backoff
from outlast.values import check_instant

RecordT = TypeVar("RecordT", bound=Record)
Ask = Callable[[Callable[[], Awaitable[bool]]], Awaitable[bool]]

_PAGE = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class DecodingOf(Decoding[list[RecordT]]):
    """Decodes records of one kind."""

    def __init__(self, codec: Codec, kind: type[RecordT]) -> None:
        """Decode by a codec."""
        self.header: bytes = codec.header(kind)
        self._codec = codec
        self._kind = kind

    def __call__(self, data: Iterable[bytes], /) -> list[RecordT]:
        return self._codec.decode_many(data, self._kind)

    def decode_rest(self, rest: Iterable[bytes | None], /) -> list[RecordT] | None:
        return self._codec.decode_payloads(rest, self._kind)


class Records:
    """What the two contracts need of one backend object."""

    def __init__(
        self,
        driver: Driver,
        calls: Calls,
        codec: Codec,
        *,
        checkpoint_ttl: timedelta | None,
        clock: Callable[[], datetime],
    ) -> None:
        """Tie a driver to its calls, codec and clock."""
        self.driver = driver
        self.calls = calls
        self.codec = codec
        self.now = clock
        self._ttl = None if checkpoint_ttl is None else checkpoint_ttl.total_seconds()

    def encode(self, record: Record) -> bytes:
        """The stored bytes of a checked record.

        Raises:
            PayloadTooLargeError: The payload is over the driver's limit (V5).
        """
        data, size = self.codec.encode(record)
        # Asked for each time: a driver may learn it from its server when it is opened.
        limit = self.driver.capabilities.max_message_bytes
        if size > limit:
            raise PayloadTooLargeError(
                f"the {type(record).__name__} takes {size:,} bytes encoded; "
                f"the backend's limit is {limit:,}"
            )
        return data

    def decode(self, data: bytes, kind: type[RecordT]) -> RecordT:
        """The record in stored bytes."""
        return self.codec.decode(data, kind)

    def live(self, value: Value) -> bytes | None:
        """The bytes of a checkpoint register, unless older than ``checkpoint_ttl`` (C6)."""
        if self._ttl is not None and value.age > self._ttl:
            return None
        return value.data

    async def claim(
        self,
        operation: str,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> tuple[StoredFence, Value]:
        """Claim a scope, behind this backend object's mutations of it that are under way."""

        async def claim(*, fence: Fence | None) -> tuple[StoredFence, Value]:
            # Safe to repeat by its claim_id (F10), so it needs no fence.
            value = await self.driver.claim(
                scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
            )
            if value.fence is None:
                raise CorruptDataError("the driver returned a claim without a fence")
            return value.fence, value

        return await self.calls.send(operation, scope, None, claim, repeatable=True)

    async def read(self, operation: str, scope: Scope) -> Value:
        """Read the scope's primary register and fence."""
        return await self.calls.read(
            operation, scope.id, partial(self.driver.read, scope, PRIMARY[scope.kind])
        )

    async def check_fence(self, operation: str, scope: Scope, claim: Claim) -> None:
        """Raise `FencedError` if a mutation through ``claim`` would be fenced now."""
        value = await self.read(operation, scope)
        with self.calls.describing(operation, scope.id):
            await self.check_owner(
                scope, value, claim, partial(self.calls.read, operation, scope.id)
            )

    async def check_owner(self, scope: Scope, value: Value, claim: Claim | None, ask: Ask) -> None:
        """Raise `FencedError` if a mutation through ``claim`` would be fenced, to judge by what was
        read.
        """
        try:
            admit(value.fence, None if claim is None else claim.next_fence())
        except FencedError as error:
            if claim is None or error.reason != "lost":
                raise
            if await ask(partial(self.driver.was_swept, scope, claim.epoch)):
                raise FencedError("no_record") from None
            raise

    async def scan(
        self,
        operation: str,
        kind: ScopeKind,
        where: Where,
        after: str | None = None,
        wanted: int | None = None,
    ) -> AsyncIterator[Item]:
        """Yield every matching scope behind ``after``, page by page; a page is not larger than what
        is ``wanted``.
        """
        limit = _PAGE if wanted is None else min(wanted, _PAGE)
        while True:
            page = await self.calls.read(
                operation,
                None,
                partial(self.driver.scan, kind, where=where, after=after, limit=limit),
            )
            for item in page.items:
                yield item
            if page.next is None:
                return
            after = page.next

    @staticmethod
    async def pause(attempt: int) -> None:
        """Give way to those who changed the record in between, longer each time."""
        await asyncio.sleep(backoff(attempt, base=0.001, cap=0.1))


def micros(instant: datetime | None, argument: str) -> int | None:
    """Microseconds since 1970-01-01 UTC, exactly; ``None`` for ``None``."""
    if instant is None:
        return None
    return (check_instant(instant, argument) - _EPOCH) // _MICROSECOND


__all__ = ["Records", "micros"]
