"""Many scopes written at once through one client, which may send together what is called together:
each call has an outcome of its own, and tells it (E2, X1, X2).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import outlast
from outlast.driver import Scope
from outlast.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    OutlastError,
    UnavailableError,
)
from outlast_contract.engine import Context, check_each
from outlast_contract.expect import error_of, expect, expect_equal
from outlast_contract.faults.endings import judge
from outlast_contract.faults.strikes import Strike, under_faults
from outlast_contract.mutations import (
    MUTATIONS,
    Image,
    Mutation,
    claim,
    fill,
    image,
)

_MANY: Final = 24
_WRITES: Final = {
    name: MUTATIONS[name]
    for name in ("append_api_message", "save_task_state", "save_task_input", "put")
}
"""What tasks and runs do again and again."""
_MAY_BE: Final = (OutcomeUnknownError, UnavailableError)


@dataclass
class _Member:
    """One scope of many, and what it holds."""

    scope: Scope
    owner: outlast.Claim | None
    holds: Image


class _Crowd:
    """Many scopes that are written in the same way."""

    def __init__(self, client: outlast.Backend, mutation: Mutation) -> None:
        self.client = client
        self.mutation = mutation
        self.clause = "A1" if mutation.name.startswith("append") else "S3"
        self.members: list[_Member] = []

    async def gather(self, context: Context, count: int, *, owned: bool = True) -> None:
        """Let so many more come."""
        scopes = [self.mutation.scope(context.new_id(self.mutation.kind)) for _ in range(count)]
        self.members += await asyncio.gather(
            *(self._member(scope, owned=owned) for scope in scopes)
        )

    async def _member(self, scope: Scope, *, owned: bool) -> _Member:
        owner = await claim(self.client, scope) if owned else None
        return _Member(scope, owner, await fill(self.client, scope, "base", owner))

    async def write(
        self, one: _Member, mark: str, owner: outlast.Claim | None
    ) -> OutlastError | None:
        return await error_of(self.mutation.apply(self.client, one.scope.id, mark, owner))

    def after(self, one: _Member, mark: str) -> Image:
        return self.mutation.model(one.holds, one.scope.id, mark)

    async def expect(self, reader: outlast.Backend, what: str) -> None:
        """Expect all to hold what they should."""
        for one, found in zip(self.members, await self.images(reader), strict=True):
            expect_equal(found, one.holds, f"{one.scope.id} after {what}", clause=self.clause)

    async def images(self, reader: outlast.Backend) -> list[Image]:
        """What all hold."""
        return list(await asyncio.gather(*(image(reader, one.scope) for one in self.members)))


_Act = Callable[[_Crowd, _Member, str], Awaitable[OutlastError | None]]


async def _own(crowd: _Crowd, one: _Member, mark: str) -> OutlastError | None:
    return await crowd.write(one, mark, one.owner)


async def _conflict(crowd: _Crowd, one: _Member, mark: str) -> OutlastError | None:
    message = outlast.ApiMessage(id=one.holds.api[-1].id, role="user", content="another")
    tasks = crowd.client.persistence
    return await error_of(tasks.append_api_message(one.scope.id, message, claim=one.owner))


@dataclass(frozen=True)
class _Refusal:
    """A call that changes nothing.

    Attributes:
        act: Makes it.
        error: What it must end with.
        clause: What is broken otherwise.
    """

    act: _Act
    error: type[OutlastError | None]
    clause: str


_REFUSALS: Final[Mapping[str, _Refusal]] = {
    "of a stale claim": _Refusal(_own, FencedError, "F2"),
    "without a claim": _Refusal(
        lambda crowd, one, mark: crowd.write(one, mark, None), FencedError, "F8"
    ),
    "of a message that is there": _Refusal(
        lambda crowd, one, mark: error_of(
            crowd.client.persistence.append_api_message(
                one.scope.id, one.holds.api[-1], claim=one.owner
            )
        ),
        type(None),
        "A8",
    ),
    "of another message under its id": _Refusal(_conflict, ConflictError, "A8"),
}


def _act_of(name: str | None) -> _Act:
    return _own if name is None else _REFUSALS[name].act


@check_each(_WRITES, "E2", "A1", "A8", "S3", "F2", "F8")
async def a_refusal_among_many_calls_is_nobody_elses(context: Context, mutation: Mutation) -> None:
    """Of many scopes written at once some refuse, each for its own reason; their callers are told
    so, and the other calls are done.
    """
    client, other = await context.open_many(2)
    crowd = _Crowd(client, mutation)
    await crowd.gather(context, _MANY)
    names = list(_REFUSALS)[: 4 if mutation.name.startswith("append") else 2]
    for number in range(4):
        mark = f"round {number}"
        chosen = context.rng.sample(crowd.members, len(names) if number else 0)
        refused = {one.scope: name for one, name in zip(chosen, names, strict=False)}
        newer = {
            scope: await claim(other, scope)
            for scope, name in refused.items()
            if name == "of a stale claim"
        }

        acts = [_act_of(refused.get(one.scope)) for one in crowd.members]
        errors = await asyncio.gather(
            *(act(crowd, one, mark) for act, one in zip(acts, crowd.members, strict=True))
        )
        outcomes = list(zip(crowd.members, errors, strict=True))
        for one, error in outcomes:
            if one.scope not in refused:
                what = f"{mutation.name} among {_MANY} at once raised {error!r}"
                expect(error is None, what, clause="E2")
                one.holds = crowd.after(one, mark)
        for one, error in outcomes:
            name = refused.get(one.scope)
            if name is not None:
                wanted = _REFUSALS[name]
                what = f"{mutation.name} {name}, among {_MANY} at once, ended with {error!r}"
                expect(isinstance(error, wanted.error), what, clause=wanted.clause)
            one.owner = newer.get(one.scope, one.owner)
        await crowd.expect(other, f"{_MANY} times {mutation.name} at once, {mark}")


@check_each(_WRITES, "X1", "X2", "E2", "A1", "S3", "F6")
async def who_leaves_many_calls_takes_nobody_along(context: Context, mutation: Mutation) -> None:
    """Of many scopes written at once some calls are cancelled: the others are done, and what was
    cancelled is in or not, and never comes later.
    """
    client, other = await context.open_many(2)
    crowd = _Crowd(client, mutation)
    await crowd.gather(context, _MANY)
    turns_of_all = (0, 1, 2, 3, 4, 6, 8, 12, 30)
    for number, turns in enumerate(turns_of_all[:: 1 if context.settings.thorough else 2]):
        # One alone, then some, then all but one.
        count = (1, _MANY // 3, _MANY - 1)[number % 3]
        leaving = {one.scope for one in context.rng.sample(crowd.members, count)}
        mark = f"round {number}"
        calls = {
            one.scope: asyncio.ensure_future(crowd.write(one, mark, one.owner))
            for one in crowd.members
        }
        for _ in range(turns):
            await asyncio.sleep(0)
        for scope in leaving:
            calls[scope].cancel()
        await asyncio.wait(calls.values(), timeout=20)
        for one in crowd.members:
            call = calls[one.scope]
            what = f"{mutation.name}, with {count} of {_MANY} cancelled after {turns} turns,"
            expect(call.done(), f"{what} still runs", clause="X1")
            if call.cancelled():
                expect(one.scope in leaving, f"{what} is cancelled, and was not", clause="X1")
            else:
                error = call.result()
                expect(error is None, f"{what} raised {error!r}", clause="X2")
        last = f"after {number}"
        errors = await asyncio.gather(*(crowd.write(one, last, one.owner) for one in crowd.members))
        expect(not any(errors), f"the calls after cancelled ones raised {errors}", clause="X2")
        for one, found in zip(crowd.members, await crowd.images(other), strict=True):
            outcomes = [crowd.after(_Member(one.scope, None, crowd.after(one, mark)), last)]
            if calls[one.scope].cancelled():
                outcomes.append(crowd.after(one, last))
            text = f"{one.scope.id}, {count} of {_MANY} being cancelled, holds {found}"
            expect(found in outcomes, text, clause=crowd.clause)
            one.holds = found
        await crowd.expect(other, "cancelled calls, a moment later")


@check_each(_WRITES, "E2", "A2", "S3", "X2", "C8", tier="faults", needs=["endpoints"])
async def many_calls_on_a_broken_connection_are_told_truly(
    context: Context, mutation: Mutation
) -> None:
    """Whichever message the network loses while many scopes are written at once, what has an owner,
    or is an append, is done for each; of the rest each hears what became of its own.
    """
    plain = await context.open()

    async def try_out(shaken: outlast.Backend, strikes: Iterator[Strike]) -> None:
        for strike in strikes:
            crowd = _Crowd(shaken, mutation)
            crowd.members = await _both(context, plain, mutation)
            what = f"{mutation.name} of {len(crowd.members)} scopes at once, {strike.what}"
            with strike:
                errors = await asyncio.gather(
                    *(crowd.write(one, "new", one.owner) for one in crowd.members)
                )
            images = await crowd.images(plain)
            for one, error, found in zip(crowd.members, errors, images, strict=True):
                if one.owner is not None or mutation.name.startswith("append"):
                    expect(error is None, f"{what}, raised {error!r}")
                expect(error is None or isinstance(error, _MAY_BE), f"{what}, raised {error!r}")
                judge(what, error, found, one.holds, crowd.after(one, "new"))
                one.holds = found
            expect(
                len({id(error) for error in errors if error}) == sum(map(bool, errors)),
                f"{what}: two callers were given one error object",
                clause="X2",
            )
            errors = await asyncio.gather(
                *(crowd.write(one, "next", one.owner) for one in crowd.members)
            )
            expect(not any(errors), f"the calls after {what}, raised {errors}", clause="C8")
            for one in crowd.members:
                one.holds = crowd.after(one, "next")
            await crowd.expect(plain, f"the calls after {what}")

    await under_faults(context, try_out)


async def _both(context: Context, plain: outlast.Backend, mutation: Mutation) -> list[_Member]:
    """Owned scopes, and others, mixed."""
    crowd = _Crowd(plain, mutation)
    for owned in (True, False):
        await crowd.gather(context, 4, owned=owned)
    context.rng.shuffle(crowd.members)
    return crowd.members
