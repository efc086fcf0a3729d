"""The loop beneath every mutation: read the head, decide, swap; again if another was faster.

Losing a race is no error. A swap whose outcome is unknown is settled by reading again: the fence in
the head tells whether it was applied, since a repetition carries the same ``seq`` and ``op`` (F6),
and a claim the same ``claim_id`` (F10). Either the late request finds its token gone, or the
repetition finds its own success. Without a claim nothing tells, and the caller must know that (F8).
"""

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import msgspec

from outlast.driver import Fence, PreconditionFailedError, Scope, StoredFence
from outlast.errors import (
    CorruptDataError,
    FencedError,
    OutcomeUnknownError,
    OutlastError,
    UnavailableError,
)
from outlast.heads.caches import HeadCache
from outlast.heads.encoding import decode_head, encode_head
from outlast.heads.layout import Floor, Head, Layout, Ref
from outlast.heads.logs import MissingPieceError, names_beneath
from outlast.heads.store import ObjectStore, key_of
from outlast.retry import backoff

ResultT = TypeVar("ResultT")
_LONGEST_PAUSES = 20


class View(NamedTuple):
    """What a mutation decides on.

    Attributes:
        stored: The record's fence, or ``None`` if there is no record.
        head: The record, above the floor; a blank one if there is none.
        floor: The floor, read after the head; zero where the rule for claims does not need it.
        is_new: Whether the stored epoch may not be above the floor.
        is_raised: Whether ``head`` had to be raised above the floor.
    """

    stored: StoredFence | None
    head: Head
    floor: Floor
    is_new: bool
    is_raised: bool = False


@dataclass(slots=True)
class Change(Generic[ResultT]):
    """What a mutation decided.

    Attributes:
        result: Its answer.
        head: What to store; ``None``: nothing changes.
        pieces: What ``head`` newly refers to; stored before it.
        dropped: What ``head`` no longer refers to; removed after it.
        is_created: Set by the loop: whether it made the record.
    """

    result: ResultT
    head: Head | None = None
    pieces: dict[str, bytes] = field(default_factory=dict[str, bytes])
    dropped: list[Ref] = field(default_factory=list[Ref])
    is_created: bool = False


Decide = Callable[[View], Awaitable[Change[ResultT]]]


class _Snapshot(NamedTuple):
    head: Head | None
    token: object
    size: int = 0
    is_fresh: bool = True


