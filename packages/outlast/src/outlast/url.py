"""Store URLs: parsed strictly, shown without secrets (E4)."""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from outlast.errors import ConfigurationError

_SECRET = re.compile(
    r"pass|pwd|secret|token|key|credential|auth(?!source$|mechanism$)|signature", re.IGNORECASE
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]*(?:\+[A-Za-z0-9.-]+)*):")
_START = re.compile(r"(?:^|(?<=[\s\"'(<]))[A-Za-z][A-Za-z0-9.+-]*://")
_LOCAL = frozenset({"file", "memory", "sqlite"})
"""Schemes without a host: what stands behind their colon is their own matter."""

_QUERY_PAIR = re.compile(r"([?&;])([^=&;#]*)=([^&;#]*)")

_HOSTS = re.compile(r"(\[[^\]]*\]|[^:,\[\]]*)(:\d*)?(,(\[[^\]]*\]|[^:,\[\]]*)(:\d*)?)*")

ESCAPING = "in a password write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40 and '[' as %5B"
"""For people, on what may stand in a URL."""


class StoreURL(NamedTuple):
    """The parts of a store URL, percent-decoded.

    Attributes:
        text: As given; may hold a password: show `redact` of it instead.
        scheme: Lower case, such as ``sqlite`` or ``sqlite+aiosqlite``.
        host: Empty if there is none.
        path: With its leading slash, if any.
        query: The options in the URL.
    """

    text: str
    scheme: str
    username: str | None
    password: str | None
    host: str
    port: int | None
    path: str
    query: Mapping[str, str]


def scheme_of(url: object) -> str:
    """The scheme of ``url``, lower case.

    Raises:
        ConfigurationError: It is not a string with a scheme, or lacks the ``//`` of a place that is
            reached by a network.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"the store URL must be a str, not {type(url).__name__}")
    match = _SCHEME.match(url)
    if match is None:
        raise ConfigurationError(
            f"{redact(url)!r} is not a store URL; expected a scheme, such as file:///var/lib/agents"
        )
    scheme = match.group(1).lower()
    if scheme.partition("+")[0] not in _LOCAL and not url.startswith("//", match.end()):
        # Python's parser would take all of it for a path: user, password and host. No part of it is
        # quoted here, since nobody knows which is which.
        raise ConfigurationError(
            f"this is not a store URL: '//' is missing behind '{scheme}:'; write "
            f"{scheme}://, then the place"
        )
    return scheme


def parse_url(url: str, *, options: Iterable[str] = ()) -> StoreURL:
    """Take ``url`` apart.

    Args:
        url: The store URL.
        options: The query parameters that the backend knows.

    Raises:
        ConfigurationError: No URL, a query parameter that is unknown or given twice, a bad port.
    """
    scheme = scheme_of(url)
    if any(character < " " for character in url):
        # Python's parser drops some of them: the store would be another one than was named.
        raise ConfigurationError(
            f"{redact(url)!r} has a control character; write it as %0A or the like"
        )
    if any("\ud800" <= character <= "\udfff" for character in url):
        raise ConfigurationError(f"{redact(url)!r} has a lone surrogate; no name can hold it")
    try:
        parts = urlsplit(url)
        port = parts.port
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        # Its text quotes what it took for a port or a host: part of a password, perhaps.
        raise ConfigurationError(
            f"{redact(url)!r} is not a store URL: look at its port and query; {ESCAPING}"
        ) from None
    if "@" in parts.path and ":" in parts.netloc and "@" not in parts.netloc:
        # Else the rest of a password would be the name of a database, which errors show.
        raise ConfigurationError(f"{redact(url)!r} has '@' behind '/'; {ESCAPING}, in a path, too")
    if parts.fragment:
        raise ConfigurationError(
            f"{redact(url)!r} has a fragment; write '#' in a path or password as %23"
        )
    known = sorted(options)
    query: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            if "@" in parts.query and "@" not in parts.netloc:
                raise ConfigurationError(f"{redact(url)!r} has '@' behind '?'; {ESCAPING}")
            choice = f"known: {', '.join(known)}" if known else "it takes none in its URL"
            raise ConfigurationError(f"unknown option {name!r} in {redact(url)!r}; {choice}")
        if name in query:
            raise ConfigurationError(f"option {name!r} is given twice in {redact(url)!r}")
        query[name] = value
    return StoreURL(
        text=url,
        scheme=scheme,
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        host=unquote(parts.hostname or ""),
        port=port,
        path=unquote(parts.path),
        query=query,
    )


def redact(url: str) -> str:
    """``url`` without its password and without query values whose name suggests a secret.

    A text that holds URLs may be given, too. What has ``@``, and no ``://`` where a URL has it, is
    hidden up to the ``@``: it may be a URL that was written wrongly.
    """
    ends = [0]
    for found in _START.finditer(url):
        if "@" in url[ends[-1] : found.start()]:  # Else all may be one, with a strange password.
            ends.append(found.start())
    return "".join(_redacted(url[start:end]) for start, end in pairwise([*ends, len(url)]))


def _redacted(url: str) -> str:
    """The same of a text with one URL."""
    found = _START.search(url)
    before, url = (url[: found.start()], url[found.start() :]) if found else (url, "")
    if "@" in before:
        scheme = _SCHEME.match(before)
        before = f"{scheme[0] if scheme else ''}***@{before.rpartition('@')[2]}"
    head, separator, rest = url.partition("://")
    if separator:
        authority, slash, tail = rest.partition("/")
        userinfo, at, host = authority.rpartition("@")
        place = rest.partition("?")[0] if _HOSTS.fullmatch(authority) else rest
        if not at and "@" in place:
            # A password with an unescaped slash: hide all up to the last "@".
            userinfo, at, host = place.rpartition("@")
            slash, tail = "", rest[len(place) :]
        if at:
            user, colon, _ = userinfo.partition(":")
            userinfo = f"{user}:***" if colon else userinfo
        url = f"{head}://{userinfo}{at}{host}{slash}{tail}"
    return _QUERY_PAIR.sub(
        lambda found: f"{found[1]}{found[2]}=***" if _SECRET.search(found[2]) else found[0],
        before + url,
    )


__all__ = ["ESCAPING", "StoreURL", "parse_url", "redact", "scheme_of"]
