"""The backend for a database that the application has already, or for a URL."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from outlast.codec import Codec
from outlast.contracts import DriverBackend
from outlast.contracts.backend import check_timeout
from outlast.values import check_id
from outlast_mongo._driver import MongoDriver
from outlast_mongo._links import DriverName, MotorDatabase


class MongoBackend(DriverBackend):
    """Keeps tasks and runs in MongoDB.

    A database that is passed in may be of PyMongo's asyncio client or of Motor. Its client is never
    closed. Its write concern is used if one was chosen; its codec options and read concern are not.
    """

    def __init__(
        self,
        *,
        database: AsyncDatabase[Any] | MotorDatabase | None = None,
        url: str | None = None,
        driver: DriverName = "pymongo",
        namespace: str = "default",
        setup: bool = True,
        strict: bool = False,
        codec: Codec | None = None,
        timeout: float = 10.0,
        checkpoint_ttl: timedelta | None = None,
        clock: Callable[[], datetime] | None = None,
        **options: Any,
    ) -> None:
        """Make a backend; no I/O.

        Args:
            database: Such as ``client["outlast"]``; it reads from the primary.
            url: Instead of a database: as for ``outlast.open_backend``.
            driver: ``"motor"``: for ``url``, which may name it, too, use Motor instead of PyMongo's
                asyncio client.
            namespace: As in `DriverBackend`, like the other options.
            setup: ``True``: create what is missing on opening; ``False``: only verify it.
            strict: Refuse a write concern under which a crash loses what was accepted, instead of
                warning.
            codec: How records become bytes.
            timeout: Seconds that one call may take.
            checkpoint_ttl: Age beyond which a checkpoint reads as ``None``.
            clock: Source of ``updated_at``.
            **options: Of PyMongo's client, for ``url``.

        Raises:
            ConfigurationError: Neither or both of ``database`` and ``url``, or one that does not
                fit.
            InvalidIdError: ``namespace`` is not an id.
        """
        check_id(namespace, "namespace")
        made = MongoDriver(
            url=url,
            database=database,
            namespace=namespace,
            timeout=check_timeout(timeout),
            driver=driver,
            **options,
        )
        super().__init__(
            made,
            namespace=namespace,
            setup=setup,
            strict=strict,
            codec=codec,
            timeout=timeout,
            checkpoint_ttl=checkpoint_ttl,
            clock=clock,
        )


__all__ = ["MongoBackend"]
