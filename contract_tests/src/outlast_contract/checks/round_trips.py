"""How often a call goes to the store and back (P1)."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import outlast
from outlast.driver import Scope
from outlast_contract.engine import Context, check
from outlast_contract.expect import expect
from outlast_contract.faults.network import Network
from outlast_contract.mutations import MUTATIONS, claim, fill

_ATTEMPTS: Final = 20
"""The first ones may prepare something, and others may make a server forget that meanwhile."""
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
        most = _TRANSACTION if network.wire == "mysql" else 2 if mutation.needs_state else 1
        counts: list[int] = []
        while len(counts) < _ATTEMPTS and (not counts or counts[-1] > most):
            await fill(client, scope, f"{mutation.name} {len(counts)}", owner)
            again = partial(mutation.apply, client, scope.id, f"again {len(counts)}", owner)
            counts.append(await _round_trips(network, again))
        expect(counts[-1] <= most, f"{mutation.name} made {counts} round trips, with a claim")
    for name, read in _reads(client, task, run, owners["task"]).items():
        counts = []
        while len(counts) < _ATTEMPTS and (not counts or counts[-1] != 1):
            counts.append(await _round_trips(network, read))
        expect(counts[-1] == 1, f"{name} made {counts} round trips")


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


async def _round_trips(network: Network, call: Callable[[], Awaitable[object]]) -> int:
    script = network.script
    before = script.calls + script.asked
    await call()
    return script.calls + script.asked - before
