"""A run belongs to its task also while it has no checkpoint (C1)."""

from collections.abc import Awaitable, Callable

import outlast
from outlast.errors import FencedError
from outlast_contract.engine import Context, check_each
from outlast_contract.expect import expect, refused
from outlast_contract.mutations import checkpoint_of


async def _deleted_by_its_owner(runs: outlast.StreamCheckpointStore) -> outlast.Claim:
    owner = await runs.claim("r", thread_id="t")
    await runs.put(checkpoint_of("r", "m", "t"), claim=owner)
    await runs.delete("r", claim=owner)
    return owner


async def _claimed_after_a_deletion(runs: outlast.StreamCheckpointStore) -> outlast.Claim:
    await runs.put(checkpoint_of("r", "m", "t"))
    await runs.delete("r")
    return await runs.claim("r")


async def _claimed_after_its_thread_was_deleted(
    runs: outlast.StreamCheckpointStore,
) -> outlast.Claim:
    owner = await runs.claim("r")
    await runs.put(checkpoint_of("r", "m", "t"), claim=owner)
    await runs.delete_thread("t", force=True)
    return await runs.claim("r")


async def _claimed_again(runs: outlast.StreamCheckpointStore) -> outlast.Claim:
    await runs.claim("r", thread_id="t")
    return await runs.claim("r")


_EMPTY_RUNS = {
    "deleted by its owner": _deleted_by_its_owner,
    "claimed after a deletion": _claimed_after_a_deletion,
    "claimed after its thread was deleted": _claimed_after_its_thread_was_deleted,
    "claimed again": _claimed_again,
}


@check_each(_EMPTY_RUNS, "C1", "F2")
async def a_run_without_checkpoint_is_fenced_with_its_task(
    context: Context, made: Callable[[outlast.StreamCheckpointStore], Awaitable[outlast.Claim]]
) -> None:
    """The owner of a run whose checkpoint is gone, or did not come yet, writes none any more once
    the task is deleted.
    """
    client, other = await context.open_many(2)
    owner = await made(client.checkpoints)
    await other.persistence.delete_task("t", force=True)
    await refused(
        client.checkpoints.put(checkpoint_of("r", "late", "t"), claim=owner),
        FencedError,
        "a put for a run of a deleted task",
    )
    expect(await other.checkpoints.get("r") is None, "a run of a deleted task has a checkpoint")


__all__: list[str] = []
