"""Harnesses for the stores that the family serves by URL, as the command uses them.

Each looks past the adapter with the plain client of its store, which the backend's own distribution
has brought. What a broken adapter writes may be anywhere, so each looks through the whole database,
bucket or directory; other namespaces, where it can tell them, are left out.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from outlast_contract.harness import Harness, UrlHarness
from outlast_contract.stores.embedded import FileHarness, MemoryHarness, SqliteHarness

MANY: Final = 10_000
"""So much of what is not outlast's is read; of more, what can be told from its name."""

_REDIS: Final = "redis:RedisHarness"
_BY_SCHEME: Final[Mapping[str, str]] = {
    "file": "embedded:FileHarness",
    "sqlite": "embedded:SqliteHarness",
    "postgresql": "sql:PostgresHarness",
    "mysql": "sql:MysqlHarness",
    "mariadb": "sql:MysqlHarness",
    "mongodb": "mongodb:MongoHarness",
    "s3": "s3:S3Harness",
    "redis": _REDIS,
    "rediss": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
}


def harness_for(url: str, **options: Any) -> Callable[[], Harness]:
    """Makes harnesses for a store URL; ``memory://`` becomes one shared store of a random name
    each. A scheme that is not of the family is served without a look past the adapter.
    """
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if url.rstrip("/").lower() == "memory:":
        return MemoryHarness
    if scheme not in _BY_SCHEME:
        return lambda: UrlHarness(url, **options)
    module, _, name = _BY_SCHEME[scheme].partition(":")

    def make() -> Harness:
        try:
            found = import_module(f"{__name__}.{module}")
        except ImportError:  # Opening the store says what to install.
            return UrlHarness(url, **options)
        harness: Harness = getattr(found, name)(url, **options)
        return harness

    return make


__all__ = ["MANY", "FileHarness", "MemoryHarness", "SqliteHarness", "harness_for"]
