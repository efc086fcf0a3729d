"""Errors of boto3 and answers of the store become outlast's here, and nowhere else (E3)."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from outlast.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    UnavailableError,
)
from outlast.url import redact
from outlast_s3._boto import ANSWERED, FAILED, NO_TLS, NOT_SENT, UNANSWERED

_BUSY: Final = frozenset(
    {"SlowDown", "TooManyRequests", "Throttling", "RequestLimitExceeded", "RequestTimeout"}
)
_NO_FILE: Final = (FileNotFoundError, IsADirectoryError, PermissionError)
_CHECK: Final = (
    "check that it runs, the address in endpoint_url, and whether it expects TLS (https://) or not "
    "(http://)"
)
_SLOW: Final = (
    "check that it runs and the network to it; if it is only slow, open the backend with a longer "
    "timeout"
)
_TOO_LARGE: Final = frozenset({"EntityTooLarge", "MaxMessageLengthExceeded", "RequestTooLarge"})


class Refusal(NamedTuple):
    """An error that the store answered.

    Attributes:
        status: Of HTTP.
        code: Of S3, such as ``NoSuchKey``.
        text: The store's own words.
        attempts: How often the request was repeated before.
    """

    status: int
    code: str
    text: str
    attempts: int

    @property
    def is_race(self) -> bool:
        """A condition did not hold, or could not be decided: stores differ in how they say so."""
        return self.status in (409, 412) or self.is_missing

    @property
    def is_denied(self) -> bool:
        """The credentials are wrong, or not enough."""
        return self.status in (401, 403)

    @property
    def is_missing(self) -> bool:
        """There is no such object."""
        return self.status == 404 and self.code != "NoSuchBucket"


def refusal_of(error: Exception) -> Refusal | None:
    """What the store answered; ``None``: it did not answer."""
    response: Mapping[str, Any] = getattr(error, "response", {})
    if not response or not isinstance(error, ANSWERED):
        return None
    details, metadata = response.get("Error", {}), response.get("ResponseMetadata", {})
    return Refusal(
        int(metadata.get("HTTPStatusCode", 0)),
        str(details.get("Code", "")),
        redact(str(details.get("Message", ""))),
        int(metadata.get("RetryAttempts", 0)),
    )


def is_denied(error: OutlastError) -> bool:
    """Whether ``error``, made by `translate`, is a matter of permission."""
    cause = error.__cause__
    refusal = refusal_of(cause) if isinstance(cause, Exception) else None
    return refusal is not None and refusal.is_denied


def translate(error: Exception, place: str, *, changes: bool, repeats: bool) -> OutlastError:
    """What ``error`` means to a caller.

    Args:
        error: As raised by boto3.
        place: Which bucket, for people.
        changes: Whether the request changes a record, so that it matters if it goes unanswered.
        repeats: Whether the client repeats requests by itself, so that an earlier attempt may have
            been applied.
    """
    refusal = refusal_of(error)
    if refusal is not None:
        return _refused(refusal, place, changes=changes)
    text = redact(str(error) or type(error).__name__)
    if isinstance(error, NOT_SENT):
        return _unanswered(
            f"{place} cannot be reached: {text}; {_CHECK}", changes=changes and repeats
        )
    is_unsent = not (changes and repeats)
    if isinstance(error, NO_TLS) and "CERTIFICATE_VERIFY_FAILED" in text and is_unsent:
        return ConfigurationError(
            f"{place}: its certificate is not trusted: {text}; name the authority that signed it "
            "with the environment variable AWS_CA_BUNDLE, and the server as its certificate does"
        )
    if isinstance(error, NO_TLS) and _is_of_bundle(error) and is_unsent:
        return ConfigurationError(
            f"{place} cannot be used: {text}; check the file of certificates that AWS_CA_BUNDLE, "
            "or ca_bundle of the AWS configuration, names: its path, and that it is PEM"
        )
    if isinstance(error, NO_TLS):
        return _unanswered(f"{place} cannot be reached: {text}; {_CHECK}", changes=not is_unsent)
    if isinstance(error, UNANSWERED):
        return _unanswered(f"{place} did not answer: {text}; {_SLOW}", changes=changes)
    if isinstance(error, FAILED):
        return ConfigurationError(f"{place} cannot be used: {text}")
    # Not its text: what it shows is not known.
    return _unanswered(f"{place} failed: {type(error).__name__}", changes=changes)


def _is_of_bundle(error: Exception) -> bool:
    """Whether the certificates to trust cannot be read, which is found out in connecting."""
    given: Any = getattr(error, "kwargs", {}).get("error")
    causes = (given, *getattr(given, "args", ()))
    return "[X509" in str(error) or any(isinstance(cause, _NO_FILE) for cause in causes)


def _refused(refusal: Refusal, place: str, *, changes: bool) -> OutlastError:
    code = refusal.code
    shown = f"{refusal.text} ({code}, HTTP {refusal.status})"
    if code in _TOO_LARGE:
        return PayloadTooLargeError(f"{place} takes no object of this size: {shown}")
    if code in _BUSY or refusal.status == 429:
        return _unanswered(f"{place} is busy: {shown}", changes=changes and refusal.attempts > 0)
    if code == "NoSuchBucket":
        return ConfigurationError(f"{place} does not exist; create the bucket first: {shown}")
    if code == "RequestTimeTooSkewed":
        return ConfigurationError(
            f"{place} refused the signature since the clock of this machine is wrong: {shown}"
        )
    if refusal.is_denied:
        return ConfigurationError(
            f"{place} refused the credentials, or they lack the permission to get, put, delete and "
            f"list: {shown}"
        )
    if code == "NotImplemented" or refusal.status == 501:
        return ConfigurationError(f"{place} does not know the request: {shown}")
    if refusal.status >= 500 or refusal.is_race:
        return _unanswered(f"{place} failed: {shown}", changes=changes)
    return ConfigurationError(f"{place} refused: {shown}")


def _unanswered(text: str, *, changes: bool) -> OutlastError:
    return OutcomeUnknownError(text) if changes else UnavailableError(text)


__all__ = ["Refusal", "is_denied", "refusal_of", "translate"]
