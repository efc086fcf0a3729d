"""Sweeping: tombstones, unreferenced pieces, and what the store itself left behind (C3 to C5)."""

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

import msgspec

from outlast.driver import ScopeKind, SweepPage
from outlast.errors import ConfigurationError, CorruptDataError, UnsupportedVersionError
from outlast.heads.encoding import encode_head
from outlast.heads.logs import MissingPieceError, names_beneath
from outlast.heads.store import Candidate, ObjectStore, head_at

_log = logging.getLogger("outlast")
_KINDS: Mapping[str, ScopeKind] = {"task": "task", "run": "run"}
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

    The parts, in this order: heads of tasks, heads of runs, pieces, temporary objects. ``after`` is
    the stage and where it goes on, such as ``"piece|..."``.
    """
    stage, _, position = (after or _STAGES[0]).partition("|")
    if stage not in _STAGES:
        raise ConfigurationError(f"a sweep cannot go on behind {after!r}")
    tombstones = debris = 0
    goes_on: str | None
    kind = _KINDS.get(stage)
    if kind is not None:
        keys = await store.list_empty(kind, position or None, _BATCH)
        tombstones, last = await _sweep_heads(store, keys, older_than, limit, dry_run=dry_run)
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
    if goes_on is not None:
        return SweepPage(tombstones, debris, f"{stage}|{goes_on}")
    following = _STAGES.index(stage) + 1
    return SweepPage(
        tombstones, debris, f"{_STAGES[following]}|" if following < len(_STAGES) else None
    )


async def _sweep_heads(
    store: ObjectStore, keys: Sequence[str], older_than: float, limit: int, *, dry_run: bool
) -> tuple[int, str | None]:
    """Remove the tombstones among ``keys``; how many, and the last key that was looked at."""
    removed = seen = 0
    now = await store.now()
    until = time.monotonic() + _SECONDS
    while seen < len(keys) and removed < limit and (not seen or time.monotonic() < until):
        some = keys[seen : seen + min(limit - removed, _AT_ONCE)]
        sweeps = [
            partial(_sweep_head, store, key, now, older_than, dry_run=dry_run) for key in some
        ]
        removed += sum(await store.gather(sweeps))
        seen += len(some)
    return removed, keys[seen - 1] if seen else None


async def _sweep_head(
    store: ObjectStore, key: str, now: float, older_than: float, *, dry_run: bool
) -> bool:
    stored = await store.read(key)
    if stored is None:
        return False
    try:
        head = head_at(store, key, stored.data)
    except (CorruptDataError, UnsupportedVersionError) as error:
        _log.warning("a sweep left a record alone: %s", error)
        return False
    is_old = _is_old(now - head.changed_at, older_than)
    if not head.is_empty or not is_old or not store.can_delete:
        return False
    if dry_run:
        return True
    await store.raise_floor(key, head.floor())
    return await store.delete(key, stored.token)


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
