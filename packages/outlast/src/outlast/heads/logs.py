"""Logs as pieces: which entries stay in the head, which go to pieces, and how to read them back.

The newest entries are the tail, inside the head. When the tail is full it is flushed: the newest
piece is rewritten with it while it is small, otherwise a new piece is begun. When a head would hold
too many references, the oldest of one level are folded into an index piece of the next level, so
that references form a tree and the cost of an append stays flat (A9). Levels never rise from one
reference to the next.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from outlast.driver import Entry
from outlast.heads.encoding import (
    Piece,
    decode_data,
    decode_entries,
    decode_index,
    decode_value,
    entries_piece,
    index_piece,
)
from outlast.heads.layout import Layout, Log, Ref, Register
from outlast.heads.store import ObjectStore

_ENTRY_OVERHEAD = 8

Pieces = Mapping[str, bytes]
"""Pieces by their names, which never come to mean anything else."""

NO_PIECES: Pieces = {}


class MissingPieceError(Exception):
    """A piece that a head refers to is not there: the head is old, or the store lost it."""

    def __init__(self, ref: Ref) -> None:
        super().__init__(ref.name)
        self.ref = ref


@dataclass(slots=True)
class LogChange:
    """A log as it will be, and what must be stored before.

    Attributes:
        log: The new log.
        pieces: What its references need.
        dropped: References that it no longer has and that no index piece took over.
        leaves: The new pieces of level 0, with their ids.
        indexes: The new index pieces, with the names of what they refer to.
    """

    log: Log
    pieces: dict[str, bytes] = field(default_factory=dict[str, bytes])
    dropped: list[Ref] = field(default_factory=list[Ref])
    leaves: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    indexes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, piece: Piece) -> Ref:
        """Take in a piece that must be stored."""
        self.pieces[piece.ref.name] = piece.data
        return piece.ref


def new_name() -> str:
    """A name that no piece had or will have."""
    return secrets.token_hex(16)


async def plan_append(
    store: ObjectStore, key: str, log: Log, entries: Sequence[Entry], layout: Layout
) -> LogChange:
    """The log with ``entries`` behind it."""
    tail = (*log.tail, *entries)
    if _fits(tail, layout):
        return LogChange(Log(log.refs, tail))
    newest = log.refs[-1] if log.refs else None
    if newest is None or newest.level or newest.size + _size(tail) > layout.merge_bytes:
        return _divide(log.refs, tail, layout)
    change = _divide(log.refs[:-1], [*await _entries_of(store, key, [newest]), *tail], layout)
    change.dropped.append(newest)
    return change


def plan_replace(log: Log, entries: Sequence[Entry], layout: Layout) -> LogChange:
    """``entries`` as the whole log."""
    fits = _fits(entries, layout)
    change = LogChange(Log((), tuple(entries))) if fits else _divide((), entries, layout)
    change.dropped.extend(log.refs)
    return change


async def load_entries(
    store: ObjectStore, key: str, log: Log, last: int | None, pieces: Pieces = NO_PIECES
) -> list[Entry]:
    """All entries, or the newest ``last``; only the pieces that hold them are read.

    Args:
        store: Where the pieces are.
        key: Of the head.
        log: As the head has it.
        last: How many.
        pieces: Some that were read already.

    Raises:
        MissingPieceError: The log was changed since its head was read.
    """
    refs = await _leaves_with(store, key, log, last, pieces)
    entries = [*await _entries_of(store, key, refs, pieces), *log.tail]
    return entries if last is None else entries[max(0, len(entries) - last) :]


async def load_data(
    store: ObjectStore, key: str, log: Log, last: int | None, pieces: Pieces = NO_PIECES
) -> Iterable[bytes]:
    """The data of `load_entries`, without their ids; cut out of the pieces one by one."""
    refs = await _leaves_with(store, key, log, last, pieces)
    found = await read_all(store, key, refs, pieces=pieces)
    parts = [
        decode_data(piece, store.place(key, ref.name))
        for ref, piece in zip(refs, found, strict=True)
    ]
    data = chain(*parts, (entry.data for entry in log.tail))
    if last is None:
        return data
    count = sum(ref.count for ref in refs) + len(log.tail)
    return islice(data, max(0, count - last), None)


def refs_with(log: Log, last: int | None) -> Sequence[Ref]:
    """The references of the head that the newest ``last`` entries need, as far as the tail does not
    hold them.
    """
    if last is not None and last <= len(log.tail):
        return ()
    return _newest(log.refs, None if last is None else last - len(log.tail))


async def _leaves_with(
    store: ObjectStore, key: str, log: Log, last: int | None, pieces: Pieces
) -> Sequence[Ref]:
    """The pieces that hold the entries of `refs_with`."""
    refs = refs_with(log, last)
    wanted = None if last is None else last - len(log.tail)
    while any(ref.level for ref in refs):
        refs = _newest(await _expand(store, key, refs, pieces), wanted)
    return refs


async def find_entries(
    store: ObjectStore, key: str, log: Log, leaf_of: Mapping[str, str], ids: Sequence[str]
) -> list[Entry]:
    """The entries of those ``ids``, in their order, that are in the log.

    Args:
        store: Where the pieces are.
        key: Of the head.
        log: As the head has it.
        leaf_of: Which piece holds an id that is not in the tail.
        ids: What to look for.
    """
    found = {entry.id: entry for entry in log.tail}
    leaves = {leaf_of[entry_id] for entry_id in ids if entry_id in leaf_of}
    if leaves:
        refs = [ref for ref in await all_leaves(store, key, log.refs) if ref.name in leaves]
        found.update((entry.id, entry) for entry in await _entries_of(store, key, refs))
    return [found[entry_id] for entry_id in ids if entry_id in found]


async def load_value(store: ObjectStore, key: str, register: Register) -> bytes | None:
    """A register's value.

    Raises:
        MissingPieceError: The register was written since its head was read.
    """
    if register.ref is None:
        return register.data
    (data,) = await read_all(store, key, [register.ref])
    return decode_value(data, store.place(key, register.ref.name))


async def names_beneath(store: ObjectStore, key: str, refs: Iterable[Ref]) -> list[str]:
    """The names of all pieces that ``refs`` keep alive, index pieces included.

    Raises:
        MissingPieceError: As in `load_entries`.
    """
    names: list[str] = []
    pending = list(refs)
    while pending:
        names.extend(ref.name for ref in pending)
        pending = await _expand(store, key, [ref for ref in pending if ref.level])
    return names


async def read_all(
    store: ObjectStore,
    key: str,
    refs: Sequence[Ref],
    *,
    prefix: bool = False,
    pieces: Pieces = NO_PIECES,
) -> list[bytes]:
    """`ObjectStore.read_pieces` for what is not in ``pieces``, with an error for a missing one."""
    unread = [ref for ref in refs if ref.name not in pieces]
    found = dict(pieces)
    if unread:
        for ref, data in zip(
            unread, await store.read_pieces(key, unread, prefix=prefix), strict=True
        ):
            if data is None:
                raise MissingPieceError(ref)
            found[ref.name] = data
    return [found[ref.name] for ref in refs]


async def _entries_of(
    store: ObjectStore, key: str, leaves: Sequence[Ref], pieces: Pieces = NO_PIECES
) -> list[Entry]:
    data = await read_all(store, key, leaves, pieces=pieces)
    return [
        entry
        for ref, piece in zip(leaves, data, strict=True)
        for entry in decode_entries(piece, store.place(key, ref.name))
    ]


async def all_leaves(store: ObjectStore, key: str, refs: Sequence[Ref]) -> Sequence[Ref]:
    """The pieces of level 0 beneath ``refs``, in order.

    Raises:
        MissingPieceError: As in `load_entries`.
    """
    while any(ref.level for ref in refs):
        refs = await _expand(store, key, refs)
    return refs


async def _expand(
    store: ObjectStore, key: str, refs: Sequence[Ref], pieces: Pieces = NO_PIECES
) -> list[Ref]:
    """``refs`` with each index piece replaced by what it refers to."""
    indexes = [ref for ref in refs if ref.level]
    data = iter(await read_all(store, key, indexes, pieces=pieces))
    expanded: list[Ref] = []
    for ref in refs:
        expanded.extend(
            decode_index(next(data), store.place(key, ref.name)) if ref.level else (ref,)
        )
    return expanded


def _newest(refs: Sequence[Ref], wanted: int | None) -> Sequence[Ref]:
    """The shortest end of ``refs`` that covers ``wanted`` entries."""
    if wanted is None:
        return refs
    count = 0
    for place in range(len(refs) - 1, -1, -1):
        count += refs[place].count
        if count >= wanted:
            return refs[place:]
    return refs


def _size(entries: Iterable[Entry]) -> int:
    return sum([len(entry_id) + len(data) + _ENTRY_OVERHEAD for entry_id, data in entries])


def _fits(tail: Sequence[Entry], layout: Layout) -> bool:
    return len(tail) <= layout.tail_entries and _size(tail) <= layout.tail_bytes


def _divide(refs: Sequence[Ref], entries: Sequence[Entry], layout: Layout) -> LogChange:
    """All entries in pieces behind ``refs``, an empty tail, and not too many references."""
    change = LogChange(Log())
    kept = list(refs)
    for part in _parts(entries, layout.piece_bytes):
        ref = change.add(entries_piece(new_name(), part))
        change.leaves[ref.name] = [entry.id for entry in part]
        kept.append(ref)
    while len(kept) > layout.max_refs:
        first, end = _foldable(kept, layout.max_refs)
        ref = change.add(index_piece(new_name(), kept[first:end]))
        change.indexes[ref.name] = [child.name for child in kept[first:end]]
        kept[first:end] = [ref]
    change.log = Log(tuple(kept))
    return change


def _parts(entries: Sequence[Entry], limit: int) -> Iterable[Sequence[Entry]]:
    first = size = 0
    for place, entry in enumerate(entries):
        added = len(entry.id) + len(entry.data) + _ENTRY_OVERHEAD
        if place > first and size + added > limit:
            yield entries[first:place]
            first, size = place, 0
        size += added
    yield entries[first:]


def _foldable(refs: Sequence[Ref], max_refs: int) -> tuple[int, int]:
    """Which references to fold: the oldest of the lowest level that has a good number of them.

    The newest one stays outside, since it may be rewritten by the next flush.
    """
    levels = [ref.level for ref in refs[:-1]]
    for level in sorted(set(levels)):
        count = levels.count(level)
        if count >= max(2, max_refs // 4):
            first = levels.index(level)
            return first, first + min(count, max_refs)
    return 0, len(levels)


__all__ = [
    "NO_PIECES",
    "LogChange",
    "MissingPieceError",
    "Pieces",
    "all_leaves",
    "find_entries",
    "load_data",
    "load_entries",
    "load_value",
    "names_beneath",
    "new_name",
    "plan_append",
    "plan_replace",
    "read_all",
    "refs_with",
]
