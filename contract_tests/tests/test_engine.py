"""How a check is run: outcomes, attribution, time, randomness, tidying up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import outlast
from outlast_contract.engine import Check, Context, Settings, check, run_check, select_checks
from outlast_contract.expect import (
    NotRun,
    Violation,
    expect_equal,
    fenced,
    first_difference,
    refused,
)
from outlast_contract.harness import Harness
from outlast_contract.stores import MemoryHarness

Body = Callable[[Context], Awaitable[None]]


def a_check(body: Body, *clauses: str, needs: frozenset[Any] = frozenset()) -> Check:
    return Check("name", clauses or ("F2", "F13"), "contract", "title", body, needs)


async def test_a_check_that_returns_has_passed() -> None:
    """What was not run in part is kept beside the pass."""

    async def body(context: Context) -> None:
        context.note("too large")
        context.note("no proxy", clause="F13")

    result = await run_check(a_check(body), MemoryHarness())
    assert (result.status, result.clause, result.detail) == ("passed", None, "")
    assert result.notes == (("", "too large"), ("F13", "no proxy"))


async def test_a_violation_counts_against_its_clause() -> None:
    """Against the one that it names, or else the first of the check."""

    async def named(context: Context) -> None:
        raise Violation("wrong reason", "F13")

    async def unnamed(context: Context) -> None:
        raise Violation("accepted")

    result = await run_check(a_check(named), MemoryHarness())
    assert (result.status, result.clause, result.detail) == ("failed", "F13", "wrong reason")
    assert (await run_check(a_check(unnamed), MemoryHarness())).clause == "F2"


async def test_a_violation_among_other_errors_is_found() -> None:
    """Of several tasks that failed the broken clause is what matters."""

    async def fail(error: Exception) -> None:
        raise error

    async def body(context: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(KeyError("a consequence")))
            group.create_task(fail(Violation("the cause", "F13")))

    result = await run_check(a_check(body), MemoryHarness())
    assert (result.clause, result.detail) == ("F13", "the cause")


async def test_what_cannot_be_run_is_no_pass() -> None:
    """NotRun is an outcome of its own, with its reason."""

    async def body(context: Context) -> None:
        raise NotRun("needs a proxy")

    result = await run_check(a_check(body), MemoryHarness())
    assert (result.status, result.detail) == ("not run", "needs a proxy")


async def test_an_unexpected_error_is_a_failure() -> None:
    """With its type, and where it came from."""

    async def body(context: Context) -> None:
        raise KeyError("k")

    result = await run_check(a_check(body), MemoryHarness())
    assert (result.status, result.clause) == ("failed", "F2")
    assert "KeyError" in result.detail
    assert "test_engine" in result.trace


async def test_a_check_that_hangs_is_ended() -> None:
    """A call that never ends breaks E6."""

    async def body(context: Context) -> None:
        await asyncio.Event().wait()

    result = await run_check(a_check(body), MemoryHarness(), Settings(time_limit=0.05))
    assert (result.status, result.clause) == ("failed", "E6")


async def test_a_timeout_of_the_backend_is_not_the_suites() -> None:
    """A TimeoutError from inside counts like any other error."""

    async def body(context: Context) -> None:
        raise TimeoutError("from the driver")

    assert (await run_check(a_check(body), MemoryHarness())).clause == "F2"


async def test_clients_are_closed_and_namespaces_wiped() -> None:
    """Whatever the outcome, nothing stays open or stored."""
    harness = MemoryHarness()
    seen: list[outlast.Backend] = []

    async def body(context: Context) -> None:
        seen.append(await context.open())
        for namespace in (context.namespace, context.new_namespace("x")):
            client = await context.open(namespace)
            await client.persistence.claim_task("t")
            await client.checkpoints.put(
                outlast.StreamCheckpoint(run_id="r", thread_id="t", message_id="m", model="m")
            )
            assert len(list(await harness.raw(namespace))) >= 2
        context.harness.used = context.namespaces  # type: ignore[attr-defined]
        raise Violation("and then it fails")

    result = await run_check(a_check(body), harness)
    assert result.status == "failed"
    with pytest.raises(outlast.ClosedError):
        await seen[0].ping()
    for namespace in harness.used:  # type: ignore[attr-defined]
        assert list(await harness.raw(namespace)) == []


async def test_a_store_that_goes_with_the_run_is_not_wiped() -> None:
    """What a check left goes with the store."""
    harness = MemoryHarness()
    harness.is_temporary = True

    async def body(context: Context) -> None:
        await (await context.open()).persistence.claim_task("t")
        context.harness.used = context.namespaces  # type: ignore[attr-defined]

    assert (await run_check(a_check(body), harness)).status == "passed"
    assert list(await harness.raw(harness.used[0]))  # type: ignore[attr-defined]


async def test_randomness_follows_from_seed_and_name() -> None:
    """The same seed gives the same numbers, another one others; namespaces are never the same."""
    drawn: list[tuple[float, str]] = []

    async def body(context: Context) -> None:
        drawn.append((context.rng.random(), context.namespace))

    for seed in (1, 1, 2):
        await run_check(a_check(body), MemoryHarness(), Settings(seed=seed))
    assert drawn[0][0] == drawn[1][0] != drawn[2][0]
    assert len({namespace for _, namespace in drawn}) == 3


class OnlyOpens(Harness):
    """The least that a harness can be."""

    async def open(self, namespace: str) -> outlast.Backend:
        return outlast.open_backend("memory://only-opens", namespace=namespace)


@pytest.mark.parametrize(
    ("need", "reason"),
    [
        ("options", "Harness.open_with"),
        ("raw", "Harness.raw"),
        ("processes", "Harness.url"),
        ("same store in processes", "Harness.url"),
    ],
)
async def test_a_need_that_is_not_met_is_named(need: str, reason: str) -> None:
    """A harness with open() alone gets the rest reported as not run."""

    async def body(context: Context) -> None:
        raise AssertionError("it must not be run")

    result = await run_check(a_check(body, needs=frozenset({need})), OnlyOpens())
    assert result.status == "not run"
    assert reason in result.detail


def test_the_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given goes before the environment, and that before the defaults."""
    monkeypatch.delenv("OUTLAST_CONTRACT_ROUNDS", raising=False)
    monkeypatch.setenv("OUTLAST_CONTRACT_KILLS", "50")
    monkeypatch.setenv("OUTLAST_CONTRACT_SEED", "9")
    settings = Settings.from_environment(seed=4, rounds=None, kills=None)
    assert (settings.seed, settings.rounds, settings.kills) == (4, Settings().rounds, 50)


