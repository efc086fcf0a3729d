"""How many requests a call sends (P1)."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import outlast
from outlast.driver import Scope
from outlast_contract.engine import Context, check
from outlast_contract.expect import expect
from outlast_contract.faults.network import Network
from outlast_contract.mutations import MUTATIONS, claim, fill

_ATTEMPTS: Final = 4
"""The first ones may prepare something, and a client may ask for something else in between."""
_TRANSACTION: Final = 6
"""Requests of a short transaction, which P1 allows MySQL."""


@check("P1", tier="faults", needs=["endpoints"])
async def one_call_is_one_round_trip(context: Context) -> None:
    """In the common case each mutation of an owner and each read sends one request; an update of a
    state may read it first.
    """
    network = await context.network()
    client = await context.open_through(network)
    task, run = Scope("task", context.new_id("task")), Scope("run", context.new_id("run"))
    owners = {"task": await claim(client, task), "run": await claim(client, run)}
    for mutation in MUTATIONS.values():
        if mutation.name == "delete_task":  # of many steps
            continue
        scope = task if mutation.kind == "task" else run
        owner = owners[mutation.kind]
        counts: list[int] = []
        for number in range(_ATTEMPTS):
            await fill(client, scope, f"{mutation.name} {number}", owner)
            again = partial(mutation.apply, client, scope.id, f"again {number}", owner)
            counts.append(await _requests(network, again))
        most = _TRANSACTION if network.wire == "mysql" else 2 if mutation.needs_state else 1
        expect(min(counts) <= most, f"{mutation.name} sent {counts} requests, with a claim")
    for name, read in _reads(client, task, run, owners["task"]).items():
        counts = [await _requests(network, read) for _ in range(_ATTEMPTS)]
        expect(min(counts) == 1, f"{name} sent {counts} requests")


def _reads(
    client: outlast.Backend, task: Scope, run: Scope, owner: outlast.Claim
) -> dict[str, Callable[[], Awaitable[object]]]:
    tasks = client.persistence
    return {
        "load_task_state": lambda: tasks.load_task_state(task.id),
        "load_task_input": lambda: tasks.load_task_input(task.id),
        "load_api_messages": lambda: tasks.load_api_messages(task.id),
        "load_user_messages": lambda: tasks.load_user_messages(task.id, last=2),
        "get": lambda: client.checkpoints.get(run.id),
        "check_claim": lambda: tasks.check_claim(owner),
    }


async def _requests(network: Network, call: Callable[[], Awaitable[object]]) -> int:
    before = network.script.calls
    await call()
    return network.script.calls - before
