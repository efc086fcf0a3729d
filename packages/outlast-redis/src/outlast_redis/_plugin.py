"""The entry point: what this distribution offers, without importing a driver."""

import outlast


@outlast.hookimpl
def outlast_backends() -> list[outlast.BackendInfo]:
    """The backends of this distribution."""
    return [
        outlast.BackendInfo(
            name="redis",
            schemes=("redis", "rediss", "valkey", "valkeys"),
            variants=("cluster",),
            factory="outlast_redis:RedisDriver.from_url",
            summary="Redis, Valkey or a Redis Cluster, shared over the network",
        )
    ]
