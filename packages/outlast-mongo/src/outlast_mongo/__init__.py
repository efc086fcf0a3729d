"""MongoDB as a store for outlast.

``outlast.open_backend("mongodb://host/")`` needs nothing from here; `MongoBackend` takes a database
of a client that the application has already, PyMongo's asyncio client or Motor's.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast_mongo._backend import MongoBackend
    from outlast_mongo._driver import MongoDriver

__version__ = "0.1.0"

_HOMES = {"MongoBackend": "outlast_mongo._backend", "MongoDriver": "outlast_mongo._driver"}


def __getattr__(name: str) -> object:
    # The entry point lies below this package: finding it must not import PyMongo.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["MongoBackend", "MongoDriver"]
