"""The mutations of PostgreSQL as single statements.

Each takes effect wholly or not at all, and only where nothing speaks against it; what does is found
out by the steps that all dialects share, in a transaction. A statement sees the state in which it
began. A row that it changes or locks is another matter: it waits for others, and goes on with the
row's newest version. So each begins at the scope's row, and reads nothing that may have changed
while it waited for that row, but rows that it changes or locks, too:

- Registers are made with their scope. One that a statement could not see yet would be missed.
- What a statement deletes or counts it has to see. It then wants the ``tail`` of the state in which
  it began: every mutation moves it.
- A known id is found by the unique index, which knows no states: the INSERT fails, and all with it.
  ON CONFLICT DO NOTHING would drop one entry of a batch and keep the others.
- Dividing by zero makes a statement fail at a row that is not as it should be.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_FENCE: Final = "namespace = $1 AND kind = $2 AND id = $3 AND epoch = $4 AND claim_id = $5"
_OWNED: Final = f"{_FENCE} AND seq < $6"
"""``$1`` to ``$8``: the scope, then `outlast_sql._server.Mark`."""


_SEEN: Final = """WITH seen AS MATERIALIZED (
  SELECT sid, tail FROM outlast_scope WHERE namespace = $1 AND kind = $2 AND id = $3
), """


def _head(change: str, *, seen: bool = False) -> str:
    """Locks the scope's row and changes it, if the fence and what was seen allow it."""
    start = _SEEN if seen else "WITH "
    unchanged = "AND outlast_scope.tail = seen.tail AND outlast_scope.sid = seen.sid"
    return f"""{start}head AS (
  UPDATE outlast_scope SET seq = $7, op = $8, {change} {"FROM seen" if seen else ""}
  WHERE {_OWNED} {unchanged if seen else ""}
  RETURNING outlast_scope.sid, outlast_scope.tail
)"""


_MANY: Final = """
  SELECT head.sid, $9::smallint, head.tail - $12::bigint + new.number, new.id, new.data
  FROM head, unnest($10::bytea[], $11::bytea[]) WITH ORDINALITY AS new(id, data, number)"""
_ADD: Final = "INSERT INTO outlast_entry (sid, log, pos, entry_id, data)"

APPEND_ONE: Final = f"""
{_head("tail = outlast_scope.tail + 1, empty_since = NULL")},
added AS ({_ADD} SELECT sid, $9::smallint, tail, $10::bytea, $11::bytea FROM head)
SELECT sid FROM head
"""
"""``$9``: log, ``$10``: id, ``$11``: data. A row if it was done, as for all that follow."""

APPEND_MANY: Final = f"""
{_head("tail = outlast_scope.tail + $12::bigint, empty_since = NULL")},
added AS ({_ADD} {_MANY})
SELECT sid FROM head
"""
"""``$9``: log, ``$10``: ids, ``$11``: data, ``$12``: how many."""

_ALL_PRESENT: Final = """$14 = (SELECT count(*) FROM unnest($13::bytea[]) AS wanted(id)
    JOIN outlast_entry ON entry_id = wanted.id AND sid = seen.sid AND log = $9::smallint)"""
APPEND_IF_PRESENT: Final = f"""
{
    _head("tail = outlast_scope.tail + $12::bigint, empty_since = NULL", seen=True).replace(
        "RETURNING", f"AND {_ALL_PRESENT} RETURNING"
    )
},
added AS ({_ADD} {_MANY})
SELECT sid FROM head
"""
"""As `APPEND_MANY`; ``$13``: ids that have to be there, ``$14``: how many."""

REPLACE: Final = f"""
{_head("tail = outlast_scope.tail + $12::bigint, empty_since = NULL", seen=True)},
gone AS (
  DELETE FROM outlast_entry USING head
  WHERE outlast_entry.sid = head.sid AND log = $9::smallint RETURNING 1
), added AS ({_ADD} {_MANY}, (SELECT count(*) FROM gone) AS first)
SELECT sid FROM head
"""
"""As `APPEND_MANY`. The ids that go are free before the new ones come."""

