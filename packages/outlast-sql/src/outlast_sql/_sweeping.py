"""Sweeping: records without data go after some time, the floor being raised before (C5)."""

from collections.abc import Sequence
from operator import index as whole
from typing import Any, NamedTuple

from outlast.driver import SweepPage
from outlast_sql._mutations import floor, list_of, make_floor, parts
from outlast_sql._reads import NOT_AS_WRITTEN, Database, Dialect, Query, damaged, microseconds


class Stale(NamedTuple):
    """A record without data, as a sweep saw it."""

    empty_since: int
    sid: int
    epoch: int
    seq: int
    claim_id: bytes


_STALE = """
SELECT empty_since, sid, epoch, seq, claim_id FROM outlast_scope
WHERE namespace = ? AND empty_since <= {before} AND empty_since >= ?
AND (empty_since > ? OR sid > ?) ORDER BY empty_since, sid LIMIT ?
"""
_STILL = """
SELECT empty_since, sid, epoch, seq, claim_id FROM outlast_scope
WHERE empty_since IS NOT NULL AND sid IN """
_HIGHEST = "SELECT MAX(version) FROM outlast_register WHERE sid IN "
_RAISE = "UPDATE outlast_floor SET epoch = ?, version = ? WHERE namespace = ?"


def stale(
    dialect: Dialect, namespace: bytes, older_than: float, limit: int, after: str | None
) -> Query[list[Stale]]:
    """The records that `Driver.sweep` would remove."""
    age = round(older_than * 1e6)
    before = f"{microseconds() if dialect.now == 'NULL' else dialect.now} - {age}"
    since, number = (int(part) for part in (after or "0:0").split(":"))
    return Query(_STALE.format(before=before), (namespace, since, since, number, limit), _stale_of)


def page_of(found: Sequence[Stale], removed: int, limit: int) -> SweepPage:
    """What `Driver.sweep` returns; there are no left-overs, since a crash rolls back."""
    following = f"{found[-1].empty_since}:{found[-1].sid}" if len(found) >= limit else None
    return SweepPage(tombstones=removed, debris=0, next=following)


def sweep(db: Database, namespace: bytes, query: Query[list[Stale]], limit: int) -> SweepPage:
    """`Driver.sweep`."""
    found = query(db)
    removed = 0
    for some in parts(found):
        numbers = list_of(some)
        locking = f"{_STILL}{numbers} ORDER BY sid{db.dialect.for_update}"
        still = _stale_of(db.execute(locking, [item.sid for item in some]).fetchall())
        # Unchanged since they were read, and now nobody can change them (C5).
        same = sorted(set(some) & set(still))
        if not same:
            continue
        sids, numbers = [item.sid for item in same], list_of(same)
        highest = db.execute(_HIGHEST + numbers, sids).fetchone()[0] or 0
        _raise_floor(db, namespace, max(item.epoch for item in same), highest)
        db.execute(f"DELETE FROM outlast_register WHERE sid IN {numbers}", sids)
        db.execute(f"DELETE FROM outlast_scope WHERE sid IN {numbers}", sids)
        removed += len(same)
    return page_of(found, removed, limit)


def _stale_of(rows: list[Any]) -> list[Stale]:
    try:
        return [
            Stale(whole(since), whole(sid), whole(epoch), whole(seq), claim_id)
            for since, sid, epoch, seq, claim_id in rows
        ]
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_scope", error) from error


def _raise_floor(db: Database, namespace: bytes, epoch: int, version: int) -> None:
    make_floor(db, namespace)
    before = floor(db, namespace, db.dialect.for_update)
    db.execute(_RAISE, (max(epoch, before[0]), max(version, before[1]), namespace))
