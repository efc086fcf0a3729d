"""The backend for a client that the application has already, or for a URL."""

from collections.abc import Callable
from datetime import datetime, timedelta

from redis.asyncio import Redis, RedisCluster

from outlast.codec import Codec
from outlast.contracts import DriverBackend
from outlast.contracts.backend import check_timeout
from outlast.errors import ConfigurationError
from outlast.values import check_id
from outlast_redis._driver import RedisDriver


class RedisBackend(DriverBackend):
    """Keeps tasks and runs in Redis, Valkey or a Redis Cluster.

    A client that is passed in is never closed. Its connections are used (a cluster's client lends
    its settings only), decoding and retries of its own are not: answers are read as bytes, and what
    was sent is never repeated unasked.
    """

    def __init__(
        self,
        *,
        client: Redis | RedisCluster | None = None,
        url: str | None = None,
        max_connections: int | None = None,
        namespace: str = "default",
        setup: bool = True,
        strict: bool = False,
        codec: Codec | None = None,
        timeout: float = 10.0,
        checkpoint_ttl: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """Make a backend; no I/O.

        Args:
            client: Of redis-py, asyncio, with any ``decode_responses``; it reads from primaries.
            url: Instead of a client: as for ``outlast.open_backend``.
            max_connections: How many calls may be under way at once; the others wait.
            namespace: As in `DriverBackend`, like the other options.
            setup: ``True``: mark the namespace as ours on opening; ``False``: only verify the mark.
            strict: Refuse settings of the server that lose data silently, instead of warning.
            codec: How records become bytes.
            timeout: Seconds that one call may take.
            checkpoint_ttl: Age beyond which a checkpoint reads as ``None``.
            clock: Source of ``updated_at``.

        Raises:
            ConfigurationError: Neither or both of ``client`` and ``url``, or one that does not fit.
            InvalidIdError: ``namespace`` is not an id.
        """
        check_id(namespace, "namespace")
        timeout = check_timeout(timeout)
        if (client is None) == (url is None):
            raise ConfigurationError("give either client=... or url=...")
        if client is not None:
            driver = RedisDriver.from_client(
                client, namespace=namespace, timeout=timeout, max_connections=max_connections
            )
        else:
            driver = RedisDriver.from_url(
                str(url), namespace=namespace, timeout=timeout, max_connections=max_connections
            )
        super().__init__(
            driver,
            namespace=namespace,
            setup=setup,
            strict=strict,
            codec=codec,
            timeout=timeout,
            checkpoint_ttl=checkpoint_ttl,
            clock=clock,
        )


__all__ = ["RedisBackend"]
