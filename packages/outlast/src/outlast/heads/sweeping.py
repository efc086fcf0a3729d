"""Sweeping: tombstones, unreferenced pieces, and what the store itself left behind (C3 to C5)."""

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import groupby

import msgspec

from outlast.driver import ScopeKind, SweepPage
from outlast.errors import ConfigurationError, CorruptDataError, UnsupportedVersionError
from outlast.heads.encoding import encode_head
from outlast.heads.layout import ASKED, Floor, Head
from outlast.heads.logs import MissingPieceError, names_beneath
from outlast.heads.store import Candidate, ObjectStore, Stored, head_at

_log = logging.getLogger("outlast")
_KINDS: Mapping[str, ScopeKind] = {
    "announce task": "task",
    "announce run": "run",
    "mark task": "task",
    "mark run": "run",
    "task": "task",
    "run": "run",
}
_STAGES = (*_KINDS, "piece", "temporary")
_BATCH = 256
"""Heads or pieces that one call looks at."""

_AT_ONCE = 16
"""Heads that are looked at together, where a store can do that."""

_SECONDS = 1.0
"""After which a call leaves the rest to the next one, lest a slow store use up its timeout (E6)."""


async def sweep(
    store: ObjectStore, older_than: float, limit: int, after: str | None, *, dry_run: bool
) -> SweepPage:
    """One part of a sweep; see `outlast.driver.Driver.sweep`.

    The parts, in this order: epochs of tombstones are announced in the version of the floor; all
    new records below are marked; the floor's epoch is raised and the tombstones are removed; then
    pieces, and temporary objects. ``after`` is the stage, what was announced, and where it goes on,
    such as ``"piece||..."``.

    A claimer who made a record and finds its epoch above all that was announced stores nothing
    further before it is told. If its claim is repeated when the floor has risen, that must not look
    like a record that was made, above an earlier life of the same scope, by someone who was told
    nothing (F1, F10). So the former are marked between announcement and rise. What is made
    after the announcement is told of it, and does not wait for a mark.
    """
    stage, _, rest = (after or _first_stage(store, dry_run=dry_run)).partition("|")
    if stage not in _STAGES:
        raise ConfigurationError(f"a sweep cannot go on behind {after!r}")
    noted, _, position = rest.partition("|")
    announced: dict[str, int] = json.loads(noted) if noted else {}
    tombstones = debris = 0
    goes_on: str | None
    kind = _KINDS.get(stage)
    if kind is not None:
        keys = await store.list_empty(kind, position or None, _BATCH)
        look: _Look
        if stage.startswith("announce"):
            look = partial(_announce, store, announced)
        elif stage.startswith("mark"):
            look = partial(_mark, store)
        else:
            look = partial(_remove, store, announced, dry_run=dry_run)
        tombstones, last = await _sweep_heads(store, keys, older_than, limit, look)
        goes_on = last if len(keys) == _BATCH or (keys and last != keys[-1]) else None
    elif stage == "piece":
        listing = await store.list_pieces(position or None, min(limit, _BATCH))
        old = [found for found in listing.candidates if _is_old(found.age, older_than)]
        debris = sum(
            await store.gather(
                [
                    partial(_sweep_pieces, store, key, list(group), dry_run=dry_run)
                    for key, group in groupby(old, lambda found: found.key)
                ]
            )
        )
        goes_on = listing.next
    else:
        debris, goes_on = await store.sweep_temporary(
            older_than=older_than, dry_run=dry_run, after=position or None
        )
    if goes_on is None:
        following = _STAGES.index(stage) + 1
        if not announced and following == _STAGES.index("mark task"):
            following = _STAGES.index("task")
        if following == len(_STAGES):
            return SweepPage(tombstones, debris, None)
        stage, goes_on = _STAGES[following], ""
    noted = json.dumps(announced) if announced else ""
    return SweepPage(tombstones, debris, f"{stage}|{noted}|{goes_on}")


def _first_stage(store: ObjectStore, *, dry_run: bool) -> str:
    return "task" if dry_run or not store.can_delete else _STAGES[0]


_Look = Callable[[str, float, float], Awaitable[bool]]
"""Takes a key, the store's time, and the age from which a tombstone is removed; whether it was."""


async def _sweep_heads(
    store: ObjectStore, keys: Sequence[str], older_than: float, limit: int, look: _Look
) -> tuple[int, str | None]:
    """Look at heads; how many were removed, and the last key that was looked at."""
    removed = seen = 0
    now = await store.now()
    until = time.monotonic() + _SECONDS
    while seen < len(keys) and removed < limit and (not seen or time.monotonic() < until):
        some = keys[seen : seen + min(limit - removed, _AT_ONCE)]
        removed += sum(await store.gather([partial(look, key, now, older_than) for key in some]))
        seen += len(some)
    return removed, keys[seen - 1] if seen else None


