"""Random rounds: what is right passes, what is wrong is found, made short, and can be repeated."""

import shlex
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from broken_backends import MUTANTS
from broken_backends.kit import BrokenHarness

from outlast.backends.memory import MemoryDriver
from outlast.driver import Entry, Fence, Scope, StoredFence, Value
from outlast_contract.cli import main
from outlast_contract.expect import Violation
from outlast_contract.mutations import input_of, user_of
from outlast_contract.outages import History
from outlast_contract.owners import Event
from outlast_contract.readout import read_out
from outlast_contract.servers import ServerUnavailable, shared_server
from outlast_contract.soak import KINDS, KINDS_WITHIN, Round, run_round, soak
from outlast_contract.stores import MemoryHarness, harness_for


@pytest.mark.parametrize("cancels", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(3))
async def test_a_correct_backend_passes_and_much_happened(seed: int, cancels: float) -> None:
    """Faults are addressed by the count of calls, so that they meet some in every round."""
    history, injected, broken = await run_round(MemoryHarness(), Round(seed, cancels=cancels))
    assert broken is None
    assert history.count() >= 6 * 80
    assert history.count(outcome="refused") > 20
    assert len(injected) > 20
    assert history.count(outcome="unknown") > 0
    told = sum(history.count(fate=fate) for fate in ("applied", "not applied", "cannot be told"))
    writes = history.count(outcome="unknown") - sum(
        event.outcome == "unknown" and (event.name in ("claim", "read") or event.is_stale)
        for events in history.events.values()
        for event in events
    )
    assert told == writes


async def test_the_same_seed_makes_the_same_history() -> None:
    """Where nothing is cancelled; and an owner does the same without the others."""

    async def played(**changes: int) -> dict[Scope, list[tuple[object, ...]]]:
        history, _, broken = await run_round(MemoryHarness(), Round(7, cancels=0.0, **changes))
        assert broken is None
        return {
            scope: [(one.name, one.mark, one.epoch, one.outcome, one.reason) for one in events]
            for scope, events in history.events.items()
        }

    whole = await played()
    assert await played() == whole
    alone = Scope("run", "owner 3")
    assert await played(owners=1, first=3) == {alone: whole[alone]}


class LosesAppends(MemoryDriver):
    """An append now and then is acknowledged and forgotten."""

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        kept = [entry for entry in entries if not entry.id.partition("#")[0].endswith("7")]
        return await super().append(scope, log, kept, fence=fence, present=present)


class LosesAppendsHarness(BrokenHarness):
    driver_class = LosesAppends


async def test_what_is_wrong_is_found_and_made_short() -> None:
    """Fewer owners and calls than in the round that found it, and the same kind of defect."""
    found = await soak(LosesAppendsHarness(), Round(1), seconds=20)
    assert found is not None
    assert found.broken.clause == "D1"
    assert (found.round.owners, found.round.cancels) == (1, 0.0)
    assert found.round.calls < Round(1).calls / 2
    assert "append" in found.broken.message


class AnswersFromACache(MemoryDriver):
    """Messages stay in the program, and never reach the store."""

    cache: ClassVar[dict[Scope, dict[str, Entry]]] = {}

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        known = self.cache.setdefault(scope, {})
        known.update((entry.id, entry) for entry in entries)
        return await super().append(scope, log, (), fence=fence)

    async def load(self, scope: Scope, log: str, *, last: int | None = None) -> list[Entry]:
        return list(self.cache[scope].values()) if log == "user" else []


class HidesItsClaims(MemoryDriver):
    """What the store says of a scope's fence is not what claims are told."""

    async def read(self, scope: Scope, register: str) -> Value:
        found = await super().read(scope, register)
        return found._replace(fence=StoredFence(99, "ab" * 16))


@pytest.mark.parametrize(
    ("driver", "clause", "says"),
    [
        (AnswersFromACache, "D1", "of which the store holds nothing"),
        (HidesItsClaims, "F5", "the store holds ababab of epoch 99"),
    ],
)
async def test_what_the_store_holds_in_the_end_is_looked_at(
    driver: type[MemoryDriver], clause: str, says: str
) -> None:
    """Past the contracts: the fence, and the bytes of what was read last."""
    harness = type("ItsHarness", (BrokenHarness,), {"driver_class": driver})()
    scope = Scope("task", "t")
    history = History(3.0, keeps_data=True, keeps_fences=True)
    async with await harness.open("n") as client:
        began = time.monotonic()
        owner = await client.persistence.claim_task("t", claim_id="cd" * 16)
        await client.persistence.append_user_message("t", user_of("w.1"), claim=owner)
        now = time.monotonic()
        claimed = Event(scope, "claim", began, now, epoch=1, claim_id=owner.claim_id)
        history.add([claimed, Event(scope, "append_user_message", now, now, "w.1", 1)])
        await client.persistence.save_task_input("t", input_of("w.2"), claim=owner)
        history.add([Event(scope, "save_task_input", now, now, "w.2", 1)])
    with pytest.raises(Violation, match=says) as caught:
        await read_out(harness, "n", 0, [scope], history)
    assert caught.value.clause == clause


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
    monkeypatch.setattr("outlast_contract.subject.harness_for", lambda url: LosesAppendsHarness)
    assert main(["memory://", "--minutes", "1"]) == 1
    output = capsys.readouterr().out
    assert "FAILED: D1, in a round of seed " in output
    program, *arguments = shlex.split(output.splitlines()[-1])
    assert program == "outlast-contract"
    assert main(arguments) == 1


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
    assert {what for _, _, what in injected} == {kind}
