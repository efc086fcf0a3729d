"""SQL databases as a store for outlast: SQLite, PostgreSQL, MySQL and MariaDB.

``outlast.open_backend("sqlite:///agent.db")`` needs nothing from here; `SqlBackend` takes an engine
of SQLAlchemy that the application has already.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast_sql._backend import SqlBackend
    from outlast_sql._driver import SqlDriver

__version__ = "0.1.0"

_HOMES = {"SqlBackend": "outlast_sql._backend", "SqlDriver": "outlast_sql._driver"}


def __getattr__(name: str) -> object:
    # The entry point lies below this package: finding it must not import SQLAlchemy.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["SqlBackend", "SqlDriver"]
