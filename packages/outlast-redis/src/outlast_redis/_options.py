"""From a URL, or a ready client, to the way to its server."""

import ssl
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool

from outlast.errors import ConfigurationError, shown
from outlast.url import StoreURL, parse_url, redact
from outlast_redis._cluster import ClusterLink
from outlast_redis._links import LentConnections, Link, OwnConnections, ServerLink

MAX_CONNECTIONS: Final = 32
_PORT: Final = 6379
_SCHEMES: Final = ("redis", "rediss", "valkey", "valkeys")
_OPTIONS: Final = ("cluster", "max_connections", "ssl_ca_certs")
_TRUE: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def link_of_url(
    url: str,
    *,
    timeout: float,
    cluster: bool | None,
    max_connections: int | None,
    ssl_ca_certs: str | None,
) -> Callable[[], Link]:
    """What makes the way to the server that a URL names; options in the URL yield to keywords.

    Raises:
        ConfigurationError: Something in the URL or an option does not fit.
    """
    parts = parse_url(url, options=_OPTIONS)
    base, plus, variant = parts.scheme.partition("+")
    if base not in _SCHEMES or (plus and variant != "cluster"):
        raise ConfigurationError(
            f"{redact(url)!r}: the scheme must be one of {', '.join(_SCHEMES)}, "
            "or one of them with +cluster"
        )
    if cluster is None:
        cluster = variant == "cluster" or _flag(parts, "cluster")
    limit = _limit(
        parts.query.get("max_connections") if max_connections is None else max_connections
    )
    database = _database(parts)
    place = f"at {redact(url)}"
    patience = _SHARE * timeout
    settings: dict[str, Any] = {
        "host": parts.host or "localhost",
        "port": parts.port or _PORT,
        "username": parts.username or None,
        "password": parts.password,
        # Newer versions of redis-py would give up before the time of a call is over.
        "socket_connect_timeout": None,
        "socket_timeout": None,
    }
    authorities = ssl_ca_certs or parts.query.get("ssl_ca_certs")
    is_tls = base in ("rediss", "valkeys")
    if authorities and not is_tls:
        raise ConfigurationError(f"{redact(url)!r}: ssl_ca_certs goes with {base}s:// only")
    if is_tls:
        settings["ssl_ca_certs"] = authorities
    if cluster and database:
        raise ConfigurationError(f"{redact(url)!r}: a cluster has database 0 only")

    def connect() -> Link:
        link: Link
        if authorities:
            _check_file(authorities, redact(url))
        if cluster:
            client = RedisCluster(**settings, ssl=is_tls, max_connections=limit)
            link = ClusterLink(client, f"the Redis cluster {place}", limit, patience)
        else:
            kind = SSLConnection if is_tls else Connection
            connections = OwnConnections(lambda: kind(**settings, db=database), patience)
            link = ServerLink(connections, f"the Redis server {place}", limit, connections.aclose)
        link.scheme = base.removesuffix("s") if is_tls else base
        return link

    return connect


def link_of_client(
    client: object, *, max_connections: int | None, timeout: float | None = None
) -> Callable[[], Link]:
    """What makes the way to the server of a ready client, whose owner closes it.

    Raises:
        ConfigurationError: No asyncio client of redis-py, or one that reads from replicas (F4).
    """
    limit = _limit(max_connections)
    patience = None if timeout is None else _SHARE * timeout
    if isinstance(client, RedisCluster):
        if client.read_from_replicas or getattr(client, "load_balancing_strategy", None):
            raise ConfigurationError(_REPLICAS)
        return lambda: ClusterLink(client, "the Redis cluster", limit, patience)
    if not isinstance(client, Redis):
        raise ConfigurationError(
            "client must be a redis.asyncio.Redis or redis.asyncio.RedisCluster, not "
            f"{type(client).__module__}.{type(client).__name__}"
        )
    pool: Any = client.connection_pool
    if isinstance(pool, SentinelConnectionPool) and not getattr(pool, "is_master", True):
        raise ConfigurationError(_REPLICAS)
    settings = pool.connection_kwargs
    place = f"the Redis server {settings.get('host') or settings.get('path') or 'of the client'}"
    if settings.get("port"):
        place += f":{settings['port']}"
    return lambda: ServerLink(LentConnections(pool, patience), place, limit)


_SHARE: Final = 0.8
"""Of a call's time that connecting may take: its caller shall hear what was wrong."""

_REPLICAS: Final = (
    "the client reads from replicas, whose answers may be older than what was done; "
    "give one that reads from primaries"
)


def _check_file(authorities: str, url: str) -> None:
    """Connecting would say neither the option nor the file."""
    try:
        ssl.create_default_context(cafile=authorities)
    except OSError as error:  # An SSLError is one, too.
        reason = error.strerror or str(error)
        raise ConfigurationError(
            f"{url!r}: ssl_ca_certs: {authorities!r} cannot be used as a file of certificates: "
            f"{reason}"
        ) from error


def _flag(parts: StoreURL, name: str) -> bool:
    text = parts.query.get(name, "false").lower()
    if text not in _TRUE:
        raise ConfigurationError(f"{redact(parts.text)!r}: {name} must be true or false")
    return _TRUE[text]


def _limit(given: object) -> int:
    if given is None:
        return MAX_CONNECTIONS
    text = str(given)
    if isinstance(given, bool) or not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ConfigurationError(f"max_connections must be a positive number, not {shown(given)}")
    return int(text)


def _database(parts: StoreURL) -> int:
    text = parts.path.removeprefix("/")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(
            f"{redact(parts.text)!r}: the path must be the number of a database, such as /0"
        )
    return int(text)


__all__ = ["MAX_CONNECTIONS", "link_of_client", "link_of_url"]