class Swapper:
    """Runs mutations against heads.

    Args:
        layout: Of the heads.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._heads = HeadCache(layout.cached_heads)

    async def run(
        self,
        store: ObjectStore,
        scope: Scope,
        decide: Decide[ResultT],
        *,
        fence: Fence | None,
        is_claim: bool = False,
    ) -> Change[ResultT]:
        """Apply what ``decide`` makes of the head, in one atomic step.

        ``decide`` is called as often as it takes, and has no effects.
        """
        unanswered: list[OutcomeUnknownError] = []
        try:
            return await self._contend(store, scope, decide, fence, unanswered, is_claim=is_claim)
        except OutlastError as error:
            # It may have been applied by the attempt that went unanswered (E2).
            if not unanswered:
                raise
            if isinstance(error, UnavailableError):
                raise OutcomeUnknownError(error.message) from error
            error.applied = None
            raise

    async def _contend(
        self,
        store: ObjectStore,
        scope: Scope,
        decide: Decide[ResultT],
        fence: Fence | None,
        unanswered: list[OutcomeUnknownError],
        *,
        is_claim: bool,
    ) -> Change[ResultT]:
        key = key_of(scope)
        snapshot = await self._remembered(store, key, is_claim=is_claim)
        for attempt in itertools.count():
            snapshot, change = await self._decided(
                store, scope, snapshot, decide, fence, is_claim=is_claim
            )
            if change.head is None:
                if snapshot.head is not None:
                    self._heads.put(key, snapshot.head, snapshot.token, snapshot.size)
                return change
            try:
                if await self._store(store, key, snapshot, change):
                    return change
            except OutcomeUnknownError as error:
                if fence is None and not is_claim:
                    raise
                unanswered.append(error)
            snapshot = None
            try:
                await store.pause(backoff(attempt, base=self._layout.retry_delay, cap=self._cap))
            except UnavailableError as error:
                # What took the time was the request that went unanswered, not other writers.
                raise unanswered[-1] if unanswered else error from None
        raise AssertionError("unreachable")

    async def _decided(
        self,
        store: ObjectStore,
        scope: Scope,
        snapshot: _Snapshot | None,
        decide: Decide[ResultT],
        fence: Fence | None,
        *,
        is_claim: bool,
    ) -> tuple[_Snapshot, Change[ResultT]]:
        """The decision, and the head on which it is based.

        A head that may be old, since it was remembered or the store has just lost a server, serves
        for a change, which compares, and for nothing else.
        """
        key = key_of(scope)
        incomplete: object = None
        is_first = snapshot is None
        while True:
            if snapshot is None:
                snapshot = await self._read(store, key, scope, surely=not is_first)
                is_first = False
            view = await self._view(store, key, scope, snapshot, fence, is_claim=is_claim)
            try:
                change = await decide(view)
            except MissingPieceError as error:
                if snapshot.is_fresh and snapshot.token == incomplete:
                    raise missing_piece(store, key, error) from None
                incomplete = snapshot.token if snapshot.is_fresh else None
            except (FencedError, PreconditionFailedError) as error:
                if snapshot.is_fresh:
                    await self._explain(store, key, view.head, fence, error)
                    raise
            else:
                if snapshot.head is None and change.pieces:
                    # Pieces belong to a head that is there: a sweep could not know of others.
                    snapshot = await self._store_blank(store, key, view.head)
                    continue
                if change.head is not None or snapshot.is_fresh:
                    return snapshot, change
            snapshot = None

    @staticmethod
    async def _explain(
        store: ObjectStore, key: str, head: Head, fence: Fence | None, error: OutlastError
    ) -> None:
        """Say that the record is gone if its successor is in the making."""
        if (
            fence is not None
            and isinstance(error, FencedError)
            and error.reason == "lost"
            and await is_in_the_making(store, key, head, fence.epoch)
        ):
            raise FencedError("no_record") from None

    def remembered(self, scope: Scope) -> Head | None:
        """A head that was there lately, as a hint."""
        return self._heads.peek(key_of(scope))

    def forget(self) -> None:
        """Drop the remembered heads with their tokens."""
        self._heads.clear()

    @property
    def _cap(self) -> float:
        return self._layout.retry_delay * _LONGEST_PAUSES

    async def _remembered(
        self, store: ObjectStore, key: str, *, is_claim: bool
    ) -> _Snapshot | None:
        """The head as this driver saw it last, unless it is known to be old.

        One that may be old is no base for a claim, which is rare and often follows another process.
        """
        found = self._heads.take(key)
        if found is None:
            return None
        is_current = await store.is_current(key, found[1])
        if is_current is False or (is_current is None and is_claim):
            return None
        return _Snapshot(*found, is_fresh=bool(is_current))

    async def _read(self, store: ObjectStore, key: str, scope: Scope, *, surely: bool) -> _Snapshot:
        stored = await (store.read_surely(key) if surely else store.read(key))
        is_fresh = surely or not store.may_be_behind
        if stored is None:
            return _Snapshot(None, None, is_fresh=is_fresh)
        head = decode_head(stored.data, scope, store.place(key))
        return _Snapshot(head, stored.token, len(stored.data), is_fresh)

    async def _view(
        self,
        store: ObjectStore,
        key: str,
        scope: Scope,
        snapshot: _Snapshot,
        fence: Fence | None,
        *,
        is_claim: bool,
    ) -> View:
        head = snapshot.head
        if head is None:
            # Whoever makes a record reads the floor again afterwards.
            floor = await store.guess_floor(key)
            return View(None, Head.blank(scope, floor), floor, is_new=True)
        if not (fence is None and (head.is_new or (is_claim and not head.fence.epoch))):
            return View(head.plain_fence, head, Floor(), is_new=False)
        # Earlier records of the scope were swept before this one was made: this floor covers them.
        floor = await store.floor(key)
        return View(
            head.plain_fence,
            msgspec.structs.replace(head.above(floor), is_new=False),
            floor,
            is_new=head.is_new,
            is_raised=head.start <= floor.version,
        )

    async def _store_blank(self, store: ObjectStore, key: str, head: Head) -> _Snapshot | None:
        head = msgspec.structs.replace(head, changed_at=await store.now())
        data = encode_head(head)
        token = await store.create(key, data, head)
        return None if token is None else _Snapshot(head, token, len(data))

    async def _store(
        self, store: ObjectStore, key: str, snapshot: _Snapshot, change: Change[ResultT]
    ) -> bool:
        """Pieces first, then the head in one step, then remove what was replaced."""
        assert change.head is not None
        data = encode_head(change.head)
        try:
            if change.pieces:
                await store.put_pieces(key, change.pieces)
            if snapshot.head is None:
                token = await store.create(key, data, change.head)
            else:
                token = await store.swap(key, data, change.head, snapshot.token)
        except OutcomeUnknownError:
            raise  # The head may refer to the pieces; if not, a sweep removes them.
        except OutlastError:
            await self._discard(store, key, list(change.pieces))
            raise
        if token is None:
            await self._discard(store, key, list(change.pieces))
            return False
        change.is_created = snapshot.head is None
        self._heads.put(key, change.head, token, len(data))
        if change.dropped:
            with suppress(MissingPieceError, OutlastError):
                await self._discard(store, key, await names_beneath(store, key, change.dropped))
        return True

    @staticmethod
    async def _discard(store: ObjectStore, key: str, names: list[str]) -> None:
        """Remove pieces that nothing refers to, as far as possible; a sweep removes the rest."""
        if names:
            with suppress(OutlastError):
                await store.delete_pieces(key, names)


async def is_in_the_making(store: ObjectStore, key: str, head: Head, epoch: int) -> bool:
    """Whether a claimer is only about to raise a record above ``epoch``, which was swept.

    That looks like a store that lost a fence, which would be an alarm (F13).
    """
    if not head.is_new or not head.fence.epoch:
        return False
    return epoch <= (await store.floor(key)).epoch


def missing_piece(store: ObjectStore, key: str, error: MissingPieceError) -> CorruptDataError:
    """The error for a piece that an unchanged head refers to (C4)."""
    return CorruptDataError(
        f"{store.place(key)} refers to {store.place(key, error.ref.name)}, which is not there"
    )


__all__ = ["Change", "Decide", "Swapper", "View", "is_in_the_making", "missing_piece"]
