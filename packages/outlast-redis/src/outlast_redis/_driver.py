"""`RedisDriver`: each call is one script, and one round trip, on the bucket of its scope."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from redis.asyncio import Redis, RedisCluster

from outlast.driver import (
    LOGS,
    PRIMARY,
    REGISTERS,
    Capabilities,
    Driver,
    Entry,
    Fence,
    Index,
    Page,
    PreconditionFailedError,
    Scope,
    ScopeKind,
    SweepPage,
    Value,
    Where,
    next_claim,
)
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    CorruptDataError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedVersionError,
)
from outlast.url import redact
from outlast_redis import _buckets, _scripts, _settings
from outlast_redis._answers import (
    attribute,
    check_refusal,
    fence_arguments,
    pack,
    pieces,
    stored_fence,
    unpack,
    unpack_data,
    value_of,
)
from outlast_redis._keys import PARTS, Keys
from outlast_redis._links import Link
from outlast_redis._options import link_of_client, link_of_url
from outlast_redis._permissions import open_namespace
from outlast_redis._scripts import run

ResultT = TypeVar("ResultT")

FORMAT: Final = "1"
"""Of keys and fields; a namespace holds it once."""


class RedisDriver(Driver):
    """One Redis, Valkey or Redis Cluster, one namespace; made by `from_url` or `from_client`.

    Args:
        connect: Makes the way to the server.
        namespace: The world of ids that this driver sees.
        url: For people; without a password.
    """

    name = "redis"

    def __init__(self, connect: Callable[[], Link], *, namespace: str, url: str) -> None:
        self.capabilities = _settings.LEAST
        self._servers: Sequence[_settings.Settings] = ()
        self._connect = connect
        self._keys = Keys(namespace)
        self._url = url
        self._link: Link | None = None

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str,
        timeout: float = 10.0,
        cluster: bool | None = None,
        max_connections: int | None = None,
        ssl_ca_certs: str | None = None,
    ) -> "RedisDriver":
        """Make the driver for ``url``; nothing is opened before `setup`.

        Args:
            url: ``redis://[user:password@]host[:port][/database]``, ``rediss://`` for TLS,
                ``valkey://`` and ``valkeys://`` for the same, ``+cluster`` behind the scheme for a
                Redis Cluster; the options below may stand in its query.
            namespace: The world of ids that this driver sees.
            timeout: Seconds that connecting may take.
            cluster: Whether it is a cluster.
            max_connections: How many calls may be under way at once; the others wait. 32 by
                default.
            ssl_ca_certs: File of certificates to trust, instead of the system's.

        Raises:
            ConfigurationError: Something in the URL or an option does not fit.
        """
        connect = link_of_url(
            url,
            timeout=timeout,
            cluster=cluster,
            max_connections=max_connections,
            ssl_ca_certs=ssl_ca_certs,
        )
        return cls(connect, namespace=namespace, url=redact(url))

    @classmethod
    def from_client(
        cls,
        client: Redis | RedisCluster,
        *,
        namespace: str,
        max_connections: int | None = None,
        timeout: float | None = None,
    ) -> "RedisDriver":
        """Make the driver for a client of the caller's, who closes it.

        Args:
            client: Of redis-py's asyncio part.
            namespace: The world of ids that this driver sees.
            max_connections: How many calls may be under way at once; the others wait.
            timeout: Seconds that a call may take; connecting takes less. ``None``: as long as the
                client itself goes on trying.

        Raises:
            ConfigurationError: Not a client of redis-py's asyncio part, or one that reads from
                replicas (F4).
        """
        connect = link_of_client(client, max_connections=max_connections, timeout=timeout)
        return cls(connect, namespace=namespace, url="redis://...")

    async def setup(self, *, create: bool) -> None:
        link = self._link = self._link or self._connect()
        servers = await _settings.settings_of(link)
        _settings.check(servers, link)
        found = await open_namespace(link, self._keys, FORMAT if create else "")
        if found is None:
            raise ConfigurationError(
                f"{link.place} is not set up for this namespace; run: outlast setup {self._url}"
            )
        if found != FORMAT.encode():
            raise UnsupportedVersionError(
                f"the namespace has the format {found!r:.20} on {link.place}; this version of "
                f"outlast-redis knows {FORMAT}; upgrade it"
            )
        self._servers = servers
        self.capabilities: Capabilities = _settings.declared(servers)

    async def hazards(self) -> Sequence[str]:
        return _settings.hazards(self._servers)

    async def ping(self) -> None:
        await self._open.send(self._keys.format, ("EXISTS", self._keys.format))

    async def aclose(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()

    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        keys = self._keys.of(scope)
        answer = await run(
            self._open,
            _scripts.CLAIM,
            keys.record,
            [
                claim_id,
                "" if at_least is None else at_least,
                attribute(parent),
                PRIMARY[scope.kind],
                keys.member,
                "" if if_epoch is None else if_epoch,
            ],
        )
        if answer[0] == b"refused":
            next_claim(stored_fence(answer[1:5]), claim_id, at_least, 0, if_epoch)
            raise CorruptDataError("the server refused a claim that the rules allow")
        return value_of(answer[1], answer[2:])

    async def read(self, scope: Scope, register: str) -> Value:
        now, *fields = await run(self._open, _scripts.READ, [self._keys.of(scope).head], [register])
        return value_of(now, fields)

    async def write(
        self,
        scope: Scope,
        register: str,
        data: bytes | None,
        *,
        fence: Fence | None,
        index: Index | None = None,
        if_version: int | None = None,
    ) -> int:
        keys = self._keys.of(scope)
        attributes: tuple[str | int, ...] = ("keep", "", "", 0)
        if index is not None:
            attributes = ("set", attribute(index.parent), attribute(index.status), index.updated_at)
        elif register == PRIMARY[scope.kind]:
            attributes = ("clear", "", "", 0)
        outcome, *details = await run(
            self._open,
            _scripts.WRITE,
            keys.record,
            [
                *fence_arguments(fence),
                keys.member,
                register,
                PARTS[register],
                "" if if_version is None else if_version,
                *attributes,
                *(() if data is None else (data,)),
            ],
        )
        if outcome == b"refused":
            check_refusal(details, fence)
            return int(details[4])
        if outcome == b"version":
            raise PreconditionFailedError(f"the version is {details[0]}, not {if_version}")
        return int(details[0])

    async def load(self, scope: Scope, log: str, *, last: int | None = None) -> list[Entry]:
        return [unpack(element) for element in await self._elements(scope, log, last)]

    async def load_data(
        self,
        scope: Scope,
        log: str,
        decode: Callable[[Iterable[bytes]], ResultT],
        *,
        last: int | None = None,
    ) -> ResultT:
        return decode(map(unpack_data, await self._elements(scope, log, last)))

    async def _elements(self, scope: Scope, log: str, last: int | None) -> Sequence[bytes]:
        if last == 0:
            return []
        key = self._keys.of(scope).log(log).entries
        first = 0 if last is None else -last
        elements: Sequence[bytes] = await self._open.send(key, ("LRANGE", key, first, -1))
        return elements

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        keys = self._keys.of(scope)
        outcome, *details = await run(
            self._open,
            _scripts.APPEND,
            [*keys.record, *keys.log(log)],
            [
                *fence_arguments(fence),
                keys.member,
                PARTS[log],
                len(present),
                *(entry_id.encode() for entry_id in present),
                *map(pack, entries),
            ],
        )
        if outcome == b"refused":
            check_refusal(details, fence)
        elif outcome == b"absent":
            missing: bytes = details[0]
            raise PreconditionFailedError(f"{missing.decode()!r} is not in the log any more")
        elif outcome == b"known":
            return [unpack(data) for data in details[0]]
        return []

    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        keys = self._keys.of(scope)
        parts = list(pieces(map(pack, entries)))
        mark = [*fence_arguments(fence), keys.member, PARTS[log]]
        if len(parts) < 2:
            outcome, *details = await run(
                self._open,
                _scripts.REPLACE,
                [*keys.record, *keys.log(log)],
                [*mark, *(parts[0] if parts else ())],
            )
        else:
            generation = secrets.token_hex(8).encode()
            aside = self._keys.generation(keys.bucket, generation)
            staged = self._keys.staged(keys.bucket)
            await self._stage(generation, [staged, *aside], parts)
            outcome, *details = await run(
                self._open,
                _scripts.FLIP,
                [*keys.record, *keys.log(log), staged, *aside],
                [*mark, generation, len(entries)],
            )
        if outcome == b"refused":
            check_refusal(details, fence)
        elif outcome == b"absent":
            raise _swept()

    async def _stage(
        self, generation: bytes, keys: Sequence[bytes], parts: Sequence[Sequence[bytes]]
    ) -> None:
        count = 0
        for part in parts:
            try:
                outcome = await run(self._open, _scripts.STAGE, keys, [generation, count, *part])
            except OutcomeUnknownError as error:
                # Whatever became of the piece: without the flip it is nothing.
                raise UnavailableError(error.message) from error
            if outcome[0] == b"absent":
                raise _swept()
            count += len(part)

    async def remove(self, scope: Scope, *, fence: Fence | None) -> None:
        keys = self._keys.of(scope)
        logs = [key for log in LOGS[scope.kind] for key in keys.log(log)]
        outcome, *details = await run(
            self._open,
            _scripts.REMOVE,
            [*keys.record, *logs],
            [*fence_arguments(fence), keys.member, *REGISTERS[scope.kind]],
        )
        if outcome == b"refused":
            check_refusal(details, fence)

    async def scan(self, kind: ScopeKind, *, where: Where, after: str | None, limit: int) -> Page:
        return await _buckets.scan(self._open, self._keys, kind, where, after, limit)

    async def sweep(
        self, *, older_than: float, limit: int, dry_run: bool, after: str | None
    ) -> SweepPage:
        age = int(older_than * 1e6)
        return await _buckets.sweep(
            self._open, self._keys, age, limit, dry_run=dry_run, after=after
        )

    @property
    def _open(self) -> Link:
        if self._link is None:
            raise ClosedError("the driver is not open")
        return self._link


def _swept() -> UnavailableError:
    return UnavailableError("a sweep removed the pieces that were put aside; nothing was changed")


__all__ = ["RedisDriver"]
