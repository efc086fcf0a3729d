"""D1, H-R12: servers killed under load keep what was done, or declare that they may not."""

import itertools
from collections.abc import Callable

import pytest
from redis_support import LentHarness

from outlast_contract import Settings
from outlast_contract.expect import Violation
from outlast_contract.restarts import survive_restarts
from outlast_contract.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
Start = Callable[..., Server]

KILLS = min(5, Settings.from_environment().kills)
"""Each of them takes seconds; short runs have fewer."""


@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_what_is_done_outlasts_kills(start: Start, kind: str) -> None:
    """With every command on disk before it is answered, neither data nor fences are lost."""
    history = await survive_restarts(start(kind), kills=KILLS)
    assert history.keeps_data
    assert history.keeps_fences


async def test_what_is_done_outlasts_the_masters_of_a_cluster(start: Start) -> None:
    """Each kill takes another third of the slots away; errors are documented, nothing is lost."""
    masters = itertools.cycle(range(3))
    history = await survive_restarts(
        start("redis-cluster"), kills=KILLS, owners=9, node=masters.__next__
    )
    assert history.keeps_data
    assert history.keeps_fences
    assert history.count(error="UnavailableError") > 0


@pytest.mark.long
async def test_what_is_done_outlasts_kills_through_lent_clients(start: Start) -> None:
    """Their settings are the application's, such as how often they repeat what failed."""
    server = start("redis")
    history = await survive_restarts(server, LentHarness(server), kills=KILLS)
    assert history.keeps_data
    assert history.keeps_fences


@pytest.mark.long
async def test_what_is_done_outlasts_masters_through_lent_clients(start: Start) -> None:
    """They learn where the slots are by themselves, and again after each kill."""
    server = start("redis-cluster")
    masters = itertools.cycle(range(3))
    history = await survive_restarts(
        server, LentHarness(server), kills=KILLS, owners=9, node=masters.__next__
    )
    assert history.keeps_data
    assert history.keeps_fences
    assert history.count(error="UnavailableError") > 0


@pytest.mark.parametrize("how", ["everysec", "no"])
async def test_what_may_be_lost_is_declared(start: Start, how: str) -> None:
    """With less nothing is promised; clients reconnect all the same, and find nothing invented."""
    history = await survive_restarts(start("redis", "--appendfsync", how), kills=KILLS)
    assert not history.keeps_data
    assert not history.keeps_fences


async def test_a_server_that_forgets_would_be_found_out(start: Start) -> None:
    """One without persistence does not pass for durable: the tests above can fail."""
    with pytest.raises(Violation) as caught:
        await survive_restarts(start("redis", "--appendonly", "no"), survives=True)
    assert caught.value.clause in ("D1", "F1", "F2", "F13")
