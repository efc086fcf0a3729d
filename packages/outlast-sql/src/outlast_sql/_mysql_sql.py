"""The mutations of MariaDB as single compound statements.

Each is one transaction on the server: it locks the scope's row, then changes what has to be
changed; every statement in it sees what is committed by then. It takes effect wholly, and only
where nothing speaks against it; what does is found out by the steps that all dialects share. A
known id fails the unique index, and so all of it.

MySQL knows no such statements outside of stored routines; there the steps do it all.
"""

from functools import cache
from typing import Final

NOW: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
"""Whatever the session's time zone is."""

_TRANSACTION: Final = """
BEGIN NOT ATOMIC
  DECLARE head, last{more} BIGINT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  START TRANSACTION;
  {body}
  COMMIT;
  {end}
END
"""
_SCOPE: Final = """
  SELECT sid, tail INTO head, last FROM outlast_scope
  WHERE namespace = ? AND kind = ? AND id = ? AND epoch = ? AND claim_id = ? AND seq < ?
  FOR UPDATE{wait};
  IF head IS NOT NULL THEN {body} END IF;"""
_FRAME: Final = _TRANSACTION.format(more="", body=_SCOPE.replace("{wait}", ""), end="")
"""Parameters: the scope, then the first three of `outlast_sql._server.Mark`; then those of the
body. A row if it was done."""

_ADD: Final = "INSERT INTO outlast_entry (sid, log, pos, entry_id, data) VALUES "
_IS_EMPTY: Final = """NOT (
      EXISTS (SELECT 1 FROM outlast_entry AS e WHERE e.sid = head) OR EXISTS (
        SELECT 1 FROM outlast_register AS r WHERE r.sid = head AND r.data IS NOT NULL))"""


def _rows(count: int) -> str:
    return ", ".join(f"(head, ?, last + {number}, ?, ?)" for number in range(1, count + 1))


def append(count: int) -> str:
    """``count`` entries; for each its log, id and data, then seq and op."""
    return _FRAME.format(body=_append(count))


def _append(count: int) -> str:
    return f"""
    {_ADD} {_rows(count)};
    UPDATE outlast_scope SET seq = ?, op = ?, tail = last + {count}, empty_since = NULL
    WHERE sid = head;
    SELECT head;"""


def replace(count: int) -> str:
    """Log; for each of ``count`` entries its log, id and data; seq, op."""
    empty_since = "NULL" if count else f"CASE WHEN {_IS_EMPTY} THEN {NOW} END"
    return _FRAME.format(
        body=f"""
    DELETE FROM outlast_entry WHERE sid = head AND log = ?;
    {f"{_ADD} {_rows(count)};" if count else ""}
    UPDATE outlast_scope
    SET seq = ?, op = ?, tail = last + {count}, empty_since = {empty_since} WHERE sid = head;
    SELECT head;"""
    )


@cache
def write(*, indexed: bool, compared: bool) -> str:
    """Data, register, the expected version if ``compared``, seq, op; then parent, status and
    ``updated_at`` if ``indexed``.

    The row has the new version.
    """
    return _FRAME.format(body=_write(indexed=indexed, compared=compared))


def _write(*, indexed: bool, compared: bool) -> str:
    index = ", parent = ?, status = ?, updated_at = ?" if indexed else ""
    return _set(f"empty_since = NULL{index}", compared=compared)


@cache
def empty(*, primary: bool, compared: bool) -> str:
    """``NULL``, register, the expected version if ``compared``, seq, op.

    The row has the new version.
    """
    change = f"empty_since = CASE WHEN {_IS_EMPTY} THEN {NOW} END"
    if primary:
        change += ", status = NULL, updated_at = 0"
    return _FRAME.format(body=_set(change, compared=compared))


def _set(change: str, *, compared: bool) -> str:
    return f"""
    UPDATE outlast_register
    SET version = LAST_INSERT_ID(version + 1), changed_at = {NOW}, data = ?
    WHERE sid = head AND register = ?{" AND version = ?" if compared else ""};
    IF ROW_COUNT() = 1 THEN
      UPDATE outlast_scope SET seq = ?, op = ?, {change} WHERE sid = head;
      SELECT LAST_INSERT_ID();
    END IF;"""


REMOVE: Final = _FRAME.format(
    body=f"""
    DELETE FROM outlast_entry WHERE sid = head;
    UPDATE outlast_register SET version = version + 1, changed_at = {NOW}, data = NULL
    WHERE sid = head;
    UPDATE outlast_scope
    SET seq = ?, op = ?, status = NULL, updated_at = 0, empty_since = {NOW} WHERE sid = head;
    SELECT head;"""
)
"""Seq, op."""

_SHARED: Final = {
    append(1): _append(1),
    **{
        write(indexed=indexed, compared=False): _write(indexed=indexed, compared=False)
        for indexed in (False, True)
    },
}
TOGETHER: Final = _SHARED.keys()
"""The statements that `together` knows."""


@cache
def together(statement: str, count: int) -> str:
    """The statement for each of ``count`` scopes, as one; its parameters as often, NULLs for none.

    Leaves out what is locked, so that it never waits. One row: for each scope what the statement
    by itself returns, or NULL if it was not done.
    """
    answers = [f"answer{number}" for number in range(count)]
    body = "".join(
        "  SET head = NULL;"
        + _SCOPE.format(
            wait=" SKIP LOCKED", body=_SHARED[statement].replace("SELECT", f"SET {answer} =")
        )
        for answer in answers
    )
    listed = ", ".join(answers)
    return _TRANSACTION.format(more=f", {listed}", body=body, end=f"SELECT {listed};")
