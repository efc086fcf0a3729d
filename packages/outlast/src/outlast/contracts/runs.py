"""Removing the checkpoints of a task's runs, with their owners fenced before."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from outlast.contracts.claim import Claim, new_claim_id
from outlast.contracts.records import Records
from outlast.driver import Item, Scope, Value, Where
from outlast.errors import (
    CorruptDataError,
    DecryptionError,
    FencedError,
    OutlastError,
    UnavailableError,
    UnsupportedVersionError,
)
from outlast.models import StreamCheckpoint

_AT_ONCE = 16


class Tries:
    """How often what others prevent is tried: for as long as one call may take."""

    def __init__(self, timeout: float) -> None:
        """Begin with the first round."""
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        self._deadline = self._began + timeout
        self._longest = 0.0
        self.rounds: int = 1

    def is_worth_it(self) -> bool:
        """Whether another round has twice as much time as the longest took; it is begun then."""
        now = self._now()
        self._longest = max(self._longest, now - self._began)
        self._began = now
        if 2 * self._longest >= self._deadline - now:
            return False
        self.rounds += 1
        return True


async def remove_runs(
    records: Records,
    operation: str,
    thread_id: str,
    *,
    task_epoch: int | None,
    step: Callable[[], None] = lambda: None,
) -> int:
    """Remove the checkpoints of a task's runs and fence every claim of these runs.

    Under a ``task_epoch`` a run is fenced only at the epoch at which it was judged, so an owner who
    comes in between is judged anew. Runs without a checkpoint are fenced too: their owners may be
    about to write one.

    Args:
        records: The way to the driver.
        operation: For errors.
        thread_id: The task's id.
        task_epoch: Leave runs alone that a newer claim of the task took over; ``None``: none is
            newer.
        step: Called before some more runs are fenced.

    Returns:
        How many checkpoints there were.

    Raises:
        UnavailableError: Others claimed a run again and again, as long as a call may take.
    """

    async def remove(items: Sequence[Item]) -> int:
        step()
        removed = await asyncio.gather(
            *(_remove_run(records, operation, item, task_epoch) for item in items),
            return_exceptions=True,
        )
        for item, outcome in zip(items, removed, strict=True):
            if isinstance(outcome, OutlastError) and outcome.key == item.id:
                # The caller knows the task; which of its runs it was is said beside.
                outcome.key = thread_id
                outcome.message = f"run {item.id!r}: {outcome.message}"
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


async def _remove_run(records: Records, operation: str, item: Item, task_epoch: int | None) -> bool:
    scope = Scope("run", item.id)
    value = item.value
    had_checkpoint = records.live(value) is not None
    again = Tries(records.calls.timeout)
    while value.fence is not None and not _is_newer(records, value, task_epoch):
        try:
            is_removed = await _fence_and_remove(records, operation, scope, value, task_epoch)
        except FencedError as error:
            if error.reason == "lost":
                raise
            if not again.is_worth_it():
                raise UnavailableError(
                    f"run {item.id!r} was claimed by others each of the {again.rounds} times that "
                    "it was to be fenced and removed; its checkpoint may still be there"
                ) from error
        else:
            return is_removed and had_checkpoint
        await records.pause(again.rounds)
        value = await records.read(operation, scope)
    return False


async def _fence_and_remove(
    records: Records, operation: str, scope: Scope, value: Value, task_epoch: int | None
) -> bool:
    """Whether the run is without a checkpoint now, and its owner fenced."""
    claim = None
    if value.epoch:
        # The new epoch is up to the store: what it handed out since the look is not known here.
        fence, value = await records.claim(
            operation,
            scope,
            new_claim_id(),
            if_epoch=None if task_epoch is None else value.epoch,
        )
        claim = Claim(scope, fence.epoch, fence.claim_id, seq=fence.seq)
    # Its owner may have written between the judgement and the claim.
    if _is_newer(records, value, task_epoch):
        return False
    if value.data is not None:
        await records.calls.send(operation, scope, claim, partial(records.driver.remove, scope))
    return True


def _is_newer(records: Records, value: Value, task_epoch: int | None) -> bool:
    if task_epoch is None or value.data is None:
        return False
    try:
        return records.decode(value.data, StreamCheckpoint).task_epoch > task_epoch
    except (CorruptDataError, UnsupportedVersionError, DecryptionError):
        # It cannot be resumed by anyone who reads as we do; the task's owner wants it gone.
        return False


__all__ = ["Tries", "remove_runs"]
