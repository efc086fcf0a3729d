"""Reads: each a single statement, so that it sees one state; SQL that every dialect takes."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from outlast.driver import Entry, Item, Page, StoredFence, Value, Where
from outlast.errors import CorruptDataError


class Result(Protocol):
    """What a statement returned."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Database(Protocol):
    """A blocking connection: the part of sqlite3's that the steps use, ``?`` for parameters."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Result: ...
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object: ...


class Key(NamedTuple):
    """A scope as the tables know it."""

    namespace: bytes
    kind: int
    id: bytes


_READ = """
SELECT r.data, COALESCE(r.version, 0), r.changed_at, s.epoch, s.claim_id, s.seq, s.op, s.parent
FROM outlast_scope s LEFT JOIN outlast_register r ON r.sid = s.sid AND r.register = ?
WHERE s.namespace = ? AND s.kind = ? AND s.id = ?
"""
_LOAD = """
SELECT e.entry_id, e.data FROM outlast_scope s JOIN outlast_entry e ON e.sid = s.sid
WHERE s.namespace = ? AND s.kind = ? AND s.id = ? AND e.log = ? ORDER BY e.pos
"""
_LOAD_LAST = _LOAD.rstrip() + " DESC LIMIT ?"


NOT_AS_WRITTEN: Final = (AttributeError, TypeError, UnicodeDecodeError)
"""What decoding a value of another type, or other bytes, raises."""

_Make = Callable[[type[Entry], tuple[str, bytes]], Entry]
_new: Final = cast("_Make", getattr(tuple, "__new__"))  # noqa: B009 - its type is too wide
"""Makes a named tuple in two thirds of the time that its own constructor takes."""


def microseconds() -> int:
    """The store's clock, where the store is on this host."""
    return time.time_ns() // 1000


def encoded(text: str | None) -> bytes | None:
    """``text`` as the tables hold it."""
    return None if text is None else text.encode()


def decoded(data: bytes | None) -> str | None:
    """Text as the tables hold it, decoded."""
    return None if data is None else data.decode()


def damaged(table: str, error: Exception) -> CorruptDataError:
    """The error for a column that holds what outlast does not write there (V8)."""
    return CorruptDataError(
        f"a row of the table {table} was changed or damaged: {type(error).__name__}; restore a "
        "backup"
    )


def _value(row: Sequence[Any], now: int) -> Value:
    data, version, changed_at, epoch, claim_id, seq, op, parent = row
    try:
        return Value(
            data,
            version,
            0.0 if data is None else max(0, now - changed_at) / 1e6,
            StoredFence(epoch, claim_id.decode(), seq, op.decode()),
            decoded(parent),
        )
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_scope or outlast_register", error) from error


def read(db: Database, key: Key, register: int) -> Value:
    """`Driver.read`."""
    row = db.execute(_READ, (register, *key)).fetchone()
    return Value() if row is None else _value(row, microseconds())


def load(db: Database, key: Key, log: int, last: int | None) -> list[Entry]:
    """`Driver.load`."""
    if last is None:
        rows = db.execute(_LOAD, (*key, log)).fetchall()
    else:
        rows = db.execute(_LOAD_LAST, (*key, log, last)).fetchall()
        rows.reverse()
    try:
        return [_new(Entry, (entry_id.decode(), data)) for entry_id, data in rows]
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_entry", error) from error


def scan(
    db: Database,
    namespace: bytes,
    kind: int,
    register: int,
    where: Where,
    after: str | None,
    limit: int,
) -> Page:
    """`Driver.scan`, of scopes whose primary register is ``register``."""
    conditions = ["s.namespace = ?", "s.kind = ?"]
    parameters: list[object] = [register, namespace, kind]
    for condition, parameter in (
        ("s.parent = ?", encoded(where.parent)),
        ("s.status = ?", encoded(where.status)),
        ("s.updated_at < ?", where.updated_before),
        ("s.id > ?", encoded(after)),
    ):
        if parameter is not None:
            conditions.append(condition)
            parameters.append(parameter)
    if not where.with_empty:
        conditions.append("r.data IS NOT NULL")
    sql = (
        "SELECT r.data, COALESCE(r.version, 0), r.changed_at, s.epoch, s.claim_id, s.seq, s.op,"
        " s.parent, s.id FROM outlast_scope s LEFT JOIN outlast_register r"
        f" ON r.sid = s.sid AND r.register = ? WHERE {' AND '.join(conditions)}"
        " ORDER BY s.id LIMIT ?"
    )
    rows = db.execute(sql, (*parameters, limit)).fetchall()
    now = microseconds()
    try:
        items = [Item(row[-1].decode(), _value(row[:-1], now)) for row in rows]
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_scope", error) from error
    return Page(items, items[-1].id if items and len(items) >= limit else None)
