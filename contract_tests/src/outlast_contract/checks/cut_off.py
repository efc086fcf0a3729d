"""Calls that are cancelled, are slow, or find their connections closed (X1, X2, C8)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import outlast
from outlast.driver import Scope
from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import begin, error_of, eventually, expect
from outlast_contract.faults import Delay, Fault, Hold, Slow
from outlast_contract.faults.endings import judge
from outlast_contract.faults.strikes import places
from outlast_contract.mutations import (
    KINDS,
    MUTATIONS,
    Image,
    Mutation,
    claim,
    expect_image,
    fill,
    image,
)

_NEXT: Final = {"task": "save_task_input", "run": "put"}


@check_each(MUTATIONS, "X1", "X2", "F6", "C8", tier="faults", needs=["endpoints"])
async def a_call_cancelled_at_an_exchange_disturbs_no_other(
    context: Context, mutation: Mutation
) -> None:
    """Cancelled while one of its requests, or a reply, is under way, a mutation reaches its caller
    as cancelled; the next calls get their own answers; it is in or not, and never comes later.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_through(network)
    witness = Scope("task", context.new_id("witness"))
    known = await fill(plain, witness, "witness")
    follower = MUTATIONS[_NEXT[mutation.kind]]
    for delivered in (False, True):
        for at in places(3):
            if at > 9 and not context.settings.thorough:
                break
            scope = mutation.scope(context.new_id(mutation.kind))
            owner = await claim(plain, scope)
            before = await fill(plain, scope, "base", owner)
            hold = Hold(delivered=delivered)
            shot = network.script.arm(hold, at=at)
            call = asyncio.ensure_future(error_of(mutation.apply(client, scope.id, "cut", owner)))
            await hold.arrived_or(call)
            network.script.disarm()
            if not shot.hits:
                break
            part = "reply" if delivered else "request"
            what = f"{mutation.name}, cancelled while its {part} {at} was under way"
            if not call.cancel():  # It is done: the backend itself sent what is held.
                await hold.release()
                continue
            await asyncio.wait([call], timeout=20)
            expect(call.cancelled(), f"{what}, was not told that it was: {call}")
            await expect_image(client, witness, known, f"another task after {what}", clause="X2")
            await hold.release()
            await expect_image(client, witness, known, f"another task after {what}", clause="X2")
            error = await error_of(follower.apply(client, scope.id, "next", owner))
            expect(error is None, f"the call after {what}, raised {error!r}", clause="C8")
            found = await image(plain, scope)
            outcomes = [
                follower.model(one, scope.id, "next")
                for one in (before, mutation.model(before, scope.id, "cut"))
            ]
            if mutation.name != "delete_task":  # of many steps, and cut in their middle
                expect(found in outcomes, f"{what}, and the next write left {found}", clause="F6")
            await expect_image(plain, scope, found, f"data a moment after {what}", clause="F6")


