"""An agent with tools and a sub-task, killed at random moments, again and again.

``OUTLAST_CHAOS_KILLS`` sets how often, ``OUTLAST_CHAOS_SEED`` when.
"""

import os
from pathlib import Path

import pytest
from chaos_kit import Chaos

KILLS = int(os.environ.get("OUTLAST_CHAOS_KILLS", "10"))
SEED = os.environ.get("OUTLAST_CHAOS_SEED", "1")


@pytest.mark.slow
@pytest.mark.timeout(120 + 10 * KILLS)
@pytest.mark.parametrize("kind", ["file", "sqlite"])
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
