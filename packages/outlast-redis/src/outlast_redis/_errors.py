"""Errors of redis-py become outlast's here, and nowhere else (E3)."""

import re
import ssl
from collections.abc import Iterator
from typing import Final

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from outlast.errors import (
    ConfigurationError,
    CorruptDataError,
    OutcomeUnknownError,
    OutlastError,
    UnavailableError,
)

RAISED: Final = (RedisError, RedisClusterException, OSError, EOFError)
"""What redis-py raises when it talks to a server; its TimeoutError is a RedisError."""

_CODES: Final[dict[type[BaseException], str]] = {
    AskError: "ASK",
    AuthenticationError: "NOAUTH",
    AuthenticationWrongNumberOfArgsError: "NOAUTH",
    BusyLoadingError: "LOADING",
    ClusterDownError: "CLUSTERDOWN",
    MasterDownError: "MASTERDOWN",
    MovedError: "MOVED",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
    TryAgainError: "TRYAGAIN",
}
"""The code at the head of an answer, which redis-py cuts off where it has a class for it."""

_PERMISSION = "this user may not run the command, or touch the key"
_UNFIT = "it cannot do what this backend needs"
_CREDENTIALS = "the server refuses these credentials; check user name and password of the URL"
_ANSWERS: Final[tuple[tuple[str, type[OutlastError], str], ...]] = (
    ("LOADING", UnavailableError, "it is still loading its data; try again soon"),
    ("OOM", UnavailableError, "its memory is full (maxmemory); free some, or raise the limit"),
    ("READONLY", UnavailableError, "it is a replica now; a failover may be under way"),
    ("CLUSTERDOWN", UnavailableError, "the cluster does not serve this slot at present"),
    ("TRYAGAIN", UnavailableError, "the slot is being moved; try again soon"),
    ("MASTERDOWN", UnavailableError, "it is a replica whose master is down"),
    ("NOREPLICAS", UnavailableError, "it has too few replicas to accept writes"),
    ("MISCONF", UnavailableError, "it cannot write its snapshot and accepts no writes"),
    ("BUSY", UnavailableError, "it is busy with somebody's long script"),
    ("max number of clients", UnavailableError, "it accepts no more connections (maxclients)"),
    ("MOVED|ASK", ConfigurationError, "it is a node of a cluster; use {scheme}+cluster:// instead"),
    ("NOAUTH|WRONGPASS|invalid password|without any password", ConfigurationError, _CREDENTIALS),
    ("NOPERM", ConfigurationError, _PERMISSION),
    (
        "DB index is out of range|SELECT is not allowed|Invalid Database",
        ConfigurationError,
        "there is no such database; check the number at the end of the URL",
    ),
    (
        "unknown command|Invalid command|cluster support disabled|Cluster mode is not enabled",
        ConfigurationError,
        _UNFIT,
    ),
    ("WRONGTYPE|CORRUPT", CorruptDataError, "what is stored under a key is not what belongs there"),
)
"""Codes and texts of answers by which a server says that it did nothing, what they become, why."""

_INSIDE: Final = (
    (re.compile("ACL failure in script|The user executing the script"), _PERMISSION),
    (re.compile(r"Unknown (?:Redis )?command called from"), _UNFIT),
)
"""Of a script that could not go on, and may have written: rules changed since the opening."""

_IN_USE: Final = re.compile("Too many connections|No connection available|MaxConnectionsError")
"""What pools of redis-py say that have no connection left; not all of its versions have a type."""

_PATTERNS: Final = tuple(
    (re.compile(rf"\b(?:{codes})\b"), kind, reason) for codes, kind, reason in _ANSWERS
)


def translate(
    error: BaseException, place: str, *, sent: bool, scheme: str = "redis"
) -> OutlastError:
    """What ``error`` means to a caller.

    Args:
        error: As raised by redis-py.
        place: The server, for people; without its password.
        sent: Whether the command may have reached the server.
        scheme: Of URLs to such a server, without TLS.
    """
    text = describe(error)
    for pattern, reason in _INSIDE:
        if pattern.search(text):
            return ConfigurationError(f"{place}: {reason} ({text})", applied=None)
    for pattern, kind, reason in _PATTERNS:
        if pattern.search(text):
            return kind(f"{place}: {reason.format(scheme=scheme)} ({text})")
    if sent and isinstance(error, ResponseError):
        return OutcomeUnknownError(f"{place} failed inside a command: {text}")
    if sent:
        return OutcomeUnknownError(f"{place} did not answer: {text}")
    if _IN_USE.search(text):
        return UnavailableError(
            f"{place}: all connections of the client's pool are in use; raise its max_connections, "
            f"or lend a client that nobody else uses ({text})"
        )
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigurationError(f"{place}: its certificate is not trusted ({cause})")
        if isinstance(cause, ssl.SSLError):
            return ConfigurationError(
                f"{place} does not speak TLS as we do ({cause}); for one without TLS use {scheme}://"
            )
    return UnavailableError(
        f"{place} cannot be reached: {text}; check that it runs, its host and port, and whether "
        f"it expects TLS ({scheme}s://) or not ({scheme}://)"
    )


def is_forbidden(error: OutlastError) -> bool:
    """Whether this user may not do it, or the server's provider took the command away."""
    text = describe(error.__cause__) if error.__cause__ is not None else ""
    return text.startswith("NOPERM") or "unknown command" in text


def describe(error: BaseException) -> str:
    """The text of an error, with the server's code first."""
    code = next((_CODES[base] for base in type(error).__mro__ if base in _CODES), "")
    text = str(error) or type(error).__name__
    return text if text.startswith(code) else f"{code} {text}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


__all__ = ["RAISED", "is_forbidden", "translate"]
