"""What clients leave behind: connections, tasks, threads, descriptors, temporary files (C7, C8)."""

import asyncio
import gc
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import outlast
from outlast.driver import Scope
from outlast_contract.engine import Context, check
from outlast_contract.expect import error_of, eventually, expect
from outlast_contract.faults import BROKEN, Fault, Hold
from outlast_contract.faults.network import Network
from outlast_contract.mutations import MUTATIONS, claim, fill, image
from outlast_contract.workers import Workers

_WITHIN: Final = 10.0
"""Seconds in which what is closed must be gone."""


class _Held:
    """What this process holds besides connections."""

    def __init__(self) -> None:
        self.tasks: int = len(asyncio.all_tasks())
        # An event loop's own pool grows with the look-ups at once, and lasts as long as the loop.
        names = {thread.name for thread in threading.enumerate()}
        self.threads: set[str] = {name for name in names if not name.startswith("asyncio_")}
        folder = Path("/proc/self/fd")
        self.descriptors: int = len(list(folder.iterdir())) if folder.exists() else 0

    async def expect_no_more(self) -> None:
        """Wait until nothing of it has grown."""

        async def is_clean() -> bool:
            now = _Held()
            return (
                now.tasks <= self.tasks
                and now.threads <= self.threads
                and now.descriptors <= self.descriptors
            )

        what = f"at most {self.tasks} tasks, {self.descriptors} descriptors, {self.threads}"
        await eventually(is_clean, what, within=_WITHIN)


async def _expect_no_connection(network: Network) -> None:
    async def are_gone() -> bool:
        return not network.connections

    await eventually(are_gone, "no connection is open after closing", within=_WITHIN)


@check("C7", tier="faults", needs=["endpoints"])
async def closing_closes_every_connection(context: Context) -> None:
    """When a backend is closed, so are its connections, without the help of a garbage collector;
    its tasks, threads and descriptors are gone.
    """
    network = await context.network()
    await _live(context, network, {})  # what is loaded once, stays
    gc.collect()
    before = _Held()
    gc.disable()
    try:
        await _live(context, network, {})
        await _expect_no_connection(network)
        await before.expect_no_more()
    finally:
        gc.enable()


@check("C7", tier="faults", needs=["same store in processes"])
async def a_process_leaves_no_temporary_file(context: Context) -> None:
    """What a client puts into the directory for temporary files is gone when it is closed."""
    with tempfile.TemporaryDirectory(prefix="outlast-contract-") as folder:
        environment = {"TMPDIR": folder}
        async with Workers(context.harness, context.namespace, environment=environment) as workers:
            worker = await workers.spawn()
            for mutation in MUTATIONS.values():
                name = context.new_id(mutation.kind)
                await worker.done("claim", kind=mutation.kind, id=name)
                first = "put" if mutation.kind == "run" else "save_task_state"
                for one in (first, mutation.name):
                    await worker.done("apply", mutation=one, id=name, mark="m", owned=True)
            await worker.end()
            left = await asyncio.to_thread(os.listdir, folder)
            expect(not left, f"a process that closed its client left {left} in TMPDIR")


@check("C8", "C7", tier="faults", needs=["endpoints"])
async def failed_calls_leave_nothing_open(context: Context) -> None:
    """However calls end, cut off, lost, cancelled, a backend that is closed afterwards leaves no
    connection, task, thread or descriptor; and until then it does not pile connections up.
    """
    network = await context.network()
    await _live(context, network, BROKEN)
    await _expect_no_connection(network)
    gc.collect()
    before, most = _Held(), network.most
    for _ in range(2):
        await _live(context, network, BROKEN)
    await _expect_no_connection(network)
    text = f"a client behind failures held {network.most} connections at once, before {most}"
    expect(network.most <= 2 * most + 4, text)
    gc.collect()
    await before.expect_no_more()


async def _live(context: Context, network: Network, faults: Mapping[str, Fault]) -> None:
    """The life of one client, with faults at its calls."""
    client = await network.make(context.namespace)
    await client.open()
    scopes = [Scope("task", context.new_id("task")) for _ in range(4)]
    for number in range(2):
        # At once, so that there are several connections.
        await asyncio.gather(*(fill(client, scope, f"mark {number}") for scope in scopes))
        await asyncio.gather(*(image(client, scope) for scope in scopes))
    if faults:
        await _fail(client, network, scopes[0], faults)
    await client.aclose()


async def _fail(
    client: outlast.Backend, network: Network, scope: Scope, faults: Mapping[str, Fault]
) -> None:
    owner = await claim(client, scope)
    for number, fault in enumerate(faults.values()):
        network.script.arm(fault)
        await error_of(MUTATIONS["append_api_message"].apply(client, scope.id, f"m{number}", owner))
        network.script.disarm()
    for delivered in (False, True):
        hold = Hold(delivered=delivered)
        network.script.arm(hold)
        call = MUTATIONS["save_task_input"].apply(client, scope.id, "input", owner)
        task = asyncio.ensure_future(error_of(call))
        await hold.arrived()
        network.script.disarm()
        task.cancel()
        await asyncio.wait([task])
        await hold.release()
