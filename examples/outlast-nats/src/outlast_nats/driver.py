"""`NatsDriver`: a key-value bucket of NATS JetStream as a store for outlast."""

from collections.abc import Sequence
from typing import TypeVar

from nats.js.api import DiscardPolicy, KeyValueConfig, StorageType, StreamConfig
from nats.js.errors import APIError

from outlast.driver import Capabilities, Survives
from outlast.errors import ClosedError, ConfigurationError
from outlast.heads import HeadDriver, Layout, Operation, Shield, moment
from outlast.url import parse_url, redact
from outlast_nats.errors import is_name_in_use, is_no_stream, translate
from outlast_nats.links import Links, Server
from outlast_nats.store import CHUNK, NatsStore, Place

ResultT = TypeVar("ResultT")

LAYOUT = Layout(run_inline_bytes=64 * 1024, merge_bytes=CHUNK // 2, piece_bytes=CHUNK // 2)
"""How records are divided: most pieces are one message."""

_HEADROOM = 64 * 1024
"""Bytes of a message besides its payload, at most."""

_PATIENCE = 0.9
"""The part of the timeout that a call uses, so that its answer comes before the caller's end."""


def capabilities_of(*survives: Survives) -> Capabilities:
    """What a bucket keeps, data and fences alike."""
    kept = frozenset(survives)
    return Capabilities(
        data_survives=kept,
        fences_survive=kept,
        reach="network",
        max_message_bytes=16 * 2**20,
    )


class NatsDriver(HeadDriver):
    """One key per scope, changed only if its revision is the expected one; see `HeadDriver`.

    **What survives** (D1). The server writes a message to its file before it acknowledges it, but
    leaves it to the system when that reaches the disk (``sync_interval``). So the end of any
    process is survived, also the server's. A bucket in memory survives that of a client only. For
    a failover nothing is declared: it is not tested here.
    """

    name = "nats"
    capabilities: Capabilities = capabilities_of("process", "server")

    def __init__(
        self, server: Server, bucket: str, *, namespace: str, timeout: float, replicas: int
    ) -> None:
        """Make a driver; no I/O. `from_url` is the usual way."""
        super().__init__(LAYOUT)
        self._server = server
        self._bucket = bucket
        self._namespace = namespace
        self._patience = timeout * _PATIENCE
        self._replicas = replicas
        self._shield = Shield()
        self._place: Place | None = None
        self._config: StreamConfig | None = None
        self._is_closed = False

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "default",
        timeout: float = 10.0,
        replicas: int | str = 1,
        user_credentials: str | None = None,
    ) -> "NatsDriver":
        """A driver for ``nats://user:password@host:port/bucket``.

        Args:
            url: The bucket is ``outlast`` if it names none; a user without password is a token.
            namespace: A world of its own within the bucket (I5).
            timeout: Seconds that one call may take.
            replicas: Of a bucket that `setup` creates.
            user_credentials: Path of a file with credentials.
        """
        parts = parse_url(url, options=["replicas"])
        bucket = parts.path.strip("/") or "outlast"
        if not parts.host or not bucket.replace("-", "").replace("_", "").isalnum():
            raise ConfigurationError(f"{redact(url)} is not of the form nats://host:port/bucket")
        count = str(parts.query.get("replicas", replicas))
        if not count.isdecimal():
            raise ConfigurationError(f"replicas must be a number, not {count!r}")
        login: dict[str, object] = {"user_credentials": user_credentials}
        if parts.password is not None:
            login |= {"user": parts.username, "password": parts.password}
        elif parts.username:
            login["token"] = parts.username
        host = f"[{parts.host}]" if ":" in parts.host else parts.host
        address = f"{host}:{parts.port or 4222}"
        server = Server(f"nats://{address}", f"the bucket {bucket!r} at {address}", login)
        return cls(server, bucket, namespace=namespace, timeout=timeout, replicas=int(count))

    async def setup(self, *, create: bool) -> None:
        self._check_open()
        if self._place is None:
            # Here, since connections belong to the event loop that is running now.
            self._place = Place(Links(self._server), self._bucket, self._namespace)
        await self._shield.run(self._set_up(self._place, create=create))

    async def hazards(self) -> Sequence[str]:
        config = self._config
        assert config is not None
        found: list[str] = []
        if config.storage == StorageType.MEMORY:
            found.append("the bucket is in memory: the end of the server loses what it holds")
        if config.max_age:
            found.append("the bucket has a TTL: the server removes tasks and fences of that age")
        if config.discard == DiscardPolicy.OLD and (config.max_bytes or 0) > 0:
            found.append("the bucket discards old values when it is full, fences among them")
        return found

    async def ping(self) -> None:
        if await self._shield.run(self._find(self._ready(), self._deadline())) is None:
            raise ConfigurationError(f"{self._server.place} does not exist any more")

    async def aclose(self) -> None:
        self._is_closed = True
        await self._shield.drain()
        if self._place is not None:
            await self._place.links.close()

    async def _run(self, operation: Operation[ResultT]) -> ResultT:
        # Seen through: nats-py has states in which a cancellation would strike it.
        return await self._shield.run(operation(NatsStore(self._ready(), self._deadline())))

    async def _set_up(self, place: Place, *, create: bool) -> None:
        deadline = self._deadline()
        config = await self._find(place, deadline)
        if config is None and create:
            await self._create(place, deadline)
            config = await self._find(place, deadline)
        if config is None:
            raise ConfigurationError(
                f"{self._server.place} does not exist; create it with: outlast setup URL"
            )
        limits = [place.links.max_payload, config.max_msg_size or -1]
        limit = min(size for size in limits if size > 0)
        if limit < CHUNK + _HEADROOM:
            raise ConfigurationError(
                f"{self._server.place} takes messages of {limit:,} bytes; allow at least "
                f"{CHUNK + _HEADROOM:,} (max_payload of the server, max value size of the bucket)"
            )
        self._config = config
        if config.storage == StorageType.MEMORY:
            self.capabilities = capabilities_of("process")

    async def _find(self, place: Place, deadline: float) -> StreamConfig | None:
        """The bucket's settings; ``None``: there is no such bucket."""
        try:
            info = await place.links.call(lambda js: js.stream_info(place.stream), deadline)
        except APIError as error:
            if is_no_stream(error):
                return None
            raise translate(error, self._server.place, changes=False) from error
        return info.config

    async def _create(self, place: Place, deadline: float) -> None:
        config = KeyValueConfig(
            self._bucket, history=1, storage=StorageType.FILE, replicas=self._replicas
        )
        try:
            await place.links.call(lambda js: js.create_key_value(config), deadline)
        except APIError as error:
            if not is_name_in_use(error):  # Another process has just made it.
                raise translate(error, self._server.place, changes=False) from error

    def _deadline(self) -> float:
        return moment() + self._patience

    def _ready(self) -> Place:
        self._check_open()
        if self._place is None:
            raise ClosedError("the NATS driver is not set up yet")
        return self._place

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the NATS driver is closed")
