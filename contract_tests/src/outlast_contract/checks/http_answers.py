"""Answers of S3 stores that are rare: lost races, overload, success that is not told (E2, F2)."""

from dataclasses import dataclass
from typing import Final

import outlast
from outlast.driver import Scope
from outlast.errors import ConfigurationError, OutcomeUnknownError, UnavailableError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, expect, expect_equal
from outlast_contract.faults.answers import (
    FAILURES,
    GONE,
    LOST_RACES,
    Answer,
    ignore_conditions,
    is_put,
)
from outlast_contract.faults.endings import judge
from outlast_contract.faults.proxy import Fault
from outlast_contract.faults.strikes import strikes
from outlast_contract.mutations import KINDS, MUTATIONS, claim, expect_image, fill, image


@dataclass(frozen=True)
class _Case:
    """One answer, and to which requests it is given."""

    status: int
    code: str
    delivered: bool

    @property
    def fault(self) -> Fault:
        return Answer(self.status, self.code, delivered=self.delivered)


_CASES: Final = {
    f"{status} {code} {'after it was done' if delivered else 'instead of doing it'}": _Case(
        status, code, delivered
    )
    for status, code in (*LOST_RACES, GONE, *FAILURES)
    for delivered in (False, True)
}
_FEW: Final = (
    "save_task_state",
    "update_task_state",
    "append_api_messages",
    "save_user_messages",
    "delete_task",
    "put",
    "delete",
)


@check_each(_CASES, "E2", "A2", "F6", "E5", tier="faults", needs=["endpoints", "http"])
async def an_odd_answer_of_the_store_is_understood(context: Context, case: _Case) -> None:
    """A store that answers a write with a lost race, not found, overload or failure, though it did
    the write or could have done it, costs an owner nothing, and others are told truly.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_through(network)
    names = list(MUTATIONS if context.settings.thorough else _FEW)
    for mutation in map(MUTATIONS.__getitem__, names):
        for owned in (True, False):
            for strike in strikes(network.script, context.check.name, case.fault, 2, is_put):
                scope = mutation.scope(context.new_id(mutation.kind))
                owner = await claim(plain, scope) if owned else None
                before = await fill(plain, scope, "base", owner)
                whose = "claimed" if owned else "unclaimed"
                what = f"{whose} {mutation.name}, {strike.what}"
                with strike:
                    error = await error_of(mutation.apply(client, scope.id, "new", owner))
                if owned or mutation.name.startswith("append"):
                    expect(error is None, f"{what}, raised {error!r}")
                told = error is None or isinstance(error, OutcomeUnknownError | UnavailableError)
                expect(told, f"{what}, raised {error!r}")
                after = mutation.model(before, scope.id, "new")
                found = await image(plain, scope)
                judge(what, error, found, before, after)
                error = await error_of(fill(client, scope, "next", owner))
                expect(error is None, f"the calls after {what}, raised {error!r}", clause="C8")


@check_each(KINDS, "F1", "E2", "F10", tier="faults", needs=["endpoints", "http"])
async def an_odd_answer_to_a_claim_is_understood(context: Context, kind: str) -> None:
    """Whatever a store answers to a write of a claim once, the claim is taken, and its epoch is
    new.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_through(network)
    for name, case in _CASES.items():
        for strike in strikes(network.script, name, case.fault, 2, is_put):
            scope = Scope("task" if kind == "task" else "run", context.new_id(kind))
            old = await claim(plain, scope)
            before = await fill(plain, scope, "base", old)
            owners: list[outlast.Claim] = []
            with strike:
                error = await error_of(_take(client, scope, owners))
            what = f"a claim, {strike.what}"
            expect(error is None, f"{what}, raised {error!r}", clause="E2")
            expect(owners[0].epoch > old.epoch, f"{what}, got epoch {owners[0].epoch}")
            await expect_image(plain, scope, before, f"data after {what}", clause="F3")
            written = await fill(client, scope, "next", owners[0])
            await expect_image(plain, scope, written, f"data written through {what}")


async def _take(client: outlast.Backend, scope: Scope, owners: list[outlast.Claim]) -> None:
    owners.append(await claim(client, scope))


@check("E1", "C8", "E5", tier="faults", needs=["endpoints", "http"])
async def an_overloaded_store_is_asked_again(context: Context) -> None:
    """A read that a store answers with overload or failure is repeated, and its answer is true."""
    plain = await context.open()
    network = await context.network()
    client = await context.open_through(network)
    scope = Scope("task", context.new_id("task"))
    wanted = await fill(plain, scope, "base")
    for status, code in FAILURES:
        fault = Answer(status, code, delivered=False)
        for strike in strikes(network.script, f"{status} {code}", fault, 4):
            found: list[object] = []
            with strike:
                error = await error_of(_look(client, scope, found))
            expect(error is None, f"reads, {strike.what}, raised {error!r}")
            expect_equal(found[0], wanted, f"what reads, {strike.what}, returned")


async def _look(client: outlast.Backend, scope: Scope, found: list[object]) -> None:
    found.append(await image(client, scope))


@check("F2", "E1", tier="faults", needs=["endpoints", "http"])
async def a_store_that_ignores_conditions_is_refused(context: Context) -> None:
    """A store that says that it wrote whatever the conditions were cannot fence; opening it is
    refused.
    """
    network = await context.network()
    backend = await network.make(context.namespace)
    network.script.arm(ignore_conditions, times=None)
    error = await error_of(backend.open())
    network.script.disarm()
    await backend.aclose()
    text = f"opening a store that ignores conditions ended with {error!r}"
    expect(isinstance(error, ConfigurationError), text)
