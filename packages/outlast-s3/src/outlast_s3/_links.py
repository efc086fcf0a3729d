"""Where a bucket comes from: a URL with options, or a client that the application lends."""

import abc
import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from outlast.errors import ConfigurationError
from outlast.url import parse_url, redact
from outlast_s3._boto import Settings, connections_of, is_client

OPTIONS: Final = ("endpoint_url", "region", "profile", "addressing_style")
"""What may stand in a URL as well as among the keywords."""

SECRETS: Final = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
"""What may stand among the keywords only."""

CONNECTIONS: Final = 16
_PREFIX_PART = re.compile(r"[A-Za-z0-9_.=+@,-]{1,200}")
_LONGEST_PREFIX: Final = 700
_STYLES: Final = ("path", "virtual", "auto")


class Link(abc.ABC):
    """Gives a client.

    Attributes:
        bucket: Name of the bucket.
        prefix: Before all names; empty, or with a slash at its end.
        described: Which bucket where, for people.
        hint: How to set it up, for people.
        user: Tells clients with different rights apart.
        owns_client: Whether it is to be closed.
    """

    owns_client: bool
    user: str

    def __init__(self, bucket: str, prefix: str, described: str, hint: str) -> None:
        """Check the names.

        Raises:
            ConfigurationError: They do not fit.
        """
        if not bucket or not isinstance(bucket, str):
            raise ConfigurationError("give the name of a bucket")
        if bucket.endswith("--x-s3"):
            raise ConfigurationError(
                f"{bucket!r} is a directory bucket, which does not list in order; use another one"
            )
        self.bucket = bucket
        self.prefix = _checked(prefix)
        self.described = described
        self.hint = hint

    @abc.abstractmethod
    async def connect(self) -> Any:
        """The client; without a request."""


class LentLink(Link):
    """A client that the application lends.

    Raises:
        ConfigurationError: It is none of boto3 for S3.
    """

    owns_client = False

    def __init__(self, client: object, bucket: str, prefix: str) -> None:
        """Take it."""
        if not is_client(client):
            raise ConfigurationError(
                "client must be one of boto3 for S3, such as boto3.client('s3'), not "
                f"{type(client).__module__}.{type(client).__name__}"
            )
        super().__init__(bucket, prefix, f"bucket {bucket!r}", "open it once with setup=True")
        self._client = client
        self.user = f"client {id(client)}"

    async def connect(self) -> Any:
        return self._client


class UrlLink(Link):
    """A client made for ``s3://bucket/prefix``.

    Raises:
        ConfigurationError: The URL or an option does not fit.
    """

    owns_client = True

    def __init__(self, url: str, timeout: float, options: Mapping[str, Any]) -> None:
        """Check everything."""
        parts = parse_url(url, options=OPTIONS)
        shown = redact(url)
        if parts.scheme != "s3":
            raise ConfigurationError(f"{shown!r} is not an s3:// URL")
        if parts.username is not None or parts.port is not None:
            raise ConfigurationError(
                f"{shown!r} has more than a bucket before its path; credentials go as keywords "
                f"({', '.join(SECRETS)}), an address as endpoint_url"
            )
        unknown = [name for name in options if name not in (*OPTIONS, *SECRETS)]
        if unknown:
            raise ConfigurationError(
                f"unknown option {unknown[0]!r}; known: {', '.join((*OPTIONS, *SECRETS))}"
            )
        given = {name: value for name, value in options.items() if value is not None}
        twice = given.keys() & parts.query.keys()
        if twice:
            raise ConfigurationError(f"option {min(twice)!r} is given twice, also in {shown!r}")
        given |= parts.query
        for name, value in given.items():
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"option {name!r} must be text")
        self._settings = _settings(given, timeout)
        self.user = given.get("aws_access_key_id") or f"profile {given.get('profile', '')}"
        bucket = urlsplit(url).netloc
        place = f" at {given['endpoint_url']}" if "endpoint_url" in given else ""
        hint = f"run: outlast setup {shown}"
        super().__init__(bucket, parts.path.strip("/"), f"bucket {bucket!r}{place}", hint)

    async def connect(self) -> Any:
        # In a thread, since it reads files, and looks for credentials.
        return await asyncio.to_thread(self._settings.make_client)


class Opened(NamedTuple):
    """A client, and how many requests it may have under way."""

    client: Any
    threads: int


async def open_link(link: Link) -> Opened:
    """Connect, without a request.

    Raises:
        ConfigurationError: No client can be made with these settings.
    """
    try:
        client = await link.connect()
    except Exception as error:
        raise ConfigurationError(
            f"{link.described} cannot be used: {redact(str(error))}"
        ) from error
    return Opened(client, max(1, min(CONNECTIONS, connections_of(client))))


def _settings(given: Mapping[str, str], timeout: float) -> Settings:
    style = given.get("addressing_style")
    if style is not None and style not in _STYLES:
        raise ConfigurationError(f"addressing_style must be one of {', '.join(_STYLES)}")
    endpoint = given.get("endpoint_url")
    if endpoint is not None and (
        urlsplit(endpoint).scheme not in ("http", "https") or "@" in endpoint
    ):
        raise ConfigurationError(
            "endpoint_url must be an http:// or https:// address without credentials"
        )
    credentials = {name: given[name] for name in SECRETS if name in given}
    return Settings(
        endpoint_url=endpoint,
        region=given.get("region"),
        profile=given.get("profile"),
        addressing_style=style,
        credentials=credentials,
        timeout=timeout,
        connections=CONNECTIONS,
    )


def _checked(prefix: str) -> str:
    if not prefix:
        return ""
    parts = prefix.split("/")
    is_fit = all(_PREFIX_PART.fullmatch(part) and part.strip(".") for part in parts)
    if not is_fit or len(prefix) > _LONGEST_PREFIX:
        raise ConfigurationError(
            f"the prefix {prefix!r:.80} will not do with every store: use letters, digits, and "
            f"'_.=+@,-' between single slashes, at most {_LONGEST_PREFIX} in all"
        )
    return f"{prefix}/"


__all__ = ["LentLink", "Link", "Opened", "UrlLink", "open_link"]
