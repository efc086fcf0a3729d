"""Stores that do not answer, or are not there, and come back (E1, E2, E6, C8, X1)."""

import asyncio
from typing import Any, Final

from outlast.errors import UnavailableError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, eventually, expect
from outlast_contract.faults import BlackHole, Fault
from outlast_contract.faults.endings import (
    PATIENCE,
    all_fail,
    ends,
    expect_truth,
    prepare,
    reads_fail,
    serves_again,
)
from outlast_contract.faults.kinds import Trickle, cut, lose_reply
from outlast_contract.faults.network import Network
from outlast_contract.faults.strikes import breaking, places

_LONG: Final = 60.0
_PROMPT: Final = 10.0
"""Seconds: what does not wait for the store is over by then, also on a busy machine."""

_SILENCES: Final[dict[str, Fault]] = {
    "the request is swallowed": BlackHole(delivered=False),
    "the reply is swallowed": BlackHole(delivered=True),
    "the reply arrives a byte at a time": Trickle(),
}


@check_each(_SILENCES, "E6", "E1", "E2", "C8", tier="faults", needs=["endpoints"])
async def a_black_hole_ends_in_time(context: Context, fault: Fault) -> None:
    """If nothing comes back any more, or never all of it, every call ends within the timeout and
    says whether it may have been applied; when the store answers again, so does the client.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_impatient(PATIENCE, network)
    prepared = await prepare(context, plain)
    network.script.arm(fault, times=None)
    what = "into silence"
    errors = await all_fail(client, prepared, what)
    await expect_truth(plain, prepared, errors, what)
    await reads_fail(client, what)
    network.script.disarm()
    await network.break_all()
    await serves_again(client, plain, prepared, "after the silence")


_LOSSES: Final[dict[str, Fault]] = {"every request": cut, "every reply": lose_reply}


@check_each(_LOSSES, "E2", "E1", "E5", "E6", "C8", tier="faults", needs=["endpoints"])
async def a_network_that_loses_everything_is_told_truly(context: Context, fault: Fault) -> None:
    """If each connection is closed instead of delivering a request, or its reply, every call ends
    within the timeout, and none that may have been applied is said not to have been.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_impatient(PATIENCE, network)
    prepared = await prepare(context, plain)
    network.script.arm(fault, times=None)
    what = "in a network that loses everything"
    errors = await all_fail(client, prepared, what)
    await expect_truth(plain, prepared, errors, what)
    await reads_fail(client, what)
    network.script.disarm()
    await serves_again(client, plain, prepared, "when nothing is lost any more")


@check("E2", "E1", "E6", "C8", tier="faults", needs=["endpoints"])
async def a_store_that_is_away_is_unavailable(context: Context) -> None:
    """If the store refuses connections, every call says within the timeout that nothing was
    applied; when it is back, clients find it again.
    """
    plain = await context.open()
    network = await context.network()
    # Long enough for all repetitions: a call cut off by its deadline may say that it is unknown. On
    # a busy machine it may take several attempts until one is not.
    client = await context.open_impatient(3 * PATIENCE, network)
    prepared = await prepare(context, plain)
    await network.go_down()
    what = "of a store that is away"
    await reads_fail(client, what)  # also tells the client that its connections are broken
    errors = await all_fail(client, prepared, what)
    for _ in range(5):
        if all(error.applied is False for error in errors):
            break
        errors = await all_fail(client, prepared, what)
    for one, error in zip(prepared, errors, strict=True):
        text = f"{one.name} {what} raised {error!r}; nothing was sent, so nothing was applied"
        expect(error.applied is False, text)
    await expect_truth(plain, prepared, errors, what)
    await _opening_fails(context, network, what)
    await network.come_back()
    await serves_again(client, plain, prepared, "when the store is back")


