"""Mutations, as they run inside their transaction; SQL that every dialect takes.

A mutation runs on a blocking connection from start to end, and the transaction around it excludes
other mutations of the scope from its first statement on. Decisions are those of `outlast.driver`,
taken in Python between two statements.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from outlast.driver import (
    Entry,
    Fence,
    Index,
    PreconditionFailedError,
    StoredFence,
    SweepPage,
    Value,
    admit,
    next_claim,
)
from outlast_sql._reads import (
    NOT_AS_WRITTEN,
    Database,
    Key,
    damaged,
    decoded,
    encoded,
    microseconds,
    read,
)


class Head(NamedTuple):
    """A scope's record."""

    sid: int
    epoch: int
    claim_id: bytes
    seq: int
    op: bytes
    tail: int
    parent: bytes | None
    status: bytes | None
    empty_since: int | None

    @property
    def fence(self) -> StoredFence:
        try:
            return StoredFence(self.epoch, self.claim_id.decode(), self.seq, self.op.decode())
        except NOT_AS_WRITTEN as error:
            raise damaged("outlast_scope", error) from error


_FIND = """
SELECT sid, epoch, claim_id, seq, op, tail, parent, status, empty_since FROM outlast_scope
WHERE namespace = ? AND kind = ? AND id = ?
"""
_FLOOR = "SELECT epoch, version FROM outlast_floor WHERE namespace = ?"
_CREATE = """
INSERT INTO outlast_scope
(namespace, kind, id, epoch, claim_id, seq, op, tail, parent, updated_at, empty_since)
VALUES (?, ?, ?, ?, ?, 0, ?, 0, ?, 0, ?)
"""
_CLAIM = """
UPDATE outlast_scope SET epoch = ?, claim_id = ?, seq = 0, op = ?, parent = ?, empty_since = ?
WHERE sid = ?
"""
_ADVANCE = "UPDATE outlast_scope SET seq = ?, op = ?, tail = ?, empty_since = ? WHERE sid = ?"
_ADVANCE_INDEX = """
UPDATE outlast_scope SET seq = ?, op = ?, tail = ?, empty_since = ?, updated_at = ? WHERE sid = ?
"""
_REINDEX = "UPDATE outlast_scope SET parent = ?, status = ? WHERE sid = ?"

_VERSION = "SELECT version FROM outlast_register WHERE sid = ? AND register = ?"
_SET = """
UPDATE outlast_register SET version = ?, changed_at = ?, data = ? WHERE sid = ? AND register = ?
"""
_SET_FIRST = (
    "INSERT INTO outlast_register (version, changed_at, data, sid, register) VALUES (?, ?, ?, ?, ?)"
)
_CLEAR = (
    "UPDATE outlast_register SET version = version + 1, changed_at = ?, data = NULL WHERE sid = ?"
)
_HOLDS_REGISTER = (
    "SELECT 1 FROM outlast_register WHERE sid = ? AND register = ? AND data IS NOT NULL"
)
_HOLDS_VALUE = "SELECT 1 FROM outlast_register WHERE sid = ? AND data IS NOT NULL LIMIT 1"

_ENTRY = "SELECT data FROM outlast_entry WHERE sid = ? AND log = ? AND entry_id = ?"
_HAS_ENTRY = "SELECT 1 FROM outlast_entry WHERE sid = ? AND log = ? AND entry_id = ?"
_HOLDS_ENTRY = "SELECT 1 FROM outlast_entry WHERE sid = ? LIMIT 1"
_ADD = "INSERT INTO outlast_entry (sid, log, pos, entry_id, data) VALUES (?, ?, ?, ?, ?)"
_EMPTY = "DELETE FROM outlast_entry WHERE sid = ? AND log = ?"

_STALE = """
SELECT empty_since, sid, epoch,
(SELECT COALESCE(MAX(r.version), 0) FROM outlast_register r WHERE r.sid = s.sid)
FROM outlast_scope s WHERE namespace = ? AND empty_since <= ? AND empty_since >= ?
AND (empty_since > ? OR sid > ?) ORDER BY empty_since, sid LIMIT ?
"""
_RAISE = "UPDATE outlast_floor SET epoch = ?, version = ? WHERE namespace = ?"
_RAISE_FIRST = "INSERT INTO outlast_floor (epoch, version, namespace) VALUES (?, ?, ?)"


