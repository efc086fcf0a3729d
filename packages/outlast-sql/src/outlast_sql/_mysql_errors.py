"""Errors of MySQL and MariaDB, by number, become outlast's here (E3)."""

import re
import ssl
from typing import Final

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

DUPLICATE: Final = 1062
TRANSIENT: Final = frozenset({DUPLICATE, 1213})
"""Two transactions met; this one left no trace, and the next one may pass."""

_DENIED: Final = {
    1044: "its user may not use the database",
    1045: "it refused the user or the password",
    1049: "there is no such database",
    1142: "its user lacks a permission; grant it, or let a user who has it run: outlast setup",
    1143: "its user lacks a permission; grant it, or let a user who has it run: outlast setup",
    1227: "its user lacks a permission",
    1665: "it logs statements; set binlog_format to MIXED or ROW",
    1698: "it refused the user or the password",
    3159: "it wants TLS; see the option ssl",
}
_MISSING: Final = frozenset({1054, 1146})
_READ_ONLY: Final = frozenset({1290, 1792, 1836})
_TOO_LARGE: Final = frozenset({1105, 1118, 1153, 1301, 1406})
_CORRUPT: Final = frozenset({126, 127, 1034, 1194, 1712})
_BROKEN_OFF: Final = frozenset({1053, 1180, 1317, 1927, 1928, 1969, 3024, 4031})
"""The server ended the statement or the connection: it may be too late for the one to matter."""
_LOST_PACKET: Final = "packet bigger than"
_PACKAGE: Final = re.compile(r"'(\w+)' package is required")


def errno_of(error: BaseException | None) -> int | None:
    """The number with which the server refused; ``None``: not an answer of the server."""
    if error is None:
        return None
    error = root_of(error)
    if not _is_of_asyncmy(error) or not error.args:
        return None
    number = error.args[0]
    # From 2000 to 2999 are the client's own.
    if not isinstance(number, int) or number < 1000 or 2000 <= number < 3000:
        return None
    return number


def _is_of_asyncmy(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "asyncmy"


def _text_of(error: BaseException) -> str:
    if _is_of_asyncmy(error) and len(error.args) > 1:
        return str(error.args[1])
    return text_of(error, "asyncmy")


def is_end(number: int | None) -> bool:
    """Whether a connection that got this is of no further use."""
    return number is None or number in _BROKEN_OFF


def translate(error: BaseException, place: str, hint: str, *, sent: bool) -> OutlastError:
    """What ``error`` means to a caller.

    Args:
        error: As raised by asyncmy or SQLAlchemy.
        place: The database, for people.
        hint: How to set it up, for people.
        sent: Whether a mutation may have been applied, if the server did not refuse it.
    """
    error = root_of(error)
    number = errno_of(error)
    text = _text_of(error)
    if isinstance(error, RuntimeError) and "loop" in str(error):
        return NotSupportedError(f"the engine of {place} belongs to another event loop")
    if number is None or (number in _BROKEN_OFF and sent):
        return _unanswered(error, place, text, sent=sent)
    if number in _DENIED:
        return ConfigurationError(f"{place}: {_DENIED[number]} ({text})")
    if number in _MISSING:
        return ConfigurationError(f"{place} is not set up for outlast ({text}); {hint}")
    if number in _TOO_LARGE and (number != 1105 or _LOST_PACKET in text):
        return PayloadTooLargeError(
            f"{place} takes no value of this size ({text}); raise max_allowed_packet"
        )
    if number in _CORRUPT:
        return CorruptDataError(f"{place} is damaged ({text}); restore a backup")
    if number in _READ_ONLY:
        return UnavailableError(
            f"{place} is read-only now: a replica, or set so ({text}); nothing was changed"
        )
    return UnavailableError(f"{place} refused: {text} (error {number})")


def _unanswered(error: BaseException, place: str, text: str, *, sent: bool) -> OutlastError:
    if sent:
        return OutcomeUnknownError(f"{place} did not answer: {text}")
    cause = error.__cause__ or error
    if isinstance(cause, ssl.SSLError):
        return ConfigurationError(
            f"{place}: TLS is not set the same way on both sides ({text}); see the option ssl"
        )
    package = _PACKAGE.match(str(error))
    if package is not None:
        return ConfigurationError(
            f"{place} wants to be told the password in a way that needs the package {package[1]}"
        )
    if isinstance(error, (TypeError, ValueError)):
        return ConfigurationError(f"{place} cannot be used: {text}")
    return unreachable(place, text)


__all__ = ["DUPLICATE", "TRANSIENT", "errno_of", "is_end", "translate"]
