"""Servers that stop, die, come back, or are changed behind their clients (D1, E6, C8, E1)."""

import asyncio
from collections.abc import Awaitable, Callable

from outlast.driver import Scope
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, expect
from outlast_contract.faults.endings import (
    PATIENCE,
    all_fail,
    expect_truth,
    prepare,
    reads_fail,
    serves_again,
)
from outlast_contract.harness import UrlHarness
from outlast_contract.mutations import KINDS, MUTATIONS, Image, claim, expect_image
from outlast_contract.recording import begun, injected, watched
from outlast_contract.restarts import survive_restarts


@check("E6", "E1", "E2", "C8", tier="faults", needs=["server"])
async def a_stopped_server_ends_calls_in_time(context: Context) -> None:
    """If the server is stopped with its connections open, every call ends within the timeout and
    says what may have been applied; when it goes on, clients are served again.
    """
    server = await context.harness.start_server()
    try:
        harness = UrlHarness(server.url, **server.options)
        async with (
            watched(await harness.open_with(context.namespace)) as plain,
            await context.open_impatient(PATIENCE, harness) as client,
        ):
            prepared = await prepare(context, plain)
            nodes = range(len(server.addresses))
            end = begun("server stopped (SIGSTOP)")
            for node in nodes:
                await asyncio.to_thread(server.stop, node)
            what = "of a stopped server"
            try:
                errors = await all_fail(client, prepared, what)
                await reads_fail(client, what)
            finally:
                for node in nodes:
                    await asyncio.to_thread(server.cont, node)
                end()
            await expect_truth(plain, prepared, errors, what)
            await serves_again(client, plain, prepared, "when the server goes on")
    finally:
        await asyncio.to_thread(server.close)


@check("D1", "F1", "F2", "C8", "E2", tier="faults", needs=["server"])
async def a_killed_server_comes_back_with_what_it_declares(context: Context) -> None:
    """Owners at work while the server is killed and started again find, as declared, everything
    that was done and every fence; what was not answered is in or not, once and for all.
    """
    server = await context.harness.start_server()
    try:
        kills = 5 if context.settings.thorough else 1
        await survive_restarts(server, kills=kills, seed=context.settings.seed)
    finally:
        await asyncio.to_thread(server.close)


async def _inflict(name: str, inflict: Callable[[], Awaitable[object]]) -> None:
    injected(name)
    await inflict()


@check_each(KINDS, "E1", "C8", "E2", tier="faults", needs=["server faults"])
async def a_change_of_the_server_costs_an_owner_nothing(context: Context, kind: str) -> None:
    """What can be done to a server at any time, such as making it forget its scripts, makes no call
    fail.
    """
    client = await context.open()
    for name, inflict in context.harness.server_faults().items():
        scope = Scope("task" if kind == "task" else "run", context.new_id(kind))
        await _inflict(name, inflict)
        owner = await claim(client, scope)
        now = Image()
        for number, mutation in enumerate(MUTATIONS.values()):
            if mutation.kind != scope.kind or (mutation.needs_state and now.state is None):
                continue
            await _inflict(name, inflict)
            error = await error_of(mutation.apply(client, scope.id, f"m{number}", owner))
            expect(error is None, f"{mutation.name} after {name} raised {error!r}")
            now = mutation.model(now, scope.id, f"m{number}")
            await _inflict(name, inflict)
            await expect_image(client, scope, now, f"data after {mutation.name} and {name}")
