"""What a driver remembers between calls: ids of long logs, and heads it wrote itself.

Neither is ever an answer: ids of immutable pieces cannot change, and a remembered head only saves a
read before a write that compares. What is in use is taken out, so that threads never share one.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Generic, TypeVar

from outlast.heads.encoding import decode_ids
from outlast.heads.layout import Head, Ref
from outlast.heads.logs import LogChange, all_leaves, read_all
from outlast.heads.store import ObjectStore

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

_HEAD_BYTES = 64 * 1024 * 1024


class LRU(Generic[KeyT, ValueT]):
    """The values used last, up to a total weight; the newest one stays whatever it weighs."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def take(self, key: KeyT) -> ValueT | None:
        """Take the value out."""
        with self._lock:
            value, weight = self._values.pop(key, (None, 0))
            self._weight -= weight
            return value

    def peek(self, key: KeyT) -> ValueT | None:
        """The value, which stays; only for what nobody changes."""
        with self._lock:
            return self._values.get(key, (None, 0))[0]

    def put(self, key: KeyT, value: ValueT, weight: int) -> None:
        """Remember the value; with no capacity at all, do not."""
        if not self._capacity:
            return
        with self._lock:
            _, old = self._values.pop(key, (None, 0))
            self._values[key] = value, weight
            self._weight += weight - old
            while self._weight > self._capacity and len(self._values) > 1:
                _, (_, gone) = self._values.popitem(last=False)
                self._weight -= gone

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._values.clear()
            self._weight = 0


class KnownIds:
    """The ids in the pieces of one log, and which piece each is in."""

    __slots__ = ("_beneath", "_ids", "_refs", "leaf_of")

    def __init__(self) -> None:
        self._beneath: dict[str, tuple[str, ...]] = {}
        self._ids: dict[str, Sequence[str]] = {}
        self._refs: Sequence[Ref] = ()
        self.leaf_of: dict[str, str] = {}

    async def catch_up(self, store: ObjectStore, key: str, refs: Sequence[Ref]) -> None:
        """Learn what is beneath ``refs``, reading only pieces that are not known yet.

        Raises:
            MissingPieceError: The log was changed since its head was read.
        """
        if refs is self._refs:
            return
        if self._beneath.keys() == {ref.name for ref in refs}:
            self._refs = refs
            return
        beneath: dict[str, tuple[str, ...]] = {}
        leaves: dict[str, Ref] = {}
        for ref in refs:
            names = self._beneath.get(ref.name)
            if names is None:
                found = await all_leaves(store, key, [ref])
                leaves.update((leaf.name, leaf) for leaf in found)
                names = tuple(leaf.name for leaf in found)
            beneath[ref.name] = names
        unknown = [ref for name, ref in leaves.items() if name not in self._ids]
        prefixes = await read_all(store, key, unknown, prefix=True)
        self._settle(
            refs,
            beneath,
            {
                ref.name: decode_ids(prefix, store.place(key, ref.name))
                for ref, prefix in zip(unknown, prefixes, strict=True)
            },
        )

    def adopt(self, change: LogChange) -> None:
        """Learn from a change that was stored, made from a log that was known."""
        if not change.pieces:
            return
        beneath = {**self._beneath, **{name: (name,) for name in change.leaves}}
        for name, children in change.indexes.items():
            beneath[name] = tuple(chain.from_iterable(beneath[child] for child in children))
        refs = change.log.refs
        self._settle(refs, {ref.name: beneath[ref.name] for ref in refs}, change.leaves)

    def _settle(
        self,
        refs: Sequence[Ref],
        beneath: dict[str, tuple[str, ...]],
        new: Mapping[str, Sequence[str]],
    ) -> None:
        self._refs = refs
        self._beneath = beneath
        for leaf in self._ids.keys() - set(chain.from_iterable(beneath.values())):
            for entry_id in self._ids.pop(leaf):
                self.leaf_of.pop(entry_id, None)
        for leaf, ids in new.items():
            self._ids[leaf] = ids
            self.leaf_of.update(dict.fromkeys(ids, leaf))


class IdCache:
    """`KnownIds` of several logs."""

    def __init__(self, capacity: int) -> None:
        self._logs: LRU[tuple[str, str], KnownIds] = LRU(capacity)

    def take(self, key: str, log: str) -> KnownIds:
        """What is known of a log, possibly nothing."""
        return self._logs.take((key, log)) or KnownIds()

    def put(self, key: str, log: str, known: KnownIds) -> None:
        """Remember it."""
        if known.leaf_of:
            self._logs.put((key, log), known, len(known.leaf_of))


class HeadCache:
    """Heads that were written or read lately, with their tokens."""

    def __init__(self, count: int) -> None:
        self._heads: LRU[str, tuple[Head, object]] = LRU(_HEAD_BYTES if count else 0)
        self._least = _HEAD_BYTES // count if count else 0

    def take(self, key: str) -> tuple[Head, object] | None:
        """The head and its token, if remembered."""
        return self._heads.take(key)

    def peek(self, key: str) -> Head | None:
        """The head, if remembered; it stays."""
        found = self._heads.peek(key)
        return None if found is None else found[0]

    def put(self, key: str, head: Head, token: object, size: int) -> None:
        """Remember a head of ``size`` bytes."""
        self._heads.put(key, (head, token), max(size, self._least))

    def clear(self) -> None:
        """Forget all."""
        self._heads.clear()


__all__ = ["HeadCache", "IdCache", "KnownIds"]
