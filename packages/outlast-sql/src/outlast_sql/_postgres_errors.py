"""Errors of PostgreSQL, by SQLSTATE, become outlast's here (E3)."""

import re
import ssl
from typing import Any, Final

from outlast.errors import (
    ConfigurationError,
    CorruptDataError,
    NotSupportedError,
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    UnavailableError,
)
from outlast_sql._errors import root_of, text_of, unreachable

TRANSIENT: Final = frozenset({"23505", "40001", "40P01"})
"""Two transactions met; this one left no trace, and the next one may pass."""
REFUSED: Final = TRANSIENT | {"22012"}
"""A statement of one step that could not be applied at once says no more than so."""

_DENIED: Final = {
    "28000": "it refused the user",
    "28P01": "it refused the user or the password",
    "3D000": "there is no such database",
    "42501": "its user lacks a permission; grant it, or let a user who has it run: outlast setup",
}
_NO_SCHEMA: Final = "3F000"
_MISSING: Final = frozenset({"42703", "42P01"})
_READ_ONLY: Final = "25006"
_TOO_LARGE: Final = frozenset({"54000"})
_CORRUPT: Final = frozenset({"XX001", "XX002"})
_LEAD: Final = re.compile("(connection (failed|is bad): )?(connection to server .*? failed: )?")
"""What psycopg and libpq put before a reason: names of hosts and sockets, which are none."""
_TLS: Final = re.compile(
    "server (does not support SSL|sent an error response during SSL exchange|certificate for )"
    "|received (invalid response to SSL|unencrypted data after SSL)"
    "|SSL (error: (?!unexpected eof)|certificate)|certificate |root certificate file |private key "
    "|could not (read|open|load|stat|get|establish|create) .*(certificate|private key|SSL)"
    "|(invalid|weak) sslmode |sslmode value |host name must be specified for a verified SSL"
    '|PostgreSQL server at ".*" rejected SSL upgrade'
)
"""How sentences about TLS begin: hosts and users may be called so, too."""
_WORDS: Final = (
    ("28P01", re.compile(r"FATAL: +\w+ authentication failed|fe_sendauth: no password supplied")),
    ("28000", re.compile(r"FATAL: +(no pg_hba\.conf entry|pg_hba\.conf rejects)")),
    ("28000", re.compile(r'FATAL: +role ".*" (does not exist|is not permitted to log in)')),
    ("28000", re.compile("FATAL: +connection requires a valid client certificate")),
    ("3D000", re.compile(r'FATAL: +(database ".*" does not exist|no such database)')),
    ("42501", re.compile("FATAL: +permission denied for database")),
)
"""libpq gives no code for what is refused while it connects. Whole sentences, since what passes
names users and databases, too: ``the database system is starting up``."""


def sqlstate_of(error: BaseException) -> tuple[str | None, bool]:
    """The code with which the server refused, and whether it closed the connection with it.

    ``None``: not an answer of the server.
    """
    error = root_of(error)
    state = getattr(error, "sqlstate", None)
    if not isinstance(state, str) or len(state) != 5:
        return None, False
    answer: Any = getattr(error, "diag", error)
    severity = getattr(answer, "severity_nonlocalized", None) or getattr(
        answer, "severity_en", None
    )
    # Class 08: the drivers' own words for a connection that was lost.
    if state.startswith("08") and severity is None:
        return None, False
    return state, severity in ("FATAL", "PANIC")


def translate(error: BaseException, place: str, hint: str, *, sent: bool) -> OutlastError:
    """What ``error`` means to a caller.

    Args:
        error: As raised by asyncpg, psycopg or SQLAlchemy.
        place: The database, for people.
        hint: How to set it up, for people.
        sent: Whether a mutation may have been applied, if the server did not refuse it.
    """
    error = root_of(error)
    state, is_fatal = sqlstate_of(error)
    text = _text_of(error)
    if isinstance(error, RuntimeError) and "loop" in str(error):
        return NotSupportedError(f"the engine of {place} belongs to another event loop")
    if state is None or (is_fatal and sent):
        return _unanswered(error, place, text, sent=sent)
    if state in _DENIED:
        return ConfigurationError(f"{place}: {_DENIED[state]} ({text})")
    if state == _NO_SCHEMA:
        return ConfigurationError(
            f"{place}: none of the schemas in search_path exists and lets its user in ({text}); "
            "create one, or grant USAGE and CREATE on it"
        )
    if state in _MISSING:
        return ConfigurationError(f"{place} is not set up for outlast ({text}); {hint}")
    if state in _TOO_LARGE:
        return PayloadTooLargeError(f"{place} takes no value of this size: {text}")
    if state in _CORRUPT:
        return CorruptDataError(f"{place} is damaged ({text}); restore a backup")
    if state == _READ_ONLY:
        return UnavailableError(
            f"{place} is read-only now: a replica, or set so ({text}); nothing was changed"
        )
    return UnavailableError(f"{place} refused: {text} (SQLSTATE {state})")


def _unanswered(error: BaseException, place: str, text: str, *, sent: bool) -> OutlastError:
    if sent:
        return OutcomeUnknownError(f"{place} did not answer: {text}")
    reason = _LEAD.sub("", text, count=1)
    for state, words in _WORDS:
        if words.match(reason):
            return ConfigurationError(f"{place}: {_DENIED[state]} ({text})")
    if isinstance(error, ssl.SSLError) or _TLS.match(reason):
        return ConfigurationError(
            f"{place}: TLS is not set the same way on both sides ({text}); see sslmode"
        )
    if isinstance(error, (TypeError, ValueError)):
        return ConfigurationError(f"{place} cannot be used: {text}")
    return unreachable(place, text)


def _text_of(error: BaseException) -> str:
    """The first line: what follows may quote data, or list every address that was tried."""
    if type(error).__name__ == "InternalClientError":
        # What asyncpg says of a statement after the server's last words, which nobody has read.
        return "the server ended the connection while a transaction was being made"
    return text_of(error, "asyncpg", "psycopg").splitlines()[0]


__all__ = ["REFUSED", "TRANSIENT", "sqlstate_of", "translate"]
