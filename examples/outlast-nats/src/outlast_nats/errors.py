"""Errors of nats-py become outlast's here, and nowhere else (E3)."""

import nats.errors
import nats.js.errors
from nats.js.errors import APIError

from outlast.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    UnavailableError,
)

WRONG_LAST_SEQUENCE = (10071, 10164)
"""The subject's newest message is not the one that was named: another writer was faster."""

_NOT_FOUND = (10037, 10043)
_NO_STREAM = 10059
_NAME_IN_USE = 10058
_REFUSED = (10008, 10023, 10028, 10047, 10077)
"""The server is about to elect a leader, or has no room: nothing was stored."""

_DENIED = ("authorization", "permission", "authentication")
_NO_ANSWER = (nats.errors.NoRespondersError, nats.js.errors.NoStreamResponseError)


def is_missing(error: Exception) -> bool:
    """Whether there is no such message."""
    return isinstance(error, APIError) and error.err_code in _NOT_FOUND


def is_lost_race(error: Exception) -> bool:
    """Whether the expected sequence was not the subject's newest."""
    return isinstance(error, APIError) and error.err_code in WRONG_LAST_SEQUENCE


def is_no_stream(error: Exception) -> bool:
    """Whether the bucket does not exist."""
    return isinstance(error, APIError) and error.err_code == _NO_STREAM


def is_name_in_use(error: Exception) -> bool:
    """Whether there is such a bucket, with other settings."""
    return isinstance(error, APIError) and error.err_code == _NAME_IN_USE


def is_denied(error: Exception) -> bool:
    """Whether the user is unknown, or may not do this; the server has no code for it."""
    text = str(error).lower()
    return any(word in text for word in _DENIED)


def unreachable(error: Exception, place: str) -> OutlastError:
    """What a failed attempt to connect means: nothing was sent."""
    text = str(error) or type(error).__name__
    if is_denied(error):
        return ConfigurationError(f"{place} refused the credentials: {text}")
    return UnavailableError(f"{place} cannot be reached: {text}")


def translate(error: Exception, place: str, *, changes: bool) -> OutlastError:
    """What the failure of a request means to a caller.

    Args:
        error: As nats-py raised it.
        place: Which bucket, for people.
        changes: Whether the request changes a record, so that it matters if it goes unanswered.
    """
    text = str(error) or type(error).__name__
    if isinstance(error, nats.errors.MaxPayloadError):
        return PayloadTooLargeError(f"{place} takes no message of this size")
    if is_no_stream(error):
        return ConfigurationError(f"{place} does not exist any more")
    if isinstance(error, APIError) and error.err_code in _REFUSED:
        return UnavailableError(f"{place} refused: {text}")
    if is_denied(error) or (isinstance(error, APIError) and error.code in (400, 403, 404)):
        return ConfigurationError(f"{place} refused: {text}")
    # Nobody serves the bucket: without JetStream, or while the server starts.
    if isinstance(error, _NO_ANSWER) or not changes:
        return UnavailableError(f"{place} did not answer: {text}")
    return OutcomeUnknownError(f"{place} did not answer: {text}")
