"""The errors that leave a backend or the runtime; nothing else does.

Three outcomes of an operation are told apart (contract, "Words"): an error whose
``applied`` is ``False`` means that the operation certainly changed nothing, ``None``
that it may or may not have been applied, and ``True`` that it was applied.
"""

from __future__ import annotations

import reprlib
from typing import Any, ClassVar, Literal

FenceReason = Literal["superseded", "lost", "no_record", "claimed", "stale"]
"""Why a mutation was fenced; see `FencedError`."""

_FENCE_MESSAGES: dict[str, str] = {
    "superseded": "a newer claim owns it; stop, or claim again to take it back",
    "lost": "the store holds an older fence than this claim, so it has lost what it had accepted; "
    "check the store before you claim again",
    "no_record": "nothing is stored under this claim any more (it was deleted and swept); "
    "claim again to start anew",
    "claimed": "it is owned through a claim; pass claim=... (from claim_task() or claim())",
    "stale": "a newer mutation of the same claim is stored; this one changed nothing",
}


class OutlastError(Exception):
    """Root of every error of outlast.

    Args:
        message: What was wrong and what to do.
        backend: Name of the backend, such as ``"sqlite"``.
        operation: The public method that failed.
        key: The task, run or namespace that it was about.
        applied: ``False``: certainly not applied; ``None``: unknown; ``True``: applied.
    """

    _applied: ClassVar[bool | None] = False

    def __init__(
        self,
        message: str = "",
        *,
        backend: str | None = None,
        operation: str | None = None,
        key: str | None = None,
        applied: bool | Literal["default"] | None = "default",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.backend = backend
        self.operation = operation
        self.key = key
        self.applied: bool | None = self._applied if applied == "default" else applied

    def add_context(self, *, backend: str | None, operation: str | None, key: str | None) -> None:
        """Fill in what the raiser did not know; what is set already stays."""
        self.backend = self.backend or backend
        self.operation = self.operation or operation
        self.key = self.key if self.key is not None else key

    def __str__(self) -> str:
        subject = self.operation or ""
        if self.key is not None:
            subject = f"{subject}({self.key!r})" if subject else repr(self.key)
        if self.backend:
            subject = f"{subject} on {self.backend}".lstrip()
        return f"{subject}: {self.message}" if subject else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[OutlastError], args: tuple[Any, ...], state: dict[str, Any]
) -> OutlastError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class FencedError(OutlastError):
    """The mutation came from a claim that does not own the scope (any more); it changed nothing.

    Args:
        reason: ``superseded``: a newer epoch is stored; ``lost``: the stored epoch is lower, or
            equal with another claim_id (the store lost a fence); ``no_record``: nothing is stored;
            ``claimed``: a mutation without a claim met a claimed scope; ``stale``: see
            `StaleWriteError`.
        stored_epoch: The epoch that the store holds, if it was read.
        message: Overrides the text that belongs to the reason.
    """

    def __init__(
        self,
        reason: FenceReason,
        stored_epoch: int | None = None,
        message: str | None = None,
        *,
        backend: str | None = None,
        operation: str | None = None,
        key: str | None = None,
        applied: bool | Literal["default"] | None = "default",
    ) -> None:
        text = message or f"{reason}: {_FENCE_MESSAGES[reason]}"
        if message is None and stored_epoch is not None:
            text += f" (stored epoch {stored_epoch})"
        super().__init__(text, backend=backend, operation=operation, key=key, applied=applied)
        self.reason: FenceReason = reason
        self.stored_epoch = stored_epoch


class StaleWriteError(FencedError):
    """A late copy of an older mutation of the same claim, or a second holder of its claim_id;
    nothing changed.
    """

    def __init__(
        self,
        reason: FenceReason = "stale",
        stored_epoch: int | None = None,
        message: str | None = None,
        *,
        backend: str | None = None,
        operation: str | None = None,
        key: str | None = None,
        applied: bool | Literal["default"] | None = "default",
    ) -> None:
        super().__init__(
            reason,
            stored_epoch,
            message,
            backend=backend,
            operation=operation,
            key=key,
            applied=applied,
        )


class ConflictError(OutlastError):
    """A message of this id is in the log already and differs; nothing was appended."""


class TaskNotFoundError(OutlastError):
    """The task has no state."""


class UnavailableError(OutlastError):
    """The store did not do it: unreachable, busy, full or too slow. Certainly not applied; try
    again later.
    """


class OutcomeUnknownError(OutlastError):
    """Sent, but not answered: it may or may not have been applied. Repeating it through the same
    claim is safe.
    """

    _applied = None


class CorruptDataError(OutlastError):
    """Stored bytes cannot be decoded, or a part that the store refers to is missing."""


class UnsupportedVersionError(OutlastError):
    """Stored bytes have a newer format than this version of outlast knows; upgrade outlast."""


class DecryptionError(OutlastError):
    """Stored bytes are encrypted, and no key that was given opens them."""


class PayloadTooLargeError(OutlastError):
    """The encoded record is larger than the backend's declared limit; nothing was sent."""


class InvalidDataError(OutlastError, ValueError):
    """A value or argument that cannot be stored; the message names the place. Nothing was sent."""


class InvalidIdError(OutlastError, ValueError):
    """Not an id: ids are non-empty strings of at most 512 UTF-8 bytes. Nothing was sent."""


class NotSupportedError(OutlastError):
    """The backend declares that it cannot do this, or cannot be used in this way."""


class ConfigurationError(OutlastError):
    """URL, options, environment or server settings are wrong; the message says what to change."""


class ClosedError(OutlastError):
    """The backend is not open: it was closed, or not opened yet."""


_repr = reprlib.Repr()
_repr.maxlevel = 3
_repr.maxstring = _repr.maxlong = _repr.maxother = 60


def shown(value: object) -> str:
    """``value`` for a message: shortened, however long or deep it is, and never an error."""
    try:
        return _repr.repr(value)
    except Exception:  # noqa: BLE001 - whatever a class of the caller does
        return f"a value of type {type(value).__name__}"


__all__ = [
    "ClosedError",
    "ConfigurationError",
    "ConflictError",
    "CorruptDataError",
    "DecryptionError",
    "FenceReason",
    "FencedError",
    "InvalidDataError",
    "InvalidIdError",
    "NotSupportedError",
    "OutcomeUnknownError",
    "OutlastError",
    "PayloadTooLargeError",
    "StaleWriteError",
    "TaskNotFoundError",
    "UnavailableError",
    "UnsupportedVersionError",
    "shown",
]