@pytest.mark.parametrize("text", ["many", "1.5", "0", "-3"])
def test_what_is_no_count_in_the_environment_is_said(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variable's name: without a round, races would pass."""
    monkeypatch.setenv("OUTLAST_CONTRACT_KILLS", text)
    with pytest.raises(ValueError, match=f"OUTLAST_CONTRACT_KILLS .* not '{text}'"):
        Settings.from_environment()


async def test_heavy_checks_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not run then, with the reason, and all others are."""

    async def body(context: Context) -> None:
        pass

    light = a_check(body)
    heavy = replace(light, heavy=True)
    monkeypatch.setenv("OUTLAST_CONTRACT_HEAVY", "0")
    settings = Settings.from_environment()
    result = await run_check(heavy, MemoryHarness(), settings)
    assert (result.status, "much data" in result.detail) == ("not run", True)
    assert (await run_check(light, MemoryHarness(), settings)).status == "passed"
    assert (await run_check(heavy, MemoryHarness())).status == "passed"


def test_checks_are_chosen_by_clause_and_tier() -> None:
    """A clause gives every check that verifies it."""
    chosen = select_checks(clauses=["A9"])
    assert chosen
    assert all("A9" in one.clauses for one in chosen)
    assert {one.tier for one in select_checks(tiers=["race"])} == {"race"}
    assert select_checks(clauses=["C9"]) == ()


def test_a_check_needs_a_title_and_known_clauses() -> None:
    """Mistakes of whoever writes checks are seen when they are registered."""

    async def undocumented(context: Context) -> None:
        pass

    async def documented(context: Context) -> None:
        """It claims something."""

    with pytest.raises(ValueError, match="without docstring"):
        check("F2")(undocumented)
    with pytest.raises(ValueError, match="F99"):
        check("F99")(documented)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}),
        ([], {}),
        ("a", "a "),
        (None, ""),
        (outlast.TaskState(id="t", config={"k": 1}), outlast.TaskState(id="t", config={"k": 2})),
    ],
    ids=repr,
)
def test_unequal_values_are_told_apart(found: object, wanted: object) -> None:
    """Types of numbers and containers, signs of zero and the order of keys count."""
    assert first_difference(found, wanted) is not None
    with pytest.raises(Violation, match="what it was"):
        expect_equal(found, wanted, "what it was")
    assert first_difference(found, found) is None


def test_a_difference_names_its_place() -> None:
    """The place is written as one would write it in Python."""
    state = outlast.TaskState(id="t", config={"a": [1, {"b": 2}]})
    other = outlast.TaskState(id="t", config={"a": [1, {"b": 3}]})
    assert first_difference(state, other) == "at config['a'][1]['b']: found 2, expected 3"


async def raising(error: Exception | None) -> None:
    if error is not None:
        raise error


@pytest.mark.parametrize(
    ("error", "clause"),
    [
        (None, "F2"),
        (outlast.ConflictError("another kind"), "F2"),
        (KeyError("foreign"), "E3"),
        (outlast.FencedError("superseded", applied=None), "E2"),
        (outlast.FencedError("lost"), "F13"),
    ],
    ids=["none", "another kind", "foreign", "applied unknown", "another reason"],
)
async def test_a_refusal_is_judged(error: Exception | None, clause: str) -> None:
    """What is wrong with a refusal decides which clause is broken."""
    with pytest.raises(Violation) as raised:
        await fenced(raising(error), "superseded", "the call")
    assert raised.value.clause == clause


async def test_a_right_refusal_is_returned() -> None:
    """So that the check can look at it further."""
    error = outlast.FencedError("claimed")
    assert await refused(raising(error), outlast.FencedError, "the call") is error