@check("X2", "X1", "C8", tier="faults", needs=["endpoints"])
async def a_read_cancelled_at_an_exchange_disturbs_no_other(context: Context) -> None:
    """Cancelled while one of its requests, or a reply, is under way, a read reaches its caller as
    cancelled, and the calls after it, one by one and at once, get their own answers.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_through(network)
    images: dict[Scope, Image] = {}
    for number, kind in enumerate((*KINDS.values(), *KINDS.values())):
        scope = Scope(kind, context.new_id(kind))
        images[scope] = await fill(plain, scope, f"mark {number}")
    victim = next(iter(images))
    tasks = client.persistence
    reads: dict[str, Callable[[], Awaitable[object]]] = {
        "load_task_state": lambda: tasks.load_task_state(victim.id),
        "load_api_messages": lambda: tasks.load_api_messages(victim.id),
        "list_task_states": tasks.list_task_states,
        "claim_task": lambda: tasks.claim_task(context.new_id("new")),
        "ping": client.ping,
    }
    for name, read in reads.items():
        for delivered in (False, True):
            for number in range(3):
                hold = Hold(delivered=delivered)
                network.script.arm(hold)
                call = asyncio.ensure_future(begin(read))
                await hold.arrived_or(call)
                network.script.disarm()
                if not hold.has_arrived:  # It asks nobody.
                    await call
                    break
                if not call.cancel():  # It is done: the backend itself sent what is held.
                    await hold.release()
                    continue
                await asyncio.wait([call], timeout=20)
                what = f"{name}, cancelled while it waited for its answer"
                expect(call.cancelled(), f"{what}, was not told that it was: {call}", clause="X1")
                release = asyncio.ensure_future(hold.release())
                if number == 1:
                    await release
                for scope, wanted in images.items():
                    await expect_image(client, scope, wanted, f"data read after {what}")
                found = await asyncio.gather(*(image(client, scope) for scope in images))
                expect(found == list(images.values()), f"reads after {what} were mixed up")
                await release


_LATE: Final[dict[str, Fault]] = {
    "late requests": Delay(request=0.01),
    "late replies": Delay(reply=0.01),
    "messages in pieces": Slow(seconds=0.01),
}


@check_each(_LATE, "E2", "A2", tier="faults", needs=["endpoints"])
async def a_slow_network_only_takes_time(context: Context, fault: Fault) -> None:
    """Messages that are late or come in pieces, but in time, make no difference."""
    plain = await context.open()
    network = await context.network()
    client = await context.open_through(network)
    for kind in KINDS.values():
        scope = Scope(kind, context.new_id(kind))
        owner = await claim(client, scope)
        now = Image()
        for number, mutation in enumerate(MUTATIONS.values()):
            if mutation.kind != kind or (mutation.needs_state and now.state is None):
                continue
            what = f"{mutation.name} over a slow network"
            # Not all of a call with hundreds of messages, which would take all of its time.
            network.script.arm(fault, times=20)
            error = await error_of(mutation.apply(client, scope.id, f"m{number}", owner))
            network.script.disarm()
            expect(error is None, f"{what} raised {error!r}")
            now = mutation.model(now, scope.id, f"m{number}")
            await expect_image(plain, scope, now, f"data after {what}", clause="A2")


@check("C8", "E2", "E5", tier="faults", needs=["endpoints"])
async def connections_closed_while_idle_cost_no_owner_anything(context: Context) -> None:
    """If all connections were closed or reset while nothing was under way, reads, claims and an
    owner's mutations work at once; what has no owner is told truly.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_through(network)

    async def closed() -> bool:
        return not network.connections

    async def break_idle(*, reset: bool) -> None:
        scopes = [Scope("run", context.new_id("run")) for _ in range(2)]
        await asyncio.gather(*(fill(client, scope, "warm") for scope in scopes))
        await network.break_all(reset=reset)
        await eventually(closed, "all connections are closed")
        await asyncio.sleep(0)  # the client's side of the loop hears of it, too

    for mutation in list(MUTATIONS.values())[:: 1 if context.settings.thorough else 3]:
        for owned in (True, False):
            reset = context.rng.random() < 0.5
            scope = mutation.scope(context.new_id(mutation.kind))
            owner = await claim(plain, scope) if owned else None
            before = await fill(plain, scope, "base", owner)
            what = f"{'claimed' if owned else 'unclaimed'} {mutation.name} on closed connections"
            await break_idle(reset=reset)
            error = await error_of(mutation.apply(client, scope.id, "new", owner))
            if owned or mutation.name.startswith("append"):
                expect(error is None, f"{what} raised {error!r}")
            told = error is None or isinstance(error, OutcomeUnknownError | UnavailableError)
            expect(told, f"{what} raised {error!r}", clause="E2")
            after = mutation.model(before, scope.id, "new")
            judge(what, error, await image(plain, scope), before, after)
    for kind in KINDS.values():
        scope = Scope(kind, context.new_id(kind))
        wanted = await fill(plain, scope, "base")
        await break_idle(reset=kind == "task")
        await expect_image(client, scope, wanted, f"a {kind} read on closed connections")
        await break_idle(reset=kind == "run")
        owner = await _claimed(client, scope)
        await expect_image(plain, scope, wanted, f"a {kind} after a claim on closed connections")
        await fill(client, scope, "next", owner)


async def _claimed(client: outlast.Backend, scope: Scope) -> outlast.Claim:
    owners: list[outlast.Claim] = []

    async def take() -> None:
        owners.append(await claim(client, scope))

    error = await error_of(take())
    expect(error is None, f"a claim on closed connections raised {error!r}")
    return owners[0]
