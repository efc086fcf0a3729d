"""`HeadDriver`: the driver interface over heads and pieces, written once for all such stores."""

# Every call makes functions with annotations; unevaluated, those cost nothing.
from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from outlast.driver import (
    PRIMARY,
    Driver,
    Entry,
    Fence,
    Index,
    Item,
    Page,
    PreconditionFailedError,
    Scope,
    ScopeKind,
    SweepPage,
    Value,
    Where,
)
from outlast.heads.caches import IdCache, KnownIds
from outlast.heads.changes import (
    append_entries,
    claim_record,
    raise_above_floor,
    remove_all,
    replace_entries,
    value_of,
    write_register,
)
from outlast.heads.encoding import decode_head
from outlast.heads.layout import Head, Layout, Log
from outlast.heads.logs import (
    NO_PIECES,
    LogChange,
    MissingPieceError,
    Pieces,
    load_data,
    load_entries,
    refs_with,
)
from outlast.heads.store import ObjectStore, Stored, head_at, key_of
from outlast.heads.swapping import (
    Change,
    Decide,
    Swapper,
    View,
    is_in_the_making,
    missing_piece,
)
from outlast.heads.sweeping import sweep

ResultT = TypeVar("ResultT")
Operation = Callable[[ObjectStore], Coroutine[Any, Any, ResultT]]
_Load = Callable[[ObjectStore, str, Log, int | None, Pieces], Awaitable[ResultT]]

_SCAN_HEADS = 256
"""A scan returns after so many heads even if few matched, so that each call stays short."""


class HeadDriver(Driver):
    """A driver over an `ObjectStore`: one head per scope, older entries and large values in pieces.

    A head is changed only by comparison, so every mutation is one atomic step (F2, F5, A7, S3):
    pieces are stored first, under new names, and mean nothing until the head that refers to them is
    in place. Readers take no locks: a missing piece sends them back to the head (C4).

    Epochs and versions of a swept record do not come back (C5): a record is made above the floor of
    its time, is ``new`` until its first claimed mutation, and who made it reads the floor once
    more; if that was raised meanwhile, the record is raised above it before anybody is told. Any
    other claim of a new record reads the floor behind the record, where it covers all that was
    swept before. The same claim, repeated, finds a floor above its epoch only if nobody was told
    of that: a sweep marks the other new records as not new before it raises the floor above them.
    """

    def __init__(self, layout: Layout) -> None:
        """Make a driver.

        Args:
            layout: How records are divided. It may differ between drivers of one store, and change
                between releases: readers take any.
        """
        self._layout = layout
        self._swapper = Swapper(layout)
        self._known_ids = IdCache(layout.cached_ids)

    def forget(self) -> None:
        """Drop what is remembered of heads, and with it what their tokens hold; for closing."""
        self._swapper.forget()

    @abc.abstractmethod
    async def _run(self, operation: Operation[ResultT]) -> ResultT:
        """Call ``operation`` with the store and see it through; the place to change threads."""

    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        async def operation(store: ObjectStore) -> Value:
            async def decide(view: View) -> Change[Value]:
                return await claim_record(
                    store, view, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
                )

            while True:
                change = await self._swapper.run(store, scope, decide, fence=None, is_claim=True)
                if change.head is None or not change.is_created:
                    return change.result
                floor = await store.floor(key_of(scope))
                is_above = at_least is not None or change.head.fence.epoch > floor.ceiling
                if is_above and change.head.start > floor.version:
                    return change.result

        return await self._run(operation)

    async def read(self, scope: Scope, register: str) -> Value:
        async def operation(store: ObjectStore) -> Value:
            async def read(head: Head) -> Value:
                return await value_of(store, key_of(scope), head, register)

            return await _consistent(store, key_of(scope), scope, read) or Value()

        return await self._run(operation)

    async def was_swept(self, scope: Scope, epoch: int) -> bool:
        async def operation(store: ObjectStore) -> bool:
            key = key_of(scope)
            stored = await store.read_surely(key)
            if stored is None:
                return True
            head = decode_head(stored.data, scope, store.place(key))
            # If it was raised since it was read, it was in the making.
            return head.fence.epoch > epoch or await is_in_the_making(store, key, head, epoch)

        return await self._run(operation)

    async def write(
        self,
        scope: Scope,
        register: str,
        data: bytes | None,
        *,
        fence: Fence | None,
        index: Index | None = None,
        if_version: int | None = None,
    ) -> int:
        async def operation(store: ObjectStore) -> int:
            async def decide(view: View) -> Change[int | None]:
                return await write_register(
                    store,
                    view,
                    self._layout,
                    register,
                    data,
                    fence=fence,
                    index=index,
                    if_version=if_version,
                )

            async def read(head: Head) -> int:
                return head.register(register).version

            change = await self._swapper.run(store, scope, decide, fence=fence)
            if change.result is None:
                raise PreconditionFailedError(f"the version is not {if_version}")
            if await self._is_raised(store, scope, change):
                return await _consistent(store, key_of(scope), scope, read) or 0
            return change.result

        return await self._run(operation)

    async def load(self, scope: Scope, log: str, *, last: int | None = None) -> list[Entry]:
        async def operation(store: ObjectStore) -> list[Entry]:
            return await self._loaded(store, scope, log, last, load_entries) or []

        return await self._run(operation)

    async def load_data(
        self,
        scope: Scope,
        log: str,
        decode: Callable[[Iterable[bytes]], ResultT],
        *,
        last: int | None = None,
    ) -> ResultT:
        async def operation(store: ObjectStore) -> ResultT:
            return decode(await self._loaded(store, scope, log, last, load_data) or ())

        return await self._run(operation)

    async def _loaded(
        self, store: ObjectStore, scope: Scope, log: str, last: int | None, load: _Load[ResultT]
    ) -> ResultT | None:
        """What ``load`` makes of a log, all of one moment; ``None``: no record.

        Pieces that the head had lately are read with it where that saves a round trip. They cannot
        have changed, and those that it does not have any more are of no interest.
        """
        key = key_of(scope)
        lately = self._swapper.remembered(scope)
        guess = () if lately is None else refs_with(lately.log(log), last)
        stored, pieces = await store.read_with(key, guess) if guess else (None, NO_PIECES)

        async def read(head: Head) -> ResultT:
            return await load(store, key, head.log(log), last, pieces)

        return await _consistent(store, key, scope, read, stored)

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        async def operation(store: ObjectStore) -> list[Entry]:
            known = self._known_ids.take(key_of(scope), log)
            planned: LogChange | None = None

            async def decide(view: View) -> Change[list[Entry]]:
                nonlocal planned
                change, planned = await append_entries(
                    store,
                    view,
                    self._layout,
                    log,
                    entries,
                    known,
                    fence=fence,
                    present=present,
                )
                return change

            return await self._change_log(store, scope, log, known, decide, lambda: planned, fence)

        return await self._run(operation)

    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        async def operation(store: ObjectStore) -> None:
            planned: LogChange | None = None

            async def decide(view: View) -> Change[None]:
                nonlocal planned
                change, planned = await replace_entries(
                    store, view, self._layout, log, entries, fence=fence
                )
                return change

            known = KnownIds()
            await self._change_log(store, scope, log, known, decide, lambda: planned, fence)

        await self._run(operation)

    async def remove(self, scope: Scope, *, fence: Fence | None) -> None:
        async def operation(store: ObjectStore) -> None:
            async def decide(view: View) -> Change[None]:
                return await remove_all(store, view, fence=fence)

            await self._swapper.run(store, scope, decide, fence=fence)

        await self._run(operation)

    async def scan(self, kind: ScopeKind, *, where: Where, after: str | None, limit: int) -> Page:
        async def operation(store: ObjectStore) -> Page:
            return await _scan(store, kind, where, after, limit)

        return await self._run(operation)

    async def sweep(
        self, *, older_than: float, limit: int, dry_run: bool, after: str | None
    ) -> SweepPage:
        async def operation(store: ObjectStore) -> SweepPage:
            return await sweep(store, older_than, limit, after, dry_run=dry_run)

        return await self._run(operation)

    async def _change_log(
        self,
        store: ObjectStore,
        scope: Scope,
        log: str,
        known: KnownIds,
        decide: Decide[ResultT],
        planned: Callable[[], LogChange | None],
        fence: Fence | None,
    ) -> ResultT:
        """Run a mutation of a log, and remember the ids of the pieces that it made."""
        change = await self._swapper.run(store, scope, decide, fence=fence)
        made = planned()
        if made is not None:
            known.adopt(made)
        self._known_ids.put(key_of(scope), log, known)
        await self._is_raised(store, scope, change)
        return change.result

    async def _is_raised(self, store: ObjectStore, scope: Scope, change: Change[ResultT]) -> bool:
        """Raise a record that ``change`` made above the floor, if that was raised meanwhile."""
        if change.head is None or not change.is_created:
            return False
        floor = await store.floor(key_of(scope))
        if change.head.start > floor.version:
            return False

        async def decide(view: View) -> Change[None]:
            return raise_above_floor(view)

        await self._swapper.run(store, scope, decide, fence=None)
        return True


