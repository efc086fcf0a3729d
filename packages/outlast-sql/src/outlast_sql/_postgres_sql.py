"""The mutations of PostgreSQL as single statements.

Each takes effect wholly or not at all, and only where nothing speaks against it; what does is found
out by the steps that all dialects share, in a transaction. A statement sees the state in which it
began. A row that it changes or locks is another matter: it waits for others, and goes on with the
row's newest version. So each begins at the scope's row, and reads nothing that may have changed
while it waited for that row, but rows that it changes or locks, too:

- Registers are made with their scope. One that a statement could not see yet would be missed.
- What a statement deletes it has to see. A replacement therefore wants the ``tail`` of the state in
  which it began: every new entry has moved it.
- A known id is found by the unique index, which knows no states: the INSERT fails, and all with it.
  ON CONFLICT DO NOTHING would drop one entry of a batch and keep the others.
- Dividing by zero makes a statement fail at a row that is not as it should be.
"""

from typing import Final

NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_FENCE: Final = "namespace = $1 AND kind = $2 AND id = $3 AND epoch = $4 AND claim_id = $5"
_OWNED: Final = f"{_FENCE} AND seq < $6"
"""``$1`` to ``$8``: the scope, then `outlast_sql._server.Mark`."""


def append(*, many: bool) -> str:
    """``$9``: log, ``$10``: ids, ``$11``: data, ``$12``: how many; without ``many`` of one entry.

    A row if it was done.
    """
    if many:
        count = "$12::bigint"
        new = (
            "SELECT head.sid, $9::smallint, head.tail - $12::bigint + new.number, new.id, new.data "
            "FROM head, unnest($10::bytea[], $11::bytea[]) WITH ORDINALITY AS new(id, data, number)"
        )
    else:
        count = "1"
        new = "SELECT sid, $9::smallint, tail, $10::bytea, $11::bytea FROM head"
    return f"""
WITH head AS (
  UPDATE outlast_scope SET seq = $7, op = $8, tail = tail + {count}, empty_since = NULL
  WHERE {_OWNED} RETURNING sid, tail
), added AS (INSERT INTO outlast_entry (sid, log, pos, entry_id, data) {new})
SELECT sid FROM head
"""


def write(*, indexed: bool, compared: bool) -> str:
    """``$9``: register, ``$10``: data; then parent, status and ``updated_at`` if ``indexed``; then
    the expected version if ``compared``.

    A row with the new version if it was done.
    """
    change = ", parent = $11::bytea, status = $12::bytea, updated_at = $13::bigint"
    expected = f"${14 if indexed else 11}::bigint"
    step = f"1 / (version = {expected})::integer" if compared else "1"
    return f"""
WITH head AS (
  UPDATE outlast_scope SET seq = $7, op = $8, empty_since = NULL{change if indexed else ""}
  WHERE {_OWNED} RETURNING sid
), changed AS (
  UPDATE outlast_register SET version = version + {step}, changed_at = {NOW}, data = $10::bytea
  FROM head WHERE outlast_register.sid = head.sid AND register = $9 RETURNING version
)
SELECT COALESCE((SELECT version FROM changed), 1 / (sid - sid)) FROM head
"""


_UNCHANGED_LOGS = """
WITH seen AS MATERIALIZED (
  SELECT sid, tail FROM outlast_scope WHERE namespace = $1 AND kind = $2 AND id = $3
), head AS (
  UPDATE outlast_scope SET seq = $7, op = $8, {change} FROM seen
  WHERE outlast_scope.sid = seen.sid AND outlast_scope.tail = seen.tail AND {owned}
  RETURNING outlast_scope.sid, outlast_scope.tail
)"""

REPLACE: Final = f"""{
    _UNCHANGED_LOGS.format(
        change="tail = outlast_scope.tail + $12::bigint, empty_since = NULL", owned=_OWNED
    )
}, gone AS (
  DELETE FROM outlast_entry USING head
  WHERE outlast_entry.sid = head.sid AND log = $9::smallint RETURNING 1
), added AS (
  INSERT INTO outlast_entry (sid, log, pos, entry_id, data)
  SELECT head.sid, $9::smallint, head.tail - $12::bigint + new.number, new.id, new.data
  FROM head, (SELECT count(*) FROM gone) AS first,
    unnest($10::bytea[], $11::bytea[]) WITH ORDINALITY AS new(id, data, number)
)
SELECT sid FROM head
"""
"""``$9`` to ``$12`` as for `append` of many. The ids that go are free before the new ones come."""

REMOVE: Final = f"""{
    _UNCHANGED_LOGS.format(
        change=f"status = NULL, updated_at = 0, empty_since = {NOW}", owned=_OWNED
    )
}, gone AS (DELETE FROM outlast_entry USING head WHERE outlast_entry.sid = head.sid)
, cleared AS (
  UPDATE outlast_register SET version = version + 1, changed_at = {NOW}, data = NULL
  FROM head WHERE outlast_register.sid = head.sid
)
SELECT sid FROM head
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
  FROM floor WHERE NOT EXISTS (SELECT FROM head) RETURNING sid, epoch, parent
), blank AS (
  INSERT INTO outlast_register (sid, register, version, changed_at, data)
  SELECT sid, number, version, {NOW}, NULL FROM made, floor, unnest($8::smallint[]) AS number
)
SELECT data, version, changed_at, epoch, $4, 0, ''::bytea, parent, {NOW} FROM kept
UNION ALL
SELECT NULL, version, 0, made.epoch, $4, 0, ''::bytea, parent, 0 FROM made, floor
"""
"""``$1`` to ``$3``: the scope; ``$4``: claim_id, ``$5``: at_least, ``$6``: parent, ``$7``: primary
register, ``$8``: all registers. A row as `outlast_sql._reads.read` has it, if it was done.

A record that is there is claimed, or one is made above the floor, which it keeps from being raised.
One that is there and cannot be claimed makes the INSERT fail."""
