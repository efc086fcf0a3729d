"""Redis, Valkey and Redis Cluster as a store for outlast, through redis-py's asyncio client.

``outlast.open_backend("redis://localhost:6379/0")`` needs nothing from here; `RedisBackend` takes a
client that the application has already.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast_redis._backend import RedisBackend
    from outlast_redis._driver import RedisDriver

__version__ = "0.1.0"

_HOMES = {"RedisBackend": "outlast_redis._backend", "RedisDriver": "outlast_redis._driver"}


def __getattr__(name: str) -> object:
    # The entry point lies below this package: finding it must not import redis.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["RedisBackend", "RedisDriver"]
