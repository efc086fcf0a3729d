"""Stores that do not answer, or are not there, and come back (E1, E2, E6, C8)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import outlast
from outlast.driver import Scope
from outlast.errors import OutcomeUnknownError, OutlastError, UnavailableError
from outlast_contract.checks.lost_messages import judge
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, eventually, expect
from outlast_contract.faults import BlackHole
from outlast_contract.faults.network import Network
from outlast_contract.faults.strikes import breaking, places
from outlast_contract.mutations import MUTATIONS, Image, Mutation, claim, fill, image

PATIENCE: Final = 1.0
"""Seconds that a call may take here."""
_SLACK: Final = 5.0
"""Seconds that a busy machine may add."""


@dataclass(frozen=True)
class _Prepared:
    """A mutation, and the scope that is ready for it."""

    mutation: Mutation
    scope: Scope
    owner: outlast.Claim | None
    before: Image

    @property
    def name(self) -> str:
        return f"{'claimed' if self.owner else 'unclaimed'} {self.mutation.name}"


async def _prepare(context: Context, plain: outlast.Backend) -> list[_Prepared]:
    found: list[_Prepared] = []
    for mutation in MUTATIONS.values():
        for owned in (True, False):
            scope = mutation.scope(context.new_id(mutation.kind))
            owner = await claim(plain, scope) if owned else None
            before = await fill(plain, scope, "base", owner)
            found.append(_Prepared(mutation, scope, owner, before))
    return found


async def _ends(what: str, call: Awaitable[object]) -> OutlastError | None:
    """The error that a call ends with, which it must do in time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    task = asyncio.ensure_future(error_of(call))
    await asyncio.wait([task], timeout=PATIENCE + 4 * _SLACK)
    seconds = loop.time() - began
    text = f"{what} took {seconds:.1f} s, with a timeout of {PATIENCE:g} s"
    expect(task.done() and seconds < 2 * PATIENCE + _SLACK, text, clause="E6")
    return task.result()