def _find(db: Database, key: Key) -> Head | None:
    row = db.execute(_FIND, key).fetchone()
    return None if row is None else Head(*row)


def _floor(db: Database, namespace: bytes) -> tuple[int, int]:
    """The epoch and the version of registers that no swept record was above."""
    row = db.execute(_FLOOR, (namespace,)).fetchone()
    return (0, 0) if row is None else (row[0], row[1])


def _create(db: Database, key: Key, fence: StoredFence, parent: bytes | None, now: int) -> Head:
    claim_id, op = fence.claim_id.encode(), fence.op.encode()
    db.execute(_CREATE, (*key, fence.epoch, claim_id, op, parent, now))
    head = _find(db, key)
    assert head is not None
    return head


def _find_or_create(db: Database, key: Key, head: Head | None, now: int) -> Head:
    return head or _create(db, key, StoredFence(), None, now)


def _admitted(head: Head | None, fence: Fence | None) -> bool:
    return admit(None if head is None else head.fence, fence)


def _mark(head: Head, fence: Fence | None) -> tuple[int, bytes]:
    return (head.seq, head.op) if fence is None else (fence.seq, fence.op.encode())


def _is_empty(db: Database, sid: int) -> bool:
    return not (
        db.execute(_HOLDS_VALUE, (sid,)).fetchone() or db.execute(_HOLDS_ENTRY, (sid,)).fetchone()
    )


def claim(
    db: Database, key: Key, register: int, claim_id: str, at_least: int | None, parent: str | None
) -> Value:
    """`Driver.claim`; ``register`` is the primary one."""
    head = _find(db, key)
    stored = None if head is None else head.fence
    fence = next_claim(stored, claim_id, at_least, _floor(db, key.namespace)[0])
    now = microseconds()
    if head is None:
        _create(db, key, fence, encoded(parent), now)
        return read(db, key, register)
    filed = encoded(parent)
    if filed is None or db.execute(_HOLDS_REGISTER, (head.sid, register)).fetchone():
        filed = head.parent  # Data are filed under what came with them.
    if fence is not stored:
        empty_since = None if head.empty_since is None else now
        claimed = fence.epoch, fence.claim_id.encode(), fence.op.encode()
        db.execute(_CLAIM, (*claimed, filed, empty_since, head.sid))
    elif filed != head.parent:
        db.execute(_REINDEX, (filed, head.status, head.sid))
    return read(db, key, register)


def write(
    db: Database,
    key: Key,
    register: int,
    data: bytes | None,
    fence: Fence | None,
    index: Index | None,
    if_version: int | None,
    *,
    is_primary: bool,
) -> int:
    """`Driver.write`."""
    head = _find(db, key)
    admitted = _admitted(head, fence)
    row = head and db.execute(_VERSION, (head.sid, register)).fetchone()
    version: int = row[0] if row else 0
    if not admitted:
        return version
    if if_version is not None and if_version != version:
        raise PreconditionFailedError(f"the register has version {version}, not {if_version}")
    if head is None and data is None:
        return 0
    now = microseconds()
    head = _find_or_create(db, key, head, now)
    version = (version if row else _floor(db, key.namespace)[1]) + 1
    db.execute(_SET if row else _SET_FIRST, (version, now, data, head.sid, register))
    empty_since = now if data is None and _is_empty(db, head.sid) else None
    _advance(
        db, head, fence, empty_since, index=_new_index(head, data, index, is_primary=is_primary)
    )
    return version


def _new_index(
    head: Head, data: bytes | None, index: Index | None, *, is_primary: bool
) -> Index | None:
    if is_primary and data is None:
        return Index(parent=decoded(head.parent))
    return index


def _advance(
    db: Database,
    head: Head,
    fence: Fence | None,
    empty_since: int | None,
    *,
    tail: int | None = None,
    index: Index | None = None,
) -> None:
    state = *_mark(head, fence), head.tail if tail is None else tail, empty_since
    if index is None:
        db.execute(_ADVANCE, (*state, head.sid))
        return
    db.execute(_ADVANCE_INDEX, (*state, index.updated_at, head.sid))
    parent, status = encoded(index.parent), encoded(index.status)
    # Only if they change: it costs a page of each index.
    if parent != head.parent or status != head.status:
        db.execute(_REINDEX, (parent, status, head.sid))


