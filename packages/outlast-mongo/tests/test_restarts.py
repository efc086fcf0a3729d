"""D1, M4: servers killed under load keep what was done, through failovers, with either client."""

import pytest
from mongo_support import Start, primary

from outlast_contract import Settings
from outlast_contract.harness import UrlHarness
from outlast_contract.restarts import survive_restarts

pytestmark = [pytest.mark.mongo, pytest.mark.slow, pytest.mark.timeout(240)]

DRIVERS = pytest.mark.parametrize(
    "driver", ["pymongo", pytest.param("motor", marks=pytest.mark.long)]
)
KILLS = min(5, Settings.from_environment().kills)
"""Each of them takes seconds; short runs have fewer."""


@DRIVERS
@pytest.mark.usefixtures("broken_connections")
async def test_what_is_done_outlasts_kills(start: Start, driver: str) -> None:
    """The journal has it before it is answered, and fences with it."""
    server = start("mongodb")
    history = await survive_restarts(server, UrlHarness(server.url, driver=driver), kills=KILLS)
    assert history.keeps_data
    assert history.keeps_fences


@DRIVERS
@pytest.mark.usefixtures("broken_connections")
async def test_what_is_done_outlasts_primaries(start: Start, driver: str) -> None:
    """Each kill strikes whichever member is the primary; the others elect one of themselves."""
    server = start("mongodb-replicas")
    killed: list[int] = []

    def node() -> int:
        killed.append(primary(server))
        return killed[-1]

    history = await survive_restarts(
        server, UrlHarness(server.url, driver=driver), kills=KILLS, fault="failover", node=node
    )
    assert history.keeps_data
    assert history.keeps_fences
    assert len(set(killed)) > 1, "no other member ever took over"
    assert history.count(outcome="done") > 200 * KILLS