async def _all_fail(
    client: outlast.Backend, prepared: Sequence[_Prepared], what: str
) -> list[OutlastError]:
    """Call every mutation at once; each must end in time, with one of the two errors."""
    errors = await asyncio.gather(
        *(
            _ends(f"{one.name} {what}", one.mutation.apply(client, one.scope.id, "new", one.owner))
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


async def _reads_fail(client: outlast.Backend, what: str) -> None:
    reads: dict[str, Callable[[], Awaitable[object]]] = {
        "ping": client.ping,
        "load_task_state": lambda: client.persistence.load_task_state("t"),
        "load_api_messages": lambda: client.persistence.load_api_messages("t"),
        "list_task_states": client.persistence.list_task_states,
        "get": lambda: client.checkpoints.get("r"),
    }
    errors = await asyncio.gather(
        *(_ends(f"{name} {what}", read()) for name, read in reads.items())
    )
    for name, error in zip(reads, errors, strict=True):
        text = f"{name} {what} ended with {error!r}; it must raise UnavailableError"
        expect(isinstance(error, UnavailableError), text, clause="E1")


async def _serves_again(client: outlast.Backend, prepared: Sequence[_Prepared], what: str) -> None:
    async def answers() -> bool:
        return await error_of(client.ping()) is None

    await eventually(answers, f"the client answers again {what}", within=20)
    for one in prepared:
        if one.owner is not None and one.mutation.removes:
            error = await error_of(fill(client, one.scope, "next", one.owner))
            expect(error is None, f"the owner's writes {what} raised {error!r}", clause="C8")


_SILENCES: Final = {"the request is swallowed": False, "the reply is swallowed": True}


@check_each(_SILENCES, "E6", "E1", "E2", "C8", tier="faults", needs=["endpoints"])
async def a_black_hole_ends_in_time(context: Context, delivered: bool) -> None:  # noqa: FBT001
    """If nothing comes back any more, every call ends within the timeout and says whether it may
    have been applied; when the store answers again, so does the client.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_impatient(network, PATIENCE)
    prepared = await _prepare(context, plain)
    network.script.arm(BlackHole(delivered=delivered), times=None)
    what = "into silence"
    errors = await _all_fail(client, prepared, what)
    for one, error in zip(prepared, errors, strict=True):
        found = await image(plain, one.scope)
        after = one.mutation.model(one.before, one.scope.id, "new")
        judge(f"{one.name} {what}", error, found, one.before, after)
    await _reads_fail(client, what)
    network.script.disarm()
    await network.break_all()
    await _serves_again(client, prepared, "after the silence")


@check("E2", "E1", "E6", "C8", tier="faults", needs=["endpoints"])
async def a_store_that_is_away_is_unavailable(context: Context) -> None:
    """If the store refuses connections, every call says within the timeout that nothing was
    applied; when it is back, clients find it again.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_impatient(network, PATIENCE)
    prepared = await _prepare(context, plain)
    await network.go_down()
    what = "of a store that is away"
    await _reads_fail(client, what)  # also tells the client that its connections are broken
    errors = await _all_fail(client, prepared, what)
    for one, error in zip(prepared, errors, strict=True):
        text = f"{one.name} {what} raised {error!r}; nothing was sent, so nothing was applied"
        expect(error.applied is False, text)
        found = await image(plain, one.scope)
        judge(f"{one.name} {what}", error, found, one.before, one.before)
    await _opening_fails(context, network, what)
    await network.come_back()
    await _serves_again(client, prepared, "when the store is back")


async def _opening_fails(context: Context, network: Network, what: str) -> None:
    backend = await network.make(context.namespace, timeout=PATIENCE)
    error = await _ends(f"opening {what}", backend.open())
    text = f"opening {what} ended with {error!r}; it must raise UnavailableError"
    expect(isinstance(error, UnavailableError), text, clause="E1")
    await backend.aclose()


@check("E6", "E1", "C8", tier="faults", needs=["endpoints"])
async def a_deaf_server_ends_opening_and_calls_in_time(context: Context) -> None:
    """If connections are accepted and nothing is ever said on them, opening and every call end
    within the timeout; later they work.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_impatient(network, PATIENCE)
    prepared = await _prepare(context, plain)
    network.go_deaf()
    await network.break_all()
    what = "of a server that says nothing"
    await _opening_fails(context, network, what)
    await _reads_fail(client, what)
    errors = await _all_fail(client, prepared, what)
    for one, error in zip(prepared, errors, strict=True):
        found = await image(plain, one.scope)
        judge(f"{one.name} {what}", error, found, one.before, one.before)
    network.go_deaf(deaf=False)
    await network.break_all()
    await _serves_again(client, prepared, "when the server speaks again")


@check("X4", "E3", "E1", "C8", tier="faults", needs=["endpoints"])
async def a_broken_opening_can_be_repeated(context: Context) -> None:
    """Whichever message of opening the network loses, the backend opens, or says that the store is
    unavailable, keeps no connection, and the next one opens.
    """
    network = await context.network()
    for name, fault in breaking(context).items():
        for at in places(4):
            what = f"opening, exchange {at} struck ({name})"
            backend = await network.make(context.namespace)
            shot = network.script.arm(fault, at=at)
            error = await error_of(backend.open())
            network.script.disarm()
            text = f"{what}, raised {error!r}"
            expect(error is None or isinstance(error, UnavailableError), text, clause="E3")
            if error is None:
                error = await error_of(backend.ping())
                expect(error is None, f"the call after {what}, raised {error!r}", clause="C8")
            await backend.aclose()

            async def nothing_left() -> bool:
                return not network.connections

            await eventually(nothing_left, f"connections are closed after {what}", within=10)
            if not shot.hits:
                break
    async with await network.make(context.namespace) as backend:
        await backend.ping()