async def _opening_fails(context: Context, network: Network, what: str) -> None:
    """For all tasks that wait for it."""
    backend = await network.make(context.namespace, timeout=PATIENCE)
    openings = (ends(f"opening {what}", backend.open()) for _ in range(3))
    for error in await asyncio.gather(*openings):
        text = f"opening {what} ended with {error!r}; it must raise UnavailableError"
        expect(isinstance(error, UnavailableError), text, clause="E1")
    await backend.aclose()


async def _nothing_is_left(
    network: Network, before: set[asyncio.Task[Any]], what: str, clause: str
) -> None:
    """Wait for the last connection to be closed, and for the tasks that were begun to end: one
    that is left may connect again.
    """

    async def nothing_left() -> bool:
        return not network.connections and asyncio.all_tasks() <= before

    text = f"no connection and no task is left {what}"
    await eventually(nothing_left, text, within=_PROMPT, clause=clause)


@check("E6", "E1", "C8", tier="faults", needs=["endpoints"])
async def a_deaf_server_ends_opening_and_calls_in_time(context: Context) -> None:
    """If connections are accepted and nothing is ever said on them, opening and every call end
    within the timeout; later they work.
    """
    plain = await context.open()
    network = await context.network()
    client = await context.open_impatient(PATIENCE, network)
    prepared = await prepare(context, plain)
    network.go_deaf()
    await network.break_all()
    what = "of a server that says nothing"
    await _opening_fails(context, network, what)
    await reads_fail(client, what)
    errors = await all_fail(client, prepared, what)
    await expect_truth(plain, prepared, errors, what)
    network.go_deaf(deaf=False)
    await network.break_all()
    await serves_again(client, plain, prepared, "when the server speaks again")


@check_each(_SILENCES, "E6", "E1", "C7", tier="faults", needs=["endpoints"])
async def an_opening_into_a_black_hole_leaves_nothing_behind(
    context: Context, fault: Fault
) -> None:
    """If the store is silent from the first request on, or never ends its reply, opening ends
    within the timeout; closing then leaves no connection and no task, whatever still arrives.
    """
    network = await context.network()
    before = asyncio.all_tasks()
    network.script.arm(fault, times=None)
    await _opening_fails(context, network, "into silence")
    await _nothing_is_left(network, before, "of an opening into silence, after closing", "C7")


@check("X1", "C7", tier="faults", needs=["endpoints"])
async def an_opening_that_nothing_answers_can_be_cancelled(context: Context) -> None:
    """Cancelled while the store says nothing, opening tells its caller at once, however long it
    might wait; closing then leaves no connection, and no task that would open one.
    """
    network = await context.network()
    before = asyncio.all_tasks()
    backend = await network.make(context.namespace, timeout=_LONG)
    network.go_deaf()
    opening = asyncio.ensure_future(error_of(backend.open()))

    async def has_connected() -> bool:
        return bool(network.connections) or opening.done()

    await eventually(has_connected, "opening connects to the store", within=_PROMPT)
    opening.cancel()
    await asyncio.wait([opening], timeout=_PROMPT)
    text = f"an opening that was cancelled still waits for the store after {_PROMPT:g} s"
    expect(opening.done(), text, clause="X1")
    text = "an opening that was cancelled did not end so"
    expect(opening.cancelled(), text, clause="X1")
    network.go_deaf(deaf=False)
    await network.break_all()
    await backend.aclose()
    await _nothing_is_left(network, before, "of a cancelled opening, after closing", "C7")


@check("X4", "E3", "E1", "C8", tier="faults", needs=["endpoints"])
async def a_broken_opening_can_be_repeated(context: Context) -> None:
    """Whichever message of opening the network loses, the backend opens, or says that the store is
    unavailable, keeps no connection and no task, and the next one opens.
    """
    network = await context.network()
    before = asyncio.all_tasks()
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
            await _nothing_is_left(network, before, f"after {what}", "C8")
            if not shot.hits:
                break
    async with await network.make(context.namespace) as backend:
        await backend.ping()
