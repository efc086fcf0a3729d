"""Removing the checkpoints of a task's runs, with their owners fenced before."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from outlast.contracts.claim import Claim, new_claim_id
from outlast.contracts.records import Records
from outlast.driver import MAX_EPOCH, Item, Scope, Value, Where
from outlast.errors import CorruptDataError, DecryptionError, FencedError, UnsupportedVersionError
from outlast.models import StreamCheckpoint

_AT_ONCE = 16
_ROUNDS = 10
"""How often an owner who claims the run again and again is fenced again."""


async def remove_runs(
    records: Records,
    operation: str,
    thread_id: str,
    *,
    task_epoch: int | None,
    step: Callable[[], None] = lambda: None,
) -> int:
    """Remove the checkpoints of a task's runs and fence every claim of these runs.

    A run is fenced only at the epoch at which it was judged, so an owner who comes in between is
    judged anew. Runs without a checkpoint are fenced too: their owners may be about to write one.

    Args:
        records: The way to the driver.
        operation: For errors.
        thread_id: The task's id.
        task_epoch: Leave runs alone that a newer claim of the task took over; ``None``: none is
            newer.
        step: Called before some more runs are fenced.

    Returns:
        How many checkpoints there were.
    """

    async def remove(items: Sequence[Item]) -> int:
        step()
        removed = await asyncio.gather(
            *(
                _remove_run(
                    records, operation, item, lambda value: _is_newer(records, value, task_epoch)
                )
                for item in items
            ),
            return_exceptions=True,
        )
        for outcome in removed:
            if isinstance(outcome, BaseException):
                raise outcome
        return sum(outcome is True for outcome in removed)

    count = 0
    items: list[Item] = []
    async for item in records.scan(operation, "run", Where(parent=thread_id, with_empty=True)):
        items.append(item)
        if len(items) == _AT_ONCE:
            count += await remove(items)
            items.clear()
    return count + (await remove(items) if items else 0)


async def _remove_run(
    records: Records, operation: str, item: Item, is_newer: Callable[[Value], bool]
) -> bool:
    scope = Scope("run", item.id)
    value = item.value
    had_checkpoint = records.live(value) is not None
    for round_number in range(_ROUNDS):
        if is_newer(value) or value.fence is None:
            return False
        try:
            await _fence_and_remove(records, operation, scope, value, is_newer)
        except FencedError as error:
            if error.reason == "lost" or round_number + 1 == _ROUNDS:
                raise
            value = await records.read(operation, scope)
        else:
            return had_checkpoint
    raise AssertionError("unreachable")


async def _fence_and_remove(
    records: Records,
    operation: str,
    scope: Scope,
    value: Value,
    is_newer: Callable[[Value], bool],
) -> None:
    claim = None
    if value.epoch:
        epoch = value.epoch + 1
        fence, value = await records.claim(
            operation, scope, new_claim_id(), at_least=epoch if epoch <= MAX_EPOCH else None
        )
        claim = Claim(scope, fence.epoch, fence.claim_id, seq=fence.seq)
    # Its owner may have written between the judgement and the claim.
    if value.data is not None and not is_newer(value):
        await records.calls.send(operation, scope, claim, partial(records.driver.remove, scope))


def _is_newer(records: Records, value: Value, task_epoch: int | None) -> bool:
    if task_epoch is None or value.data is None:
        return False
    try:
        return records.decode(value.data, StreamCheckpoint).task_epoch > task_epoch
    except (CorruptDataError, UnsupportedVersionError, DecryptionError):
        # It cannot be resumed by anyone who reads as we do; the task's owner wants it gone.
        return False


__all__ = ["remove_runs"]
