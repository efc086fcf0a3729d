"""Redis, Valkey and Redis Cluster, read with redis-py."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from redis.asyncio import Redis, RedisCluster

from outlast_contract.harness import UrlHarness


class RedisHarness(UrlHarness):
    """A server or a cluster, by the URL of outlast."""

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """Every key of the namespace, with all that it holds."""
        client = self._client()
        try:
            tag = quote(namespace, safe="")
            return [found async for found in _keys(client, tag)]
        finally:
            await client.aclose()

    def server_faults(self) -> Mapping[str, Callable[[], Awaitable[object]]]:
        """The server forgets all scripts."""
        return {"SCRIPT FLUSH": self._flush_scripts}

    async def _flush_scripts(self) -> None:
        client = self._client()
        try:
            await client.script_flush()
        finally:
            await client.aclose()

    def _client(self) -> Any:
        parts = urlsplit(self.url or "")
        scheme, _, variant = parts.scheme.partition("+")
        plain = urlunsplit((scheme.replace("valkey", "redis"), parts.netloc, parts.path, "", ""))
        query = f"&{parts.query}&"
        authorities = self.options.get("ssl_ca_certs")
        settings = {"ssl_ca_certs": authorities} if authorities else {}
        kind: Any = Redis
        if variant == "cluster" or "&cluster=true&" in query or self.options.get("cluster"):
            kind = RedisCluster
        return kind.from_url(plain, **settings)


async def _keys(client: Any, tag: str) -> AsyncIterator[tuple[str, bytes]]:
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


__all__ = ["RedisHarness"]