def append(
    db: Database,
    key: Key,
    log: int,
    new: Sequence[Entry],
    fence: Fence | None,
    present: Sequence[str],
) -> list[Entry]:
    """`Driver.append`."""
    head = _find(db, key)
    if not _admitted(head, fence):
        return []
    if head is None:
        if present:
            raise PreconditionFailedError("an entry is not in the log any more")
        if not new:
            return []
        head = _find_or_create(db, key, head, microseconds())
    else:
        for entry_id in present:
            if db.execute(_HAS_ENTRY, (head.sid, log, entry_id.encode())).fetchone() is None:
                raise PreconditionFailedError("an entry is not in the log any more")
        known = list(_known(db, head.sid, log, new))
        if known:
            return known
    _add(db, head, log, new)
    empty_since = microseconds() if not new and head.empty_since is not None else None
    _advance(db, head, fence, empty_since, tail=head.tail + len(new))
    return []


def _known(db: Database, sid: int, log: int, new: Sequence[Entry]) -> Iterable[Entry]:
    for entry in new:
        row = db.execute(_ENTRY, (sid, log, entry.id.encode())).fetchone()
        if row is not None:
            yield Entry(entry.id, row[0])


def _add(db: Database, head: Head, log: int, new: Sequence[Entry]) -> None:
    if len(new) == 1:
        entry = new[0]
        db.execute(_ADD, (head.sid, log, head.tail + 1, entry.id.encode(), entry.data))
    else:
        db.executemany(
            _ADD,
            [
                (head.sid, log, position, entry.id.encode(), entry.data)
                for position, entry in enumerate(new, head.tail + 1)
            ],
        )


def replace(db: Database, key: Key, log: int, new: Sequence[Entry], fence: Fence | None) -> None:
    """`Driver.replace`."""
    head = _find(db, key)
    if not _admitted(head, fence) or (head is None and not new):
        return
    now = microseconds()
    head = _find_or_create(db, key, head, now)
    db.execute(_EMPTY, (head.sid, log))
    _add(db, head, log, new)
    empty_since = now if not new and _is_empty(db, head.sid) else None
    _advance(db, head, fence, empty_since, tail=head.tail + len(new))


def remove(db: Database, key: Key, fence: Fence | None) -> None:
    """`Driver.remove`."""
    head = _find(db, key)
    if not _admitted(head, fence) or head is None:
        return
    now = microseconds()
    db.execute("DELETE FROM outlast_entry WHERE sid = ?", (head.sid,))
    db.execute(_CLEAR, (now, head.sid))
    _advance(db, head, fence, now, index=Index(parent=decoded(head.parent)))


def sweep(
    db: Database,
    namespace: bytes,
    older_than: float,
    limit: int,
    after: str | None,
    *,
    dry_run: bool,
) -> SweepPage:
    """`Driver.sweep`; there are no left-overs, since a crash rolls back."""
    before = microseconds() - round(older_than * 1e6)
    since, number = (int(part) for part in (after or "0:0").split(":"))
    stale = db.execute(_STALE, (namespace, before, since, since, number, limit)).fetchall()
    if stale and not dry_run:
        _raise_floor(db, namespace, max(row[2] for row in stale), max(row[3] for row in stale))
        numbers = [(sid,) for _, sid, _, _ in stale]
        db.executemany("DELETE FROM outlast_register WHERE sid = ?", numbers)
        db.executemany("DELETE FROM outlast_scope WHERE sid = ?", numbers)
    following = f"{stale[-1][0]}:{stale[-1][1]}" if stale and len(stale) >= limit else None
    return SweepPage(tombstones=len(stale), debris=0, next=following)


def _raise_floor(db: Database, namespace: bytes, epoch: int, version: int) -> None:
    row = db.execute(_FLOOR, (namespace,)).fetchone()
    if row is None:
        db.execute(_RAISE_FIRST, (epoch, version, namespace))
    else:
        db.execute(_RAISE, (max(epoch, row[0]), max(version, row[1]), namespace))