_ENTRIES: Final = "EXISTS (SELECT FROM outlast_entry AS e WHERE e.sid = seen.sid{})"
_VALUES: Final = (
    "EXISTS (SELECT FROM outlast_register AS r WHERE r.sid = seen.sid AND r.data IS NOT NULL{})"
)


def _emptied(entries: str = "", values: str = "") -> str:
    held = f"{_ENTRIES.format(entries)} OR {_VALUES.format(values)}"
    return f"tail = outlast_scope.tail + 1, empty_since = CASE WHEN NOT ({held}) THEN {NOW} END"


EMPTY_LOG: Final = f"""
{_head(_emptied(entries=" AND e.log <> $9::smallint"), seen=True)},
gone AS (
  DELETE FROM outlast_entry USING head WHERE outlast_entry.sid = head.sid AND log = $9::smallint
)
SELECT sid FROM head
"""
"""``$9``: log."""


@cache
def write(*, indexed: bool, compared: bool) -> str:
    """``$9``: register, ``$10``: data; then parent, status and ``updated_at`` if ``indexed``; then
    the expected version if ``compared``.

    A row with the new version if it was done.
    """
    index = ", parent = $11::bytea, status = $12::bytea, updated_at = $13::bigint"
    change = f"tail = outlast_scope.tail + 1, empty_since = NULL{index if indexed else ''}"
    return _set(_head(change), f"${14 if indexed else 11}::bigint" if compared else None)


@cache
def empty(*, primary: bool, compared: bool) -> str:
    """``$9``: register, ``$10``: ``NULL``; then the expected version if ``compared``.

    A row with the new version if it was done.
    """
    change = _emptied(values=" AND r.register <> $9::smallint")
    if primary:
        change += ", status = NULL, updated_at = 0"
    return _set(_head(change, seen=True), "$11::bigint" if compared else None)


def _set(head: str, expected: str | None) -> str:
    step = "1" if expected is None else f"1 / (version = {expected})::integer"
    return f"""
{head},
changed AS (
  UPDATE outlast_register SET version = version + {step}, changed_at = {NOW}, data = $10::bytea
  FROM head WHERE outlast_register.sid = head.sid AND register = $9::smallint RETURNING version
)
SELECT COALESCE((SELECT version FROM changed), 1 / (sid - sid)) FROM head
"""


REMOVE: Final = f"""
{
    _head(
        f"tail = outlast_scope.tail + 1, status = NULL, updated_at = 0, empty_since = {NOW}",
        seen=True,
    )
},
gone AS (DELETE FROM outlast_entry USING head WHERE outlast_entry.sid = head.sid),
cleared AS (
  UPDATE outlast_register SET version = version + 1, changed_at = {NOW}, data = NULL
  FROM head WHERE outlast_register.sid = head.sid
)
SELECT sid FROM head
"""

_CALLS: Final = {
    "kind": "smallint",
    "id": "bytea",
    "epoch": "bigint",
    "claim_id": "bytea",
    "below": "bigint",
    "seq": "bigint",
    "op": "bytea",
}


def _heads(change: str, columns: Mapping[str, str]) -> str:
    """`_head` for many scopes of one namespace, ``$1``; what follows is lists, of `_CALLS` and then
    of ``columns``.

    Leaves out what is locked, so that it never waits. The lists look like unknown ones, of a
    usual length, or the server would plan each length anew.
    """
    of_all = {**_CALLS, **columns}
    lists = [f"(SELECT ${number}::{kind}[])" for number, kind in enumerate(of_all.values(), 2)]
    return f"""WITH new AS MATERIALIZED (
  SELECT here.sid, given.* FROM unnest({", ".join(lists)})
    WITH ORDINALITY AS given({", ".join(of_all)}, number), LATERAL (
    SELECT sid FROM outlast_scope WHERE namespace = $1 AND kind = given.kind AND id = given.id
      AND epoch = given.epoch AND claim_id = given.claim_id AND seq < given.below
    FOR UPDATE SKIP LOCKED
  ) AS here
), head AS (
  UPDATE outlast_scope SET seq = new.seq, op = new.op, tail = tail + 1, empty_since = NULL{change}
  FROM new WHERE outlast_scope.sid = new.sid RETURNING outlast_scope.tail, new.*
)"""