async def _announce(
    store: ObjectStore, announced: dict[str, int], key: str, now: float, older_than: float
) -> bool:
    """Raise the floor's version above a tombstone's epoch, if its epoch has to rise."""
    stored = await store.read(key)
    head = None if stored is None else _head_at(store, key, stored)
    if head is None or not _is_removable(head, now, older_than):
        return False
    epoch = head.fence.epoch
    if epoch > (await store.guess_floor(key)).epoch and epoch > (await store.floor(key)).epoch:
        await store.raise_floor(key, Floor(0, max(epoch, head.version)))
        announced[_group(key)] = max(announced.get(_group(key), 0), epoch)
    return False


async def _mark(store: ObjectStore, key: str, now: float, older_than: float) -> bool:
    """Mark a new record whose claimer may have been told its epoch."""
    while True:
        stored = await store.read_surely(key)
        head = None if stored is None else _head_at(store, key, stored)
        if stored is None or head is None or not head.is_new or not head.fence.epoch:
            return False
        if head.fence.op == ASKED or _is_removable(head, now, older_than):
            return False  # That epoch needs no mark; a claim left alone for so long ends.
        floor = await store.floor(key)
        if head.fence.epoch <= floor.epoch:
            return False  # Nobody was told of it, or it would be marked.
        head = head.above(floor)
        head = msgspec.structs.replace(head, version=head.version + 1, is_new=False)
        if await store.swap(key, encode_head(head), head, stored.token) is not None:
            return False


async def _remove(
    store: ObjectStore,
    announced: Mapping[str, int],
    key: str,
    now: float,
    older_than: float,
    *,
    dry_run: bool,
) -> bool:
    """Raise the floor's epoch above a tombstone's, as far as that was announced, and remove it."""
    stored = await store.read(key)
    head = None if stored is None else _head_at(store, key, stored, warn=True)
    if stored is None or head is None or not store.can_delete:
        return False
    if not _is_removable(head, now, older_than):
        return False
    if dry_run:
        return True
    epoch = announced.get(_group(key), 0)
    if head.fence.epoch > epoch:
        epoch = (await store.guess_floor(key)).epoch
    if head.fence.epoch > epoch:
        epoch = (await store.floor(key)).epoch
    if head.fence.epoch > epoch:
        return False  # It became a tombstone, or old enough, after the announcement.
    await store.raise_floor(key, Floor(epoch, head.version))
    return await store.delete(key, stored.token)


def _group(key: str) -> str:
    """Keys of one group have one floor, see `ObjectStore.floor`."""
    kind, _, digest = key.partition("/")
    return f"{kind}/{digest[:2]}"


def _head_at(store: ObjectStore, key: str, stored: Stored, *, warn: bool = False) -> Head | None:
    try:
        return head_at(store, key, stored.data)
    except (CorruptDataError, UnsupportedVersionError) as error:
        if warn:
            _log.warning("a sweep left a record alone: %s", error)
        return None


def _is_removable(head: Head, now: float, older_than: float) -> bool:
    return head.is_empty and _is_old(now - head.changed_at, older_than)


def _is_old(age: float, older_than: float) -> bool:
    # Another client may estimate the store's clock a little later than this one does.
    return max(0.0, age) >= older_than


async def _sweep_pieces(
    store: ObjectStore, key: str, candidates: Sequence[Candidate], *, dry_run: bool
) -> int:
    """Remove those of the pieces that the head does not refer to.

    A writer may have stored one of them long ago and still be about to swap in a head that refers
    to it. So the head is changed first, under which its swap fails. Without a head there is no such
    writer: pieces are stored only for a head that is there, and every later one has another token.
    """
    stored = await store.read(key)
    names = [found.name for found in candidates]
    if stored is not None:
        try:
            head = head_at(store, key, stored.data)
            refs = [ref for log in head.logs.values() for ref in log.refs]
            refs += [register.ref for register in head.registers.values() if register.ref]
            used = set(await names_beneath(store, key, refs))
        except (CorruptDataError, UnsupportedVersionError) as error:
            _log.warning("a sweep left the pieces of a record alone: %s", error)
            return 0
        except MissingPieceError:
            return 0  # It is being changed; the next sweep will see to it.
        names = [name for name in names if name not in used]
        bumped = msgspec.structs.replace(head, version=head.version + 1)
        data = encode_head(bumped)
        if names and not dry_run and await store.swap(key, data, bumped, stored.token) is None:
            return 0
    if names and not dry_run:
        await store.delete_pieces(key, names)
    return len(names)


__all__ = ["sweep"]
