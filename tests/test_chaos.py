"""An agent with tools and a sub-task over a real server, killed at random moments.

The store's part in it; that of directories and SQLite is tested with the core.
"""

import sys
from pathlib import Path

import pytest

import outlast
from outlast_contract.servers import ServerUnavailable, shared_server

# The agent, its processes and the judgement of what they leave are the core's.
sys.path.append(str(Path(__file__).resolve().parent.parent / "packages/outlast/tests"))
from chaos_kit import KILLS, SEED, Chaos


@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * KILLS)
@pytest.mark.parametrize("kind", ["redis", pytest.param("postgres", marks=pytest.mark.long)])
async def test_an_agent_that_is_killed_again_and_again_does_everything_once(
    kind: str, tmp_path: Path
) -> None:
    """Each turn is committed once, each payment made at most once, and no call is left open."""
    try:
        server = shared_server(kind)
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")
    try:
        outlast.open_backend(server.url)
    except outlast.ConfigurationError as error:
        pytest.skip(f"NOT RUN: {error}")
    chaos = Chaos(server.url, tmp_path, f"{kind} {SEED}")
    chaos.run(KILLS)
    counts = await chaos.check()
    print(kind, dict(counts))
    assert counts["kills"] == KILLS