async def _consistent(
    store: ObjectStore,
    key: str,
    scope: Scope | None,
    read: Callable[[Head], Awaitable[ResultT]],
    stored: Stored | None = None,
) -> ResultT | None:
    """What ``read`` makes of a head and its pieces, all of one moment; ``None``: no record.

    ``stored`` is the head as it was just found, if it was.
    """
    incomplete: object = None
    while True:
        stored = stored or await store.read(key)
        if stored is None:
            return None
        head = (
            head_at(store, key, stored.data)
            if scope is None
            else decode_head(stored.data, scope, store.place(key))
        )
        try:
            return await read(head)
        except MissingPieceError as error:
            if stored.token == incomplete:
                raise missing_piece(store, key, error) from None
            incomplete = stored.token
            stored = None


async def _scan(
    store: ObjectStore, kind: ScopeKind, where: Where, after: str | None, limit: int
) -> Page:
    async def read(head: Head) -> tuple[str, Item | None]:
        if not _matches(head, where):
            return head.id, None
        return head.id, Item(
            head.id, await value_of(store, key_of(head.scope), head, PRIMARY[kind])
        )

    items: list[Item] = []
    seen = 0
    last = after
    behind = None if after is None else key_of(Scope(kind, after))
    while True:
        wanted = min(limit - len(items), _SCAN_HEADS)
        found = await store.find_heads(kind, where, behind, wanted)
        for answer in await store.gather(
            [partial(_consistent, store, key, None, read, stored) for key, stored in found]
        ):
            if answer is None:
                continue
            last, item = answer
            seen += 1
            if item is not None:
                items.append(item)
        if len(found) < wanted:
            return Page(items, None)
        if seen and (len(items) >= limit or seen >= _SCAN_HEADS):
            return Page(items, last)
        behind = found[-1].key


def _matches(head: Head, where: Where) -> bool:
    index = head.index
    return (
        (where.with_empty or not head.register(PRIMARY[head.kind]).is_empty)
        and (where.parent is None or index.parent == where.parent)
        and (where.status is None or index.status == where.status)
        and (where.updated_before is None or index.updated_at < where.updated_before)
    )


__all__ = ["HeadDriver", "Operation"]
