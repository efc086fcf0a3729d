"""`S3Driver`: heads and pieces as objects of a bucket."""

import logging
from collections.abc import Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from outlast.driver import Capabilities, Survives
from outlast.errors import ClosedError, ConfigurationError
from outlast.heads import HeadDriver, Layout, Operation, moment
from outlast_s3._boto import close, endpoint_of
from outlast_s3._bucket import Bucket
from outlast_s3._links import LentLink, UrlLink, open_link
from outlast_s3._probe import hazards_of, set_up
from outlast_s3._store import Keys, Place, S3Store

ResultT = TypeVar("ResultT")

MAX_MESSAGE_BYTES: Final = 64 * 2**20

LAYOUT: Final = Layout(
    # A request costs far more than its bytes: a checkpoint of any usual length is one object.
    run_inline_bytes=256 * 1024,
    task_inline_bytes=16 * 1024,
    retry_delay=0.02,
)
"""How this backend divides its records; see `outlast.heads.Layout`."""

_PATIENCE: Final = 0.9
"""The part of the timeout that a call uses, so that its answer comes before the caller's end."""

_log = logging.getLogger("outlast")


def capabilities_at(endpoint: str | None) -> Capabilities:
    """What a store keeps, as far as its address tells."""
    survives: set[Survives] = {"process", "server"}
    host = urlsplit(endpoint or "").hostname or ""
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        survives.add("failover")
    return Capabilities(
        data_survives=frozenset(survives),
        fences_survive=frozenset(survives),
        reach="network",
        max_message_bytes=MAX_MESSAGE_BYTES,
    )


class S3Driver(HeadDriver):
    """One object per scope, with its registers and the newest entries of its logs; see
    `HeadDriver`.

    **What survives** (D1). What S3 of AWS has acknowledged, data and fences alike. Of a compatible
    store only that is declared which a single server with a disk can keep: a crash of its process.
    What its failovers lose, only its operator can know.

    **What it needs.** Conditional PUT, and reads and listings that see what was written before; the
    first is tried at every opening, and a store that fails is refused.
    """

    name = "s3"
    capabilities: Capabilities = capabilities_at(None)
    layout = LAYOUT

    def __init__(
        self,
        *,
        url: str | None = None,
        client: object = None,
        bucket: str | None = None,
        prefix: str = "",
        namespace: str = "default",
        timeout: float = 10.0,
        **options: Any,
    ) -> None:
        """Make a driver; no I/O.

        Args:
            url: ``s3://bucket/prefix``, for a client that the driver makes and closes.
            client: Instead: of boto3, which stays open; with ``bucket``, and perhaps ``prefix``.
            bucket: Its name.
            prefix: Before the names of all objects.
            namespace: A world of its own below the prefix (I5).
            timeout: Seconds that one call may take.
            **options: For ``url``: ``endpoint_url``, ``region``, ``profile``, ``addressing_style``,
                ``aws_access_key_id``, ``aws_secret_access_key``, ``aws_session_token``.

        Raises:
            ConfigurationError: What was given does not fit.
        """
        super().__init__(self.layout)
        if (url is None) == (client is None):
            raise ConfigurationError("give either client=... and bucket=..., or url=...")
        self._link: LentLink | UrlLink
        if url is not None:
            if bucket is not None or prefix:
                raise ConfigurationError("bucket and prefix are in the URL: s3://bucket/prefix")
            self._link = UrlLink(url, timeout, options)
        else:
            if options:
                raise ConfigurationError("a client that is passed in takes no further options")
            self._link = LentLink(client, bucket or "", prefix)
        self._namespace = namespace
        self._patience = timeout * _PATIENCE
        self._place: Place | None = None
        self._client: Any = None
        self._is_closed = False

    @classmethod
    def from_url(
        cls, url: str, *, namespace: str = "default", timeout: float = 10.0, **options: Any
    ) -> "S3Driver":
        """A driver for an ``s3://`` URL; arguments as for the class."""
        return cls(url=url, namespace=namespace, timeout=timeout, **options)

    async def setup(self, *, create: bool) -> None:
        self._check_open()
        link = self._link
        if self._place is None:
            self._client, threads = await open_link(link)
            self.capabilities = capabilities_at(endpoint_of(self._client))
            self._place = Place(
                Bucket(self._client, link.bucket, link.described, user=link.user, threads=threads),
                Keys(link.prefix, self._namespace),
            )
        await set_up(self._place, self._deadline(), create=create, hint=link.hint)
        if not self._place.can_delete:
            _log.info(
                "%s ignores the condition of a DELETE: sweeps leave tombstones", link.described
            )

    async def hazards(self) -> Sequence[str]:
        return await hazards_of(self._ready(), self._deadline())

    async def ping(self) -> None:
        bucket = self._ready().bucket
        if await bucket.send(self._deadline(), "head_bucket") is None:
            raise ConfigurationError(f"{bucket.described} does not exist any more")

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._place is not None:
            await self._place.bucket.close(self._patience)
        if self._client is not None and self._link.owns_client:
            close(self._client)

    async def _run(self, operation: Operation[ResultT]) -> ResultT:
        return await operation(S3Store(self._ready(), self._deadline()))

    def _deadline(self) -> float:
        return moment() + self._patience

    def _ready(self) -> Place:
        self._check_open()
        if self._place is None:
            raise ClosedError("the S3 driver is not set up yet")
        return self._place

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the S3 driver is closed")


__all__ = ["LAYOUT", "MAX_MESSAGE_BYTES", "S3Driver", "capabilities_at"]
