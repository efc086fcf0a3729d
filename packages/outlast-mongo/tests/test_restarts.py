"""D1: a server killed under load keeps what was done, with either client."""

import pytest

from outlast_contract.harness import UrlHarness
from outlast_contract.restarts import survive_restarts
from outlast_contract.servers import ServerUnavailable, start_server

pytestmark = [pytest.mark.mongo, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("driver", ["pymongo", "motor"])
@pytest.mark.usefixtures("broken_connections")
async def test_what_is_done_outlasts_five_kills(driver: str) -> None:
    """The journal has it before it is answered, and fences with it."""
    try:
        server = start_server("mongodb")
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")
    with server:
        history = await survive_restarts(server, UrlHarness(server.url, driver=driver))
    assert history.keeps_data
    assert history.keeps_fences
