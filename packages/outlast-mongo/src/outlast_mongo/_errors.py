"""Errors of PyMongo become outlast's here, and nowhere else (E3)."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from pymongo.errors import (
    ConfigurationError as DriverConfigurationError,
)
from pymongo.errors import (
    ConnectionFailure,
    DocumentTooLarge,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
)

from outlast.errors import (
    ClosedError,
    ConfigurationError,
    NotSupportedError,
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    UnavailableError,
)

_DENIED: Final = {
    11: "there is no such user",
    13: "its user lacks the permission",
    18: "it refused the user or the password",
    33: "it refused the user or the password",
    148: "it runs without majority read concern, which outlast needs; enable it",
    8000: "it refused the user or the password",
}
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
"""In the text of errors of TLS; PyMongo passes on no more than the text."""

_NO_JOURNAL: Final = 2
_TOO_LARGE: Final = 10334
_INTERRUPTED: Final = frozenset({24, 43, 91, 189, 262, 11600, 11601, 11602})
"""The server gave up in the middle: a lock, a shutdown, a step-down, a time limit."""

_NOT_DONE: Final = frozenset({9, 14, 20, 26, 59, 61, 66, 72, 121, 166, 14031})
"""The request cannot be understood or is not allowed, the document does not fit, the disk is full.

Any other code may stand for an answer that was lost on the way: mongos reports that of a shard
among the errors of single writes.
"""


@contextmanager
def explained(place: str, *, changes: bool) -> Generator[None]:
    """Let nothing but outlast's errors out.

    Args:
        place: Which database, for people.
        changes: Whether what runs inside changes a record, so that an unanswered request matters.
    """
    try:
        yield
    except PyMongoError as error:
        raise translate(error, place, changes=changes) from error
    except RuntimeError as error:
        if "event loop" not in str(error).lower():
            raise
        raise NotSupportedError(
            f"the client of {place} belongs to another event loop, or to one that was closed; use "
            "one client for each loop"
        ) from error


def translate(error: PyMongoError, place: str, *, changes: bool) -> OutlastError:
    """What ``error`` means to a caller; arguments as for `explained`."""
    match error:
        case ConnectionFailure() if _UNTRUSTED in str(error) and (
            # What is repeated by PyMongo may have been sent before.
            not changes or isinstance(error, ServerSelectionTimeoutError)
        ):
            return ConfigurationError(
                f"{place}: its certificate is not trusted: {_cause(error)}; name the authority "
                "that signed it with tlsCAFile, and the server as its certificate does"
            )
        case ServerSelectionTimeoutError():
            return UnavailableError(
                f"{place} cannot be reached: {_cause(error)}; check that it runs, its host and "
                "port, the name of the replica set, and whether it expects TLS (tls=true)"
            )
        case WaitQueueTimeoutError():
            return UnavailableError(f"all connections to {place} are in use; raise maxPoolSize")
        case ConnectionFailure() | ExecutionTimeout() | WriteConcernError():
            return _unanswered(f"{place} did not answer: {_cause(error)}", changes=changes)
        case DocumentTooLarge():
            return PayloadTooLargeError(f"{place} takes no document of this size")
        case OperationFailure():
            return _refused(error, place, changes=changes)
        case DriverConfigurationError():
            return ConfigurationError(f"{place} cannot be used: {error}")
        case InvalidOperation() if "close" in str(error):
            return ClosedError(f"the client of {place} was closed by the application")
        case _:
            return _unanswered(f"{place} failed: {_cause(error)}", changes=changes)


def _refused(error: OperationFailure, place: str, *, changes: bool) -> OutlastError:
    # Not str(error), which repeats the whole answer.
    details = error.details or {}
    text = f"{details.get('errmsg') or _cause(error)} ({details.get('codeName') or error.code})"
    if error.code in _DENIED:
        return ConfigurationError(f"{place}: {_DENIED[error.code]}: {text}")
    if error.code == _NO_JOURNAL and "journal" in text:
        return ConfigurationError(f"{place} keeps no journal, which outlast needs: {text}")
    if error.code == _TOO_LARGE:
        return PayloadTooLargeError(f"{place} takes no document of this size: {text}")
    if error.code in _INTERRUPTED:
        return _unanswered(f"{place} was interrupted: {text}", changes=changes)
    if changes and error.code not in _NOT_DONE:
        return OutcomeUnknownError(f"{place} does not say whether it was done: {text}")
    return UnavailableError(f"{place} refused: {text}")


def _unanswered(text: str, *, changes: bool) -> OutlastError:
    return OutcomeUnknownError(text) if changes else UnavailableError(text)


def _cause(error: PyMongoError) -> str:
    """The first of what PyMongo strings together: cause, timeouts, description of all servers."""
    text = str(error).partition(" (configured timeouts")[0].partition(", Timeout: ")[0]
    if "SSL handshake failed" in text and _UNTRUSTED not in text:
        text += "; is TLS set the same way on both sides?"
    return text or type(error).__name__


__all__ = ["explained", "translate"]
