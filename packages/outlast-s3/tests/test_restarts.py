"""D1: a store killed under load keeps what was done."""

import pytest

from outlast_contract import Settings
from outlast_contract.restarts import survive_restarts
from outlast_contract.servers import ServerUnavailable, start_server

pytestmark = [pytest.mark.s3, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(240)]

KILLS = min(5, Settings.from_environment().kills)
"""Each of them takes seconds; short runs have fewer."""


async def test_what_is_done_outlasts_kills() -> None:
    """Heads are swapped whole, and what they refer to was there before."""
    try:
        server = start_server("s3")
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")
    with server:
        history = await survive_restarts(server, kills=KILLS)
    assert history.keeps_data
    assert history.keeps_fences
