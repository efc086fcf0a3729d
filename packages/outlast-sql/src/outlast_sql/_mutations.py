"""Mutations, as they run inside their transaction; SQL that every dialect takes.

A mutation runs on a blocking connection from start to end, and the transaction around it excludes
other mutations of the scope from its first statement on: where a transaction by itself does not
exclude others, that statement locks the scope's row. Decisions are those of `outlast.driver`, taken
in Python between two statements.
"""

from collections.abc import Iterator, Sequence
from operator import index as whole
from typing import Any, Final, NamedTuple, NoReturn

from outlast.driver import (
    Entry,
    Fence,
    Index,
    PreconditionFailedError,
    StoredFence,
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
from outlast_sql._schema import REGISTERS_OF_KIND


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
            # SQLite keeps in a column of numbers whatever is put there.
            whole(self.tail)
            return StoredFence(
                whole(self.epoch), self.claim_id.decode(), whole(self.seq), self.op.decode()
            )
        except NOT_AS_WRITTEN as error:
            raise damaged("outlast_scope", error) from error


_LIST: Final = 500
"""Parameters in one list; SQLite's oldest limit for a statement is 999."""

_FIND = """
SELECT sid, epoch, claim_id, seq, op, tail, parent, status, empty_since FROM outlast_scope
WHERE namespace = ? AND kind = ? AND id = ?
"""
_FLOOR = "SELECT epoch, version FROM outlast_floor WHERE namespace = ?"
_FIRST_FLOOR = " INTO outlast_floor (namespace, epoch, version) VALUES (?, 0, 0) "
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

_AMONG = (
    "unnest(?::bytea[]) AS wanted(id) JOIN outlast_entry"
    " ON entry_id = wanted.id AND sid = ? AND log = ?"
)
_LISTED = "sid = ? AND log = ? AND entry_id IN"
_HOLDS_ENTRY = "SELECT 1 FROM outlast_entry WHERE sid = ? LIMIT 1"
_ENTRY = " INTO outlast_entry (sid, log, pos, entry_id, data) VALUES (?, ?, ?, ?, ?)"
_ADD = f"INSERT{_ENTRY}"
_EMPTY = "DELETE FROM outlast_entry WHERE sid = ? AND log = ?"


def _find(db: Database, key: Key) -> Head | None:
    row = db.execute(_FIND + db.dialect.for_update, key).fetchone()
    return None if row is None else Head(*row)


def _now(db: Database) -> int:
    if db.dialect.now == "NULL":
        return microseconds()
    now: int = db.execute(f"SELECT {db.dialect.now}").fetchone()[0]
    return now


def make_floor(db: Database, namespace: bytes) -> None:
    db.execute(db.dialect.insert_or_ignore + _FIRST_FLOOR + db.dialect.on_conflict, (namespace,))


def floor(db: Database, namespace: bytes, lock: str = "") -> tuple[int, int]:
    """The epoch and the version of registers that no swept record was above.

    ``lock``: the end of the statement, if nobody else may raise it until the transaction ends.
    """
    row = db.execute(_FLOOR + lock, (namespace,)).fetchone()
    if row is None and lock:
        make_floor(db, namespace)  # What is not there cannot be locked.
        row = db.execute(_FLOOR + lock, (namespace,)).fetchone()
    try:
        return (0, 0) if row is None else (whole(row[0]), whole(row[1]))
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_floor", error) from error


def _create(db: Database, key: Key, fence: StoredFence, parent: bytes | None, now: int) -> Head:
    """Make a record with its registers, empty: a statement that finds the one finds the others."""
    claim_id, op = fence.claim_id.encode(), fence.op.encode()
    # Raised by a sweep from now on, it would not be below the record.
    version = floor(db, key.namespace, db.dialect.for_share)[1]
    db.execute(_CREATE, (*key, fence.epoch, claim_id, op, parent, now))
    head = _find(db, key)
    assert head is not None
    registers = REGISTERS_OF_KIND[key.kind]
    db.executemany(_SET_FIRST, [(version, now, None, head.sid, register) for register in registers])
    return head


def _version(db: Database, sid: int, register: int) -> int | None:
    row = db.execute(_VERSION, (sid, register)).fetchone()
    try:
        return None if row is None else whole(row[0])
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_register", error) from error


def _admitted(head: Head | None, fence: Fence | None) -> bool:
    return admit(None if head is None else head.fence, fence)


def _mark(head: Head, fence: Fence | None) -> tuple[int, bytes]:
    return (head.seq, head.op) if fence is None else (fence.seq, fence.op.encode())


def _is_empty(db: Database, sid: int) -> bool:
    return not (
        db.execute(_HOLDS_VALUE, (sid,)).fetchone() or db.execute(_HOLDS_ENTRY, (sid,)).fetchone()
    )


def claim(
    db: Database,
    key: Key,
    register: int,
    claim_id: str,
    *,
    at_least: int | None,
    if_epoch: int | None,
    parent: str | None,
) -> Value:
    """`Driver.claim`; ``register`` is the primary one."""
    head = _find(db, key)
    stored = None if head is None else head.fence
    lowest = floor(db, key.namespace, db.dialect.for_share if head is None else "")[0]
    fence = next_claim(stored, claim_id, at_least, lowest, if_epoch)
    now = _now(db)
    if head is None:
        _create(db, key, fence, encoded(parent), now)
        return read(db.dialect, key, register)(db)
    filed = encoded(parent)
    if filed is None or db.execute(_HOLDS_REGISTER, (head.sid, register)).fetchone():
        filed = head.parent  # Data are filed under what came with them.
    if fence is not stored:
        empty_since = None if head.empty_since is None else now
        claimed = fence.epoch, fence.claim_id.encode(), fence.op.encode()
        db.execute(_CLAIM, (*claimed, filed, empty_since, head.sid))
    elif filed != head.parent:
        db.execute(_REINDEX, (filed, head.status, head.sid))
    return read(db.dialect, key, register)(db)


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
    known = None if head is None else _version(db, head.sid, register)
    version = known or 0
    if not admitted:
        return version
    if if_version is not None and if_version != version:
        raise PreconditionFailedError(f"the register has version {version}, not {if_version}")
    if head is None and data is None:
        return 0
    now = _now(db)
    if head is None:
        head = _create(db, key, StoredFence(), None, now)
        known = _version(db, head.sid, register)
    version = (floor(db, key.namespace)[1] if known is None else known) + 1
    db.execute(_SET_FIRST if known is None else _SET, (version, now, data, head.sid, register))
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
    state = *_mark(head, fence), head.tail + 1 if tail is None else tail, empty_since
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
        head = _create(db, key, StoredFence(), None, _now(db))
    elif present or len(new) != 1 or not db.dialect.tells_ignored:
        _check_present(db, head.sid, log, present)
        known = _known(db, head.sid, log, new)
        if known:
            return known
    elif _add_if_new(db, head, log, new[0]):
        _advance(db, head, fence, None, tail=head.tail + 1)
        return []
    else:
        return _known(db, head.sid, log, new) or _raise_displaced()
    _add(db, head, log, new)
    empty_since = _now(db) if not new and head.empty_since is not None else None
    _advance(db, head, fence, empty_since, tail=head.tail + len(new))
    return []


def _add_if_new(db: Database, head: Head, log: int, entry: Entry) -> bool:
    """Add the entry unless its id is known, in one statement; whether it was added."""
    row = head.sid, log, head.tail + 1, entry.id.encode(), entry.data
    return db.execute(f"{db.dialect.insert_or_ignore}{_ENTRY}", row).rowcount == 1


def _raise_displaced() -> NoReturn:
    raise damaged("outlast_scope", ValueError("an entry has a position that is not given yet"))


def _check_present(db: Database, sid: int, log: int, present: Sequence[str]) -> None:
    ids = [entry_id.encode() for entry_id in present]
    if sum(count for (count,) in _by_id(db, "COUNT(*)", sid, log, ids)) != len(ids):
        raise PreconditionFailedError("an entry is not in the log any more")


def _known(db: Database, sid: int, log: int, new: Sequence[Entry]) -> list[Entry]:
    """The stored entries of the same ids, in the order of ``new``."""
    ids = [entry.id.encode() for entry in new]
    found: dict[bytes, bytes] = dict(_by_id(db, "entry_id, data", sid, log, ids))
    if not found:
        return []
    return [
        Entry(entry.id, found[key]) for key, entry in zip(ids, new, strict=True) if key in found
    ]


def _by_id(db: Database, what: str, sid: int, log: int, ids: Sequence[bytes]) -> list[Any]:
    if db.dialect.has_arrays:
        # PostgreSQL may look through the whole log for each part of a list.
        sql = f"SELECT {what} FROM {_AMONG}"
        return db.execute(sql, (ids, sid, log)).fetchall()
    found: list[Any] = []
    for some in parts(ids):
        sql = f"SELECT {what} FROM outlast_entry WHERE {_LISTED} {list_of(some)}"
        found += db.execute(sql, (sid, log, *some)).fetchall()
    return found


def parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Parts that are short enough for a list of parameters, in any database."""
    for start in range(0, len(items), _LIST):
        yield items[start : start + _LIST]


def list_of(items: Sequence[Any]) -> str:
    return f"({', '.join('?' * len(items))})"


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
    now = _now(db)
    if head is None:
        head = _create(db, key, StoredFence(), None, now)
    db.execute(_EMPTY, (head.sid, log))
    _add(db, head, log, new)
    empty_since = now if not new and _is_empty(db, head.sid) else None
    _advance(db, head, fence, empty_since, tail=head.tail + max(1, len(new)))


def remove(db: Database, key: Key, fence: Fence | None) -> None:
    """`Driver.remove`."""
    head = _find(db, key)
    if not _admitted(head, fence) or head is None:
        return
    now = _now(db)
    db.execute("DELETE FROM outlast_entry WHERE sid = ?", (head.sid,))
    db.execute(_CLEAR, (now, head.sid))
    _advance(db, head, fence, now, index=Index(parent=decoded(head.parent)))
