"""An agent with tools and a sub-task, killed at random moments, again and again.

Stores behind a server have theirs in tests/test_chaos.py.
"""

from pathlib import Path

import pytest
from chaos_kit import KILLS, SEED, Chaos


@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * KILLS)
@pytest.mark.parametrize("kind", ["file", pytest.param("sqlite", marks=pytest.mark.long)])
async def test_an_agent_that_is_killed_again_and_again_does_everything_once(
    kind: str, tmp_path: Path
) -> None:
    """Each turn is committed once, each payment made at most once, and no call is left open."""
    if kind == "sqlite":
        pytest.importorskip("outlast_sql")
        url = f"sqlite:///{tmp_path / 'agent.db'}"
    else:
        url = f"file://{tmp_path / 'agent'}"
    chaos = Chaos(url, tmp_path, f"{kind} {SEED}")
    chaos.run(KILLS)
    counts = await chaos.check()
    print(kind, dict(counts))
    assert counts["kills"] == KILLS
