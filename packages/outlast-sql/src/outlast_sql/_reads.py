"""Reads: each a single statement, so that it sees one state; SQL that every dialect takes."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import index
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

from outlast.driver import Decoding, Entry, Item, Page, StoredFence, Value, Where
from outlast.errors import CorruptDataError

ResultT = TypeVar("ResultT")
Row = Sequence[Any]


class Dialect(NamedTuple):
    """What differs between the dialects in the shared statements.

    Attributes:
        now: The store's clock in microseconds, as an expression; ``NULL``: that of this process.
        for_update: Ends a SELECT that locks its rows for a change.
        for_share: Ends a SELECT that keeps its rows from being changed.
        insert_or_ignore: Begins an INSERT that does nothing if the row is there.
        on_conflict: Ends it.
        tells_ignored: Whether the result tells that ``insert_or_ignore`` did nothing.
        has_arrays: Whether a parameter may be a list, which ``unnest`` makes rows of.
    """

    now: str
    for_update: str = ""
    for_share: str = ""
    insert_or_ignore: str = "INSERT"
    on_conflict: str = ""
    tells_ignored: bool = False
    has_arrays: bool = False


class Result(Protocol):
    """What a statement returned."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
    def close(self) -> None: ...


class Database(Protocol):
    """A blocking connection: the part of sqlite3's that the steps use, ``?`` for parameters."""

    @property
    def dialect(self) -> Dialect: ...
    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Result: ...
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object: ...


class Query(Generic[ResultT]):
    """One statement that reads, and what its rows mean."""

    __slots__ = ("decode", "parameters", "sql")

    def __init__(
        self, sql: str, parameters: Sequence[Any], decode: Callable[[Any], ResultT]
    ) -> None:
        self.sql = sql
        self.parameters = parameters
        self.decode = decode

    def __call__(self, db: Database) -> ResultT:
        """Run it on a blocking connection."""
        return self.decode(db.execute(self.sql, self.parameters).fetchall())


class _Streamed(Query[ResultT]):
    """A query whose rows are decoded as they come, where they come one by one: many of them are not
    held beside what becomes of them.
    """

    __slots__ = ()

    def __call__(self, db: Database) -> ResultT:
        rows = db.execute(self.sql, self.parameters)
        try:
            return self.decode(rows)
        finally:
            rows.close()


class Key(NamedTuple):
    """A scope as the tables know it."""

    namespace: bytes
    kind: int
    id: bytes


_READ = """
SELECT r.data, COALESCE(r.version, 0), r.changed_at, s.epoch, s.claim_id, s.seq, s.op, s.parent,
{now} FROM outlast_scope s LEFT JOIN outlast_register r ON r.sid = s.sid AND r.register = ?
WHERE s.namespace = ? AND s.kind = ? AND s.id = ?
"""
_LOAD = """
SELECT {} FROM outlast_entry e WHERE e.sid = (
  SELECT s.sid FROM outlast_scope s WHERE s.namespace = ? AND s.kind = ? AND s.id = ?
) AND e.log = ? ORDER BY e.pos"""
# Not joined: PostgreSQL would take any index of the entries, and sort them with their data.
_REST = "CASE WHEN substr(e.data, 1, {size}) = ? THEN substr(e.data, {size} + 1) END"
# A short part of a large value is cheap to get; comparing the whole value would not be.


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


def _value(row: Row) -> Value:
    data, version, changed_at, epoch, claim_id, seq, op, parent, now = row
    if data is not None and now is None:
        now = microseconds()
    # SQLite keeps in a column of numbers whatever is put there.
    return Value(
        data,
        index(version),
        0.0 if data is None else max(0, now - index(changed_at)) / 1e6,
        StoredFence(index(epoch), claim_id.decode(), index(seq), op.decode()),
        decoded(parent),
    )


def value_of(rows: Sequence[Row]) -> Value:
    """The value in the rows that `read` gets: one, or none."""
    if not rows:
        return Value()
    try:
        return _value(rows[0])
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_scope or outlast_register", error) from error


def read(dialect: Dialect, key: Key, register: int) -> Query[Value]:
    """`Driver.read`."""
    return Query(_READ.format(now=dialect.now), (register, *key), value_of)


def load(key: Key, log: int, last: int | None) -> Query[list[Entry]]:
    """`Driver.load`."""
    return _load("e.entry_id, e.data", key, log, last, _entries, Query)


def load_data(
    key: Key, log: int, decode: Callable[[Iterable[bytes]], ResultT], last: int | None
) -> Query[ResultT]:
    """`Driver.load_data`."""
    return _load("e.data", key, log, last, _column(decode), _Streamed)


def load_rest(
    key: Key, log: int, decode: Decoding[ResultT], last: int | None
) -> Query[ResultT | None]:
    """`load_data` of what is behind the header; ``None``: it takes `load_data`."""
    column = _REST.format(size=len(decode.header))
    return _load(column, key, log, last, _column(decode.decode_rest), _Streamed, decode.header)


def _column(decode: Callable[[Iterable[Any]], ResultT]) -> Callable[[Iterable[Any]], ResultT]:
    """For rows of one column."""
    return lambda rows: decode(chain.from_iterable(rows))


def _load(
    columns: str,
    key: Key,
    log: int,
    last: int | None,
    decode: Callable[[Any], ResultT],
    query: type[Query[Any]],
    *parameters: object,
) -> Query[ResultT]:
    sql = _LOAD.format(columns)
    if last is None:
        return query(sql, (*parameters, *key, log), decode)
    return Query(
        f"{sql} DESC LIMIT ?", (*parameters, *key, log, last), lambda rows: decode(rows[::-1])
    )


def _entries(rows: list[Any]) -> list[Entry]:
    try:
        return [_new(Entry, (entry_id.decode(), data)) for entry_id, data in rows]
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_entry", error) from error


def scan(
    dialect: Dialect,
    namespace: bytes,
    kind: int,
    register: int,
    where: Where,
    after: str | None,
    limit: int,
) -> Query[Page]:
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
        f" s.parent, {dialect.now}, s.id FROM outlast_scope s LEFT JOIN outlast_register r"
        f" ON r.sid = s.sid AND r.register = ? WHERE {' AND '.join(conditions)}"
        " ORDER BY s.id LIMIT ?"
    )
    return Query(sql, (*parameters, limit), lambda rows: _page(rows, limit))


def _page(rows: list[Any], limit: int) -> Page:
    try:
        items = [Item(row[-1].decode(), _value(row[:-1])) for row in rows]
    except NOT_AS_WRITTEN as error:
        raise damaged("outlast_scope", error) from error
    return Page(items, items[-1].id if items and len(items) >= limit else None)
