"""Redis, Valkey and Redis Cluster, read with redis-py."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from redis.asyncio import Redis, RedisCluster

from outlast_contract.faults.endpoints import Endpoints, endpoints_of
from outlast_contract.harness import UrlHarness

_Blocking: Any = import_module("redis").Redis


class RedisHarness(UrlHarness):
    """A server or a cluster, by the URL of outlast."""

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """Every key of the namespace, with all that it holds."""
        client = self._client()
        try:
            return [found async for found in keys_of(client, namespace)]
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
    beginnings = (f"outlast:{{{tag}.".encode(), f"outlast:{{{tag}}}".encode())
    async for key in client.scan_iter(match=f"outlast:{{{escaped}*", count=1000):
        if not key.startswith(beginnings):
            continue
        held: Any
        match await client.type(key):
            case b"hash":
                held = await client.hgetall(key)
            case b"list":
                held = await client.lrange(key, 0, -1)
            case b"zset":
                held = await client.zrange(key, 0, -1, withscores=True)
            case _:
                held = await client.get(key)
        yield key.decode("latin-1"), repr(held).encode()


__all__ = ["RedisHarness", "keys_of"]
