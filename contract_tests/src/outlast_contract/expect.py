"""How checks state what the contract promises, and how they say that it was broken."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import msgspec

from outlast.errors import FencedError, OutlastError

ResultT = TypeVar("ResultT")
ErrorT = TypeVar("ErrorT", bound=OutlastError)


class Violation(AssertionError):  # noqa: N818 - the report's word for it
    """A clause was broken.

    Args:
        message: What was found, and what the contract promises.
        clause: The broken clause; the check's first one by default.
    """

    def __init__(self, message: str, clause: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.clause = clause


class NotRun(Exception):  # noqa: N818 - an outcome, not an error
    """A check cannot be carried out here; it proves nothing either way."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def expect(condition: object, message: str, *, clause: str | None = None) -> None:
    """Raise `Violation` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise Violation(message, clause)


def expect_equal(found: object, wanted: object, what: str, *, clause: str | None = None) -> None:
    """Raise `Violation` unless both are equal, types of numbers and containers included."""
    difference = first_difference(found, wanted)
    if difference is not None:
        raise Violation(f"{what}: {difference}", clause)


async def begin(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Make a call in a task that may be cancelled before its first step: made outside of it, the
    call would be one that nobody awaits, of which Python warns.
    """
    return await call()


async def error_of(call: Awaitable[object]) -> OutlastError | None:
    """The error that a call ended with, or ``None`` if it was done.

    Raises:
        Violation: Of E3: an error of another kind left the backend.
    """
    try:
        await call
    except OutlastError as error:
        return error
    except (Violation, NotRun, asyncio.CancelledError):
        raise
    except Exception as error:
        raise Violation(
            f"{type(error).__name__} left the backend ({error}); only errors of outlast may",
            "E3",
        ) from error
    return None


async def refused(
    call: Awaitable[object], kind: type[ErrorT], what: str, *, clause: str | None = None
) -> ErrorT:
    """Expect a call to be refused with ``kind``, certainly not applied, and return the error."""
    error = await error_of(call)
    if error is None:
        raise Violation(f"{what} returned normally; it must raise {kind.__name__}", clause)
    if not isinstance(error, kind):
        raise Violation(
            f"{what} raised {type(error).__name__} ({error}); it must raise {kind.__name__}",
            clause,
        )
    if error.applied is not False:
        raise Violation(
            f"{what} was refused with applied={error.applied}; nothing was sent, or it was "
            "answered, so applied must be False",
            "E2",
        )
    return error


_FENCES = {"superseded": "F2", "lost": "F2", "claimed": "F8", "no_record": "F12", "stale": "F6"}
"""The clause behind each reason."""


async def fenced(
    call: Awaitable[object], reason: str, what: str, *, clause: str | None = None
) -> FencedError:
    """Expect a call to be fenced for ``reason`` and return the error.

    If it is not refused, that counts against the clause behind the reason, unless one is given.
    """
    error = await refused(call, FencedError, what, clause=clause or _FENCES[reason])
    if error.reason != reason:
        raise Violation(f"{what} was fenced as {error.reason!r}; the reason is {reason!r}", "F13")
    return error


async def eventually(
    condition: Callable[[], Awaitable[bool]],
    what: str,
    *,
    within: float = 5.0,
    clause: str | None = None,
) -> None:
    """Wait until ``condition`` holds, at most ``within`` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        # The last look begins behind the deadline: this process may have stood still before.
        is_last = loop.time() > deadline
        if await condition():
            return
        if is_last:
            raise Violation(f"after {within:g} s still not so: {what}", clause)
        await asyncio.sleep(0.01)


class LogLines(logging.Handler):
    """Collects what is logged while it is entered.

    Attributes:
        lines: The messages.
    """

    def __init__(self, logger: str, level: int) -> None:
        """Listen to a logger from ``level`` on."""
        super().__init__(level)
        self._logger = logging.getLogger(logger)
        self._before = self._logger.level
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        if not self._logger.isEnabledFor(self.level):
            self._logger.setLevel(self.level)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before)


def first_difference(found: Any, wanted: Any, place: str = "") -> str | None:
    """Where two values first differ, in words, or ``None``. ``1``, ``1.0`` and ``True`` differ,
    so do 0.0 and -0.0.
    """
    stack: list[tuple[Any, Any, str]] = [(found, wanted, place)]
    while stack:
        pair: tuple[Any, Any, str] = stack.pop()
        one, other, where = pair
        kind = _class(one)
        if kind is not _class(other):
            return f"{_at(where)}found {_show(one)}, expected {_show(other)}"
        if issubclass(kind, dict):
            if list(one) != list(other):
                keys = f"{_show(list(one))}, expected {_show(list(other))}"
                return f"{_at(where)}found the keys {keys}"
            stack.extend((one[key], other[key], f"{where}[{key!r:.40}]") for key in reversed(one))
        elif issubclass(kind, list | tuple):
            if len(one) != len(other):
                return (
                    f"{_at(where)}found {len(one)} items, expected {len(other)}: "
                    f"{_show(one)} and {_show(other)}"
                )
            places = reversed(range(len(one)))
            stack.extend((one[index], other[index], f"{where}[{index}]") for index in places)
        elif issubclass(kind, msgspec.Struct):
            names = reversed(kind.__struct_fields__)
            stack.extend(
                (getattr(one, name), getattr(other, name), f"{where}.{name}") for name in names
            )
        elif (repr(one) != repr(other)) if kind is float else (one != other):
            return f"{_at(where)}found {_show(one)}, expected {_show(other)}"
    return None


def _class(value: object) -> Any:
    return type(value)


def _at(place: str) -> str:
    return f"at {place[-160:].lstrip('.')}: " if place else ""


def _show(value: object) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 240 else f"{text[:160]} ... {text[-60:]}"


__all__ = [
    "LogLines",
    "NotRun",
    "Violation",
    "begin",
    "error_of",
    "eventually",
    "expect",
    "expect_equal",
    "fenced",
    "first_difference",
    "refused",
]
