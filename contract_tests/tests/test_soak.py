"""Random rounds: what is right passes, what is wrong is found, made short, and can be repeated."""

import random
import shlex
from collections.abc import Sequence
from typing import Any

import pytest
from broken_backends import MUTANTS
from broken_backends.kit import BrokenHarness

from outlast.backends.memory import MemoryDriver
from outlast.driver import Entry, Fence, Scope
from outlast_contract.cli import main
from outlast_contract.servers import ServerUnavailable, shared_server
from outlast_contract.soak import KINDS, KINDS_WITHIN, Round, run_round, soak
from outlast_contract.stores import MemoryHarness, harness_for


async def test_a_correct_backend_passes_and_much_happened() -> None:
    unknown = 0
    for seed in range(5):
        history, injected, broken = await run_round(MemoryHarness(), Round(seed, cancels=0.0))
        assert broken is None
        assert history.count() >= 6 * 80
        assert history.count(outcome="refused") > 20
        assert injected
        unknown += history.count(outcome="unknown")
    # Most lost replies are settled by a repetition.
    assert unknown > 10


async def test_the_same_seed_makes_the_same_calls() -> None:
    """How they end may differ, since faults and calls meet in time."""

    async def names() -> dict[Scope, list[tuple[str, str]]]:
        one = Round(7, cancels=0.0, kinds=("refused",))
        history, _, _ = await run_round(MemoryHarness(), one)
        return {
            scope: [(event.name, event.mark) for event in events][:15]
            for scope, events in history.events.items()
        }

    assert await names() == await names()


class LosesAppends(MemoryDriver):
    """One append in twenty is acknowledged and forgotten."""

    chance = random.Random(0)

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        kept = [] if self.chance.random() < 0.05 else entries
        return await super().append(scope, log, kept, fence=fence, present=present)


class LosesAppendsHarness(BrokenHarness):
    driver_class = LosesAppends


async def test_what_is_wrong_is_found_and_made_short() -> None:
    """Fewer owners and calls than in the round that found it, and the same kind of defect."""
    found = await soak(LosesAppendsHarness(), Round(1), seconds=20)
    assert found is not None
    assert found.broken.clause == "D1"
    assert found.round.owners * found.round.calls < Round(1).owners * Round(1).calls
    assert "append" in found.broken.message


FOUND = (
    "PutNeverCompares",
    "DeleteNeverCompares",
    "OnlyTheRegistersAreGuarded",
    "ClaimClearsTheCheckpoint",
    "ARepetitionIsFenced",
)


@pytest.mark.parametrize("name", FOUND)
async def test_broken_backends_that_random_owners_can_meet_are_found(name: str) -> None:
    """Fences that are not compared, and answers to repetitions that are wrong."""
    found = await soak(MUTANTS[name].harness(), Round(0), seconds=20)
    assert found is not None


def test_the_command_says_what_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory://", "--minutes", "0", "--seed", "3", "--owners", "2"]) == 0
    assert "No clause failed on memory://: 1 rounds, " in capsys.readouterr().out


def test_the_command_repeats_what_it_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last line is a command that the same program understands, and finds it again."""
    monkeypatch.setattr("outlast_contract.cli.harness_for", lambda url: LosesAppendsHarness)
    assert main(["memory://", "--minutes", "1"]) == 1
    output = capsys.readouterr().out
    assert "FAILED: D1, in a round of seed " in output
    program, *arguments = shlex.split(output.splitlines()[-1])
    assert program == "outlast-contract"
    assert any(main(arguments) == 1 for _ in range(30))


def test_only_kinds_of_faults_that_exist_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["memory://", "--minutes", "0", "--fault", "rain"])
    told = " ".join(capsys.readouterr().err.split())
    assert all(f"'{kind}'" in told for kind in (*KINDS, *KINDS_WITHIN))


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_fault_is_survived(kind: str) -> None:
    """On a real server, one kind at a time."""
    try:
        server = shared_server("redis")
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")
    options: dict[str, Any] = dict(server.options)
    harness = harness_for(server.url, **options)()
    one = Round(11, owners=4, calls=30, kinds=(kind,))
    _, injected, broken = await run_round(harness, one)
    assert broken is None
    assert injected
    assert all(line.endswith(kind) for line in injected)