APPEND_TOGETHER: Final = f"""
{_heads("", {"log": "smallint", "entry_id": "bytea", "data": "bytea"})},
added AS ({_ADD} SELECT sid, log, tail, entry_id, data FROM head)
SELECT number, sid FROM head
"""
"""`APPEND_ONE` for many scopes, see `_heads`. A row for each that was done: its place, from 1 on,
and what the statement for one scope returns."""


def write_together(*, indexed: bool) -> str:
    """`write` for many scopes, as `APPEND_TOGETHER`."""
    columns = {"register": "smallint", "data": "bytea"}
    if indexed:
        columns |= {"parent": "bytea", "status": "bytea", "updated_at": "bigint"}
    index = ", parent = new.parent, status = new.status, updated_at = new.updated_at"
    return f"""
{_heads(index if indexed else "", columns)},
changed AS (
  UPDATE outlast_register SET version = version + 1, changed_at = {NOW}, data = head.data
  FROM head WHERE outlast_register.sid = head.sid
    AND outlast_register.register = head.register RETURNING head.number, version
)
SELECT number, COALESCE(version, 1 / (sid - sid)) FROM head LEFT JOIN changed USING (number)
"""


CLAIM: Final = f"""
WITH head AS (
  UPDATE outlast_scope SET
    epoch = COALESCE($5::bigint, GREATEST(epoch, COALESCE(
      (SELECT epoch FROM outlast_floor WHERE namespace = $1), 0)) + 1),
    claim_id = $4, seq = 0, op = '',
    empty_since = CASE WHEN empty_since IS NOT NULL THEN {NOW} END
  WHERE namespace = $1 AND kind = $2 AND id = $3
    AND (epoch = 0 OR claim_id <> $4) AND ($5::bigint IS NULL OR $5::bigint > epoch)
    AND ($9::bigint IS NULL OR $9::bigint = epoch)
    AND ($6::bytea IS NULL OR parent = $6::bytea)
  RETURNING sid, epoch, parent
), kept AS (
  SELECT data, version, changed_at, epoch, parent
  FROM head JOIN outlast_register AS r ON r.sid = head.sid AND r.register = $7 FOR SHARE OF r
), floor AS (
  SELECT epoch, version FROM outlast_floor WHERE namespace = $1 FOR SHARE
), made AS (
  INSERT INTO outlast_scope
    (namespace, kind, id, epoch, claim_id, seq, op, tail, parent, updated_at, empty_since)
  SELECT $1, $2, $3, COALESCE($5::bigint, epoch + 1), $4, 0, '', 0, $6::bytea, 0, {NOW}
  FROM floor WHERE COALESCE($9::bigint, 0) = 0 AND NOT EXISTS (SELECT FROM head)
  RETURNING sid, epoch, parent
), blank AS (
  INSERT INTO outlast_register (sid, register, version, changed_at, data)
  SELECT sid, number, version, {NOW}, NULL FROM made, floor, unnest($8::smallint[]) AS number
)
SELECT data, version, changed_at, epoch, $4, 0, ''::bytea, parent, {NOW} FROM kept
UNION ALL
SELECT NULL, version, 0, made.epoch, $4, 0, ''::bytea, parent, 0 FROM made, floor
"""
"""``$1`` to ``$3``: the scope; ``$4``: claim_id, ``$5``: at_least, ``$6``: parent, ``$7``: primary
register, ``$8``: all registers, ``$9``: if_epoch. A row as `outlast_sql._reads.read` has it,
if it was done.

A record that is there is claimed, or one is made above the floor, which it keeps from being raised.
One that is there and cannot be claimed makes the INSERT fail, or nothing is done."""
