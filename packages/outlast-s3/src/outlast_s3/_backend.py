"""The backend for a client that the application has already, or for a URL."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from outlast.codec import Codec
from outlast.contracts import DriverBackend
from outlast.contracts.backend import check_timeout
from outlast.values import check_id
from outlast_s3._driver import S3Driver


class S3Backend(DriverBackend):
    """Keeps tasks and runs in a bucket of S3 or of a compatible store.

    A client that is passed in is used from several threads at once, and never closed. Best made
    without retries of its own: an unclaimed save that it repeated ends as unknown if the repetition
    is refused.
    """

    def __init__(
        self,
        *,
        client: object = None,
        bucket: str | None = None,
        prefix: str = "",
        url: str | None = None,
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
            client: ``boto3.client("s3")``.
            bucket: Its name; the bucket exists.
            prefix: Before the names of all objects, such as ``agents/prod``.
            url: Instead of these: as for ``outlast.open_backend``.
            namespace: As in `DriverBackend`, like the other options.
            setup: ``True``: mark the bucket as ours on opening; ``False``: only verify the mark.
            strict: Refuse a bucket that keeps what was deleted, or lets objects expire, instead of
                warning.
            codec: How records become bytes.
            timeout: Seconds that one call may take.
            checkpoint_ttl: Age beyond which a checkpoint reads as ``None``.
            clock: Source of ``updated_at``.
            **options: As for `S3Driver`, for ``url``.

        Raises:
            ConfigurationError: Neither or both of ``client`` and ``url``, or one that does not fit.
            InvalidIdError: ``namespace`` is not an id.
        """
        check_id(namespace, "namespace")
        made = S3Driver(
            url=url,
            client=client,
            bucket=bucket,
            prefix=prefix,
            namespace=namespace,
            timeout=check_timeout(timeout),
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


__all__ = ["S3Backend"]
