"""Database errors become outlast's here, and nowhere else (E3).

SQLite's are told apart by their result code, never by their text, with one exception: a missing
table has no code of its own.
"""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from outlast.errors import (
    ConfigurationError,
    CorruptDataError,
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    UnavailableError,
)

BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""Another connection is in the way: nothing happened, and waiting helps."""

_ROLLED_BACK: Final = BUSY | {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_READONLY,
}
"""A COMMIT that fails so has certainly not been applied. Of others, a crash may yet recover it: the
write-ahead log may hold the whole transaction although its last fsync failed."""


def primary_code(error: BaseException) -> int:
    """SQLite's result code without its extension; 0 if the error has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def root_of(error: BaseException) -> BaseException:
    """The driver's own error below those that SQLAlchemy wraps around it."""
    for inner in _origins(error):
        error = inner
    return error


def text_of(error: BaseException, *libraries: str) -> str:
    """What ``error`` says, if it comes from one of ``libraries`` or from the system.

    Of any other only what it is: it may quote what was given to it, such as a password (E4).
    """
    library = type(error).__module__.partition(".")[0]
    text = str(error).strip() if library in libraries or isinstance(error, OSError) else ""
    return text or f"{type(error).__name__}; see the cause"


def unreachable(place: str, text: str) -> UnavailableError:
    """The error for a server to which nothing was sent."""
    return UnavailableError(
        f"{place} cannot be reached: {text}; check that it runs, and its host and port"
    )


def _origins(error: BaseException) -> Iterator[BaseException]:
    inner = getattr(error, "orig", None)
    while isinstance(inner, BaseException):
        yield inner
        inner = getattr(inner, "orig", None)


def translate(error: BaseException, path: str | None, *, committing: bool = False) -> OutlastError:
    """What ``error`` of SQLite means to a caller.

    Args:
        error: As raised by sqlite3, aiosqlite or SQLAlchemy.
        path: The database file; ``None`` for a database in memory.
        committing: Whether COMMIT had been called.
    """
    error = root_of(error)
    code = primary_code(error)
    place = f"the database {path!r}" if path else "the database in memory"
    if committing and code not in _ROLLED_BACK:
        return OutcomeUnknownError(f"{place} did not confirm a commit: {error}")
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return UnavailableError(
                f"{place} stayed locked by another connection: a transaction there is open too "
                "long, or a process was stopped inside one"
            )
        case sqlite3.SQLITE_FULL:
            return UnavailableError(f"{place} cannot grow: the disk or a quota is full")
        case sqlite3.SQLITE_READONLY:
            return ConfigurationError(
                f"{place} cannot be written: its file or directory is read-only for this process"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return ConfigurationError(f"{place} cannot be opened: {_reason(path)}")
        case sqlite3.SQLITE_NOTADB:
            return ConfigurationError(
                f"{place} is not an SQLite database, or is encrypted; give another path"
            )
        case sqlite3.SQLITE_CORRUPT:
            return CorruptDataError(
                f"{place} is damaged ({error}); restore a backup, or salvage it with '.recover' of "
                "the sqlite3 shell"
            )
        case sqlite3.SQLITE_TOOBIG:
            return PayloadTooLargeError(f"{place} takes no value of this size: {error}")
        case sqlite3.SQLITE_INTERRUPT:
            return UnavailableError(
                f"{place} gave no answer within the call's time; nothing was changed"
            )
        case sqlite3.SQLITE_ERROR if "no such table" in str(error) or "no such column" in str(
            error
        ):
            return not_set_up(path, str(error))
        case _:
            return UnavailableError(f"{place} failed: {error}")


def not_set_up(path: str | None, detail: str) -> ConfigurationError:
    """The error for a database without the tables."""
    url = "sqlite://" if path is None else f"sqlite:///{path}"
    return ConfigurationError(
        f"the database {path!r} is not set up for outlast ({detail}); run: outlast setup {url}"
    )


def _reason(path: str | None) -> str:
    if path is None:
        return "SQLite refused"
    file = Path(path)
    try:
        if file.is_dir():
            return "it is a directory; the path must name a file"
        if not file.parent.exists():
            return f"its directory {str(file.parent)!r} does not exist; create it first"
        if not file.parent.is_dir():
            return f"{str(file.parent)!r} is not a directory"
        if file.exists() and not os.access(file, os.R_OK):
            return "this process may not read it"
        if not os.access(file.parent, os.W_OK | os.X_OK):
            return f"this process may not write to its directory {str(file.parent)!r}"
    except OSError as error:
        return error.strerror or type(error).__name__
    return "SQLite could not open it, or the files beside it that end in -wal and -shm"


__all__ = ["BUSY", "not_set_up", "primary_code", "root_of", "text_of", "translate", "unreachable"]
