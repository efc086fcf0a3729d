"""The backend for an engine that the application has already, or for a URL."""

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncEngine

from outlast.codec import Codec
from outlast.contracts import DriverBackend
from outlast.contracts.backend import check_timeout
from outlast.errors import ConfigurationError
from outlast.values import check_id
from outlast_sql._driver import SqlDriver


class SqlBackend(DriverBackend):
    """Keeps tasks and runs in a SQL database.

    An engine that is passed in lends one connection as long as the backend is open, and is never
    closed. What the application does through the same engine goes on beside it.
    """

    def __init__(
        self,
        *,
        engine: AsyncEngine | None = None,
        url: str | None = None,
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
            engine: From SQLAlchemy's ``create_async_engine``; its dialect is one that this package
                knows.
            url: Instead of an engine: as for ``outlast.open_backend``.
            namespace: As in `DriverBackend`, like the other options.
            setup: ``True``: create or migrate the tables on opening; ``False``: only verify them.
            strict: Refuse a place that loses data silently, instead of warning.
            codec: How records become bytes.
            timeout: Seconds that one call may take.
            checkpoint_ttl: Age beyond which a checkpoint reads as ``None``.
            clock: Source of ``updated_at``.

        Raises:
            ConfigurationError: Neither or both of ``engine`` and ``url``, or one that does not fit.
            InvalidIdError: ``namespace`` is not an id.
        """
        check_id(namespace, "namespace")
        timeout = check_timeout(timeout)
        if (engine is None) == (url is None):
            raise ConfigurationError("give either engine=... or url=...")
        if engine is not None:
            driver = SqlDriver.from_engine(engine, namespace=namespace, timeout=timeout)
        else:
            driver = SqlDriver.from_url(str(url), namespace=namespace, timeout=timeout)
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


__all__ = ["SqlBackend"]
