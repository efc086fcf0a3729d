"""Redis, Valkey and Redis Cluster, read with redis-py."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import NoPermissionError

from outlast_contract.faults.endpoints import Endpoints, endpoints_of
from outlast_contract.harness import UrlHarness
from outlast_contract.stores import MANY

_Blocking: Any = import_module("redis").Redis
_OURS = b"outlast:{"


class RedisHarness(UrlHarness):
    """A server or a cluster, by the URL of outlast."""

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """Every key of the namespace with all that it holds, and every key that outlast does not
        make: of more than `MANY` of those, the ones that name the namespace.
        """
        client = self._client()
        try:
            keys = [key async for key in client.scan_iter(count=5000)]
            strange = [key for key in keys if not key.startswith(_OURS)]
            if len(strange) > MANY:
                strange = [key for key in strange if namespace.encode() in key]
            own = _beginnings(namespace)
            wanted = [key for key in keys if key.startswith(own)] + strange
            return [found async for found in _contents(client, wanted)]
        finally:
            await client.aclose()

    async def wipe(self, namespace: str) -> None:
        """Remove everything, what outlives a sweep included."""
        await super().wipe(namespace)
        tag = quote(namespace, safe="")
        floors = [f"outlast:{{{tag}.{bucket:02x}}}:floor" for bucket in range(256)]
        client = self._client()
        try:
            pipeline = client.pipeline(transaction=False)
            for key in (f"outlast:{{{tag}}}:format", *floors):
                pipeline.execute_command("UNLINK", key)
            await pipeline.execute()
        finally:
            await client.aclose()

    async def versions(self) -> Mapping[str, str]:
        """The server's, by the name that it gives itself."""
        client = self._client()
        try:
            told: dict[str, Any] = await client.info("server")
        finally:
            await client.aclose()
        if "redis_version" not in told:  # A cluster answers node by node.
            told = next(iter(told.values()))
        name = "valkey" if "valkey_version" in told else "redis"
        return {f"{name} server": str(told[f"{name}_version"])}

    def server_faults(self) -> Mapping[str, Callable[[], Awaitable[object]]]:
        """The server forgets all scripts."""
        return {"SCRIPT FLUSH": self._flush_scripts}

    def shortages(self) -> Mapping[str, Callable[[], AbstractAsyncContextManager[object]]]:
        """A server, not a cluster, takes no more memory."""
        return {} if self._is_cluster else {"memory": self._without_memory}

    @asynccontextmanager
    async def _without_memory(self) -> AsyncGenerator[None]:
        client = self._client()
        try:
            before = await client.config_get("maxmemory", "maxmemory-policy")
            # First of all, so that nobody's keys are evicted.
            await client.config_set("maxmemory-policy", "noeviction")
            try:
                await client.config_set("maxmemory", 1)
                yield
            finally:
                for name in ("maxmemory", "maxmemory-policy"):
                    await client.config_set(name, before[name])
        finally:
            await client.aclose()

    async def _flush_scripts(self) -> None:
        client = self._client()
        try:
            await client.script_flush()
        finally:
            await client.aclose()

    def endpoints(self) -> Endpoints:
        """Of a cluster all nodes: whoever asks one is told of the others."""
        if not self._is_cluster:
            return super().endpoints()
        one = endpoints_of(self._plain(), {})
        # Not awaited: asked seldom, and answered at once by a server that was just opened.
        client: Any = _Blocking.from_url(self._plain(), socket_timeout=5)
        with client:
            slots = client.execute_command("CLUSTER SLOTS")
        nodes = {(_text(node[0]), int(node[1])) for slot in slots for node in slot[2:]}
        return Endpoints(tuple(sorted(nodes)), one.wire)

    @property
    def _is_cluster(self) -> bool:
        parts = urlsplit(self.url or "")
        named = parts.scheme.endswith("+cluster") or "&cluster=true&" in f"&{parts.query}&"
        return named or bool(self.options.get("cluster"))

    def _plain(self) -> str:
        parts = urlsplit(self.url or "")
        scheme = parts.scheme.partition("+")[0]
        return urlunsplit((scheme.replace("valkey", "redis"), parts.netloc, parts.path, "", ""))

    def _client(self) -> Any:
        authorities = self.options.get("ssl_ca_certs")
        settings = {"ssl_ca_certs": authorities} if authorities else {}
        kind: Any = RedisCluster if self._is_cluster else Redis
        return kind.from_url(self._plain(), **settings)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


async def keys_of(client: Any, namespace: str) -> AsyncIterator[tuple[str, bytes]]:
    """Every key of a namespace, with all that it holds, read with a client of redis-py."""
    tag = quote(namespace, safe="")
    escaped = "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in tag)
    listed = client.scan_iter(match=f"outlast:{{{escaped}*", count=1000)
    own = [key async for key in listed if key.startswith(_beginnings(namespace))]
    async for found in _contents(client, own):
        yield found


def _beginnings(namespace: str) -> tuple[bytes, ...]:
    tag = quote(namespace, safe="")
    return f"outlast:{{{tag}.".encode(), f"outlast:{{{tag}}}".encode()


async def _contents(client: Any, keys: Sequence[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    for key in keys:
        try:
            held = await _held(client, key)
        except NoPermissionError:  # a stranger's, which this user may not touch
            continue
        if held is not None:  # removed in between
            yield key.decode("latin-1"), repr(held).encode()


async def _held(client: Any, key: bytes) -> object:
    match await client.type(key):
        case b"hash":
            return await client.hgetall(key)
        case b"list":
            return await client.lrange(key, 0, -1)
        case b"set":
            return await client.smembers(key)
        case b"zset":
            return await client.zrange(key, 0, -1, withscores=True)
        case b"stream":
            return await client.xrange(key)
        case b"string":
            return await client.get(key)
        case _:
            return await client.dump(key)


__all__ = ["RedisHarness", "keys_of"]
