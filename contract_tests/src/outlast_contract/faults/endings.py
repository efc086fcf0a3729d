"""How calls end that a fault meets: in time, and saying truly what they did."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import outlast
from outlast.driver import Scope
from outlast.errors import OutcomeUnknownError, OutlastError, UnavailableError
from outlast_contract.engine import Context
from outlast_contract.expect import error_of, eventually, expect, expect_equal
from outlast_contract.mutations import MUTATIONS, Image, Mutation, claim, fill, image

PATIENCE: Final = 1.0
"""Seconds that a call may take here."""
_SLACK: Final = 6.0
"""Seconds that a busy machine may add."""


@dataclass(frozen=True)
class Prepared:
    """A mutation, the scope that is ready for it, and what that holds."""

    mutation: Mutation
    scope: Scope
    owner: outlast.Claim | None
    before: Image

    @property
    def name(self) -> str:
        return f"{'claimed' if self.owner else 'unclaimed'} {self.mutation.name}"


async def prepare(context: Context, plain: outlast.Backend) -> list[Prepared]:
    """Every mutation, claimed and unclaimed."""
    found: list[Prepared] = []
    for mutation in MUTATIONS.values():
        for owned in (True, False):
            scope = mutation.scope(context.new_id(mutation.kind))
            owner = await claim(plain, scope) if owned else None
            before = await fill(plain, scope, "base", owner)
            found.append(Prepared(mutation, scope, owner, before))
    return found


async def ends(what: str, call: Awaitable[object]) -> OutlastError | None:
    """The error that a call ends with, which it must do in time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    task = asyncio.ensure_future(error_of(call))
    await asyncio.wait([task], timeout=PATIENCE + 4 * _SLACK)
    seconds = loop.time() - began
    text = f"{what} took {seconds:.1f} s, with a timeout of {PATIENCE:g} s"
    expect(task.done() and seconds < 2 * PATIENCE + _SLACK, text, clause="E6")
    return task.result()


async def all_fail(
    client: outlast.Backend, prepared: Sequence[Prepared], what: str
) -> list[OutlastError]:
    """Call every mutation at once; each must end in time, with one of the two errors."""
    errors = await asyncio.gather(
        *(
            ends(f"{one.name} {what}", one.mutation.apply(client, one.scope.id, "new", one.owner))
            for one in prepared
        )
    )
    found: list[OutlastError] = []
    for one, error in zip(prepared, errors, strict=True):
        expect(error is not None, f"{one.name} {what} returned normally", clause="E1")
        assert error is not None
        kinds = (OutcomeUnknownError, UnavailableError)
        expect(isinstance(error, kinds), f"{one.name} {what} raised {error!r}", clause="E2")
        found.append(error)
    return found


async def reads_fail(client: outlast.Backend, what: str) -> None:
    """Read at once; each must end in time, with `UnavailableError`."""
    reads: dict[str, Callable[[], Awaitable[object]]] = {
        "ping": client.ping,
        "load_task_state": lambda: client.persistence.load_task_state("t"),
        "load_api_messages": lambda: client.persistence.load_api_messages("t"),
        "list_task_states": client.persistence.list_task_states,
        "get": lambda: client.checkpoints.get("r"),
    }
    errors = await asyncio.gather(*(ends(f"{name} {what}", read()) for name, read in reads.items()))
    for name, error in zip(reads, errors, strict=True):
        text = f"{name} {what} ended with {error!r}; it must raise UnavailableError"
        expect(isinstance(error, UnavailableError), text, clause="E1")


async def serves_again(
    client: outlast.Backend, plain: outlast.Backend, prepared: Sequence[Prepared], what: str
) -> None:
    """Wait until the client is served; from then on no owner's call may fail."""

    async def answers() -> bool:
        return await error_of(client.ping()) is None

    await eventually(answers, f"the client answers again {what}", within=20)
    for one in prepared:
        if one.owner is not None and one.mutation.removes:
            error = await _error_of_its_own(client, plain, one)
            expect(error is None, f"the owner's writes {what} raised {error!r}", clause="C8")


async def _error_of_its_own(
    client: outlast.Backend, plain: outlast.Backend, one: Prepared
) -> OutlastError | None:
    """What an owner's writes end with. If those of a client with time to spare, at the same moment,
    take long as well, the machine or the server is busy, and they are made again.
    """
    loop = asyncio.get_running_loop()
    witness = Scope(one.scope.kind, f"witness of {one.scope.id}")

    async def seconds() -> float:
        began = loop.time()
        await fill(plain, witness, "witness")
        return loop.time() - began

    error: OutlastError | None = None
    for _ in range(10):
        writes = error_of(fill(client, one.scope, "next", one.owner))
        error, taken = await asyncio.gather(writes, seconds())
        if error is None or taken < PATIENCE / 2:
            break
    return error


async def expect_truth(
    plain: outlast.Backend,
    prepared: Sequence[Prepared],
    errors: Sequence[OutlastError],
    what: str,
) -> None:
    """What was done must be what was said."""
    for one, error in zip(prepared, errors, strict=True):
        after = one.mutation.model(one.before, one.scope.id, "new")
        judge(f"{one.name} {what}", error, await image(plain, one.scope), one.before, after)


def judge(what: str, error: OutlastError | None, found: Any, before: Any, after: Any) -> None:
    """Hold what a call said of itself to what it did."""
    if error is None:
        expect_equal(found, after, f"data after {what}, which was done", clause="E2")
    elif error.applied is False:
        text = f"data after {what}, which was not applied by its own account ({error!r})"
        expect_equal(found, before, text, clause="E2")
    else:
        text = f"{what} left a mixture or invented something: {found}"
        expect(found in (before, after), text, clause="A3")


__all__ = [
    "PATIENCE",
    "Prepared",
    "all_fail",
    "ends",
    "expect_truth",
    "judge",
    "prepare",
    "reads_fail",
    "serves_again",
]
