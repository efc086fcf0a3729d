"""D1, H-Q10: servers killed under load keep what was done, or declare that they may not."""

from collections.abc import Callable

import pytest

from outlast_contract import Settings
from outlast_contract.harness import UrlHarness
from outlast_contract.restarts import survive_restarts
from outlast_contract.servers import Server

pytestmark = [pytest.mark.sql, pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(180)]

KILLS = min(5, Settings.from_environment().kills)
"""Each of them takes seconds; short runs have fewer."""


@pytest.mark.parametrize(
    ("kind", "arguments", "is_durable"),
    [
        ("postgres", (), True),
        ("postgres", ("-c", "synchronous_commit=off"), False),
        ("mariadb", (), True),
        ("mariadb", ("--innodb-flush-log-at-trx-commit=2",), False),
    ],
    ids=["postgres", "postgres that commits later", "mariadb", "mariadb that flushes later"],
)
async def test_what_is_done_outlasts_kills(
    start: Callable[..., Server], kind: str, arguments: tuple[str, ...], is_durable: bool
) -> None:
    """A transaction is logged before it is answered; settings under which it is not are told."""
    history = await survive_restarts(start(kind, *arguments), kills=KILLS)
    assert history.keeps_data is is_durable
    assert history.keeps_fences is is_durable


@pytest.mark.long
async def test_what_is_done_outlasts_kills_through_psycopg(start: Callable[..., Server]) -> None:
    """The server is the same; how a connection breaks, and how it is told, are the client's."""
    server = start("postgres")
    harness = UrlHarness(f"postgresql+psycopg://{server.url.partition('://')[2]}")
    history = await survive_restarts(server, harness, kills=KILLS)
    assert history.keeps_data
    assert history.keeps_fences
