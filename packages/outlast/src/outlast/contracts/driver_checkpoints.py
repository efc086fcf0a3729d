"""`StreamCheckpointStore` on top of any `Driver`."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from functools import partial

import msgspec

from outlast.contracts.checkpoints import StreamCheckpointStore
from outlast.contracts.claim import (
    Claim,
    check_at_least,
    check_if_epoch,
    check_scope,
    claim_id_or_new,
)
from outlast.contracts.records import Records, micros
from outlast.contracts.runs import remove_runs
from outlast.driver import MAX_EPOCH, Index, Scope, Value, Where
from outlast.errors import FencedError, OutcomeUnknownError, OutlastError, UnavailableError
from outlast.models import StreamCheckpoint
from outlast.values import check_bool, check_id, check_record


class DriverCheckpoints(StreamCheckpointStore):
    """Keeps stream checkpoints through a driver; see the contract."""

    def __init__(self, records: Records) -> None:
        """Serve from a backend's driver."""
        self._records = records
        self._calls = records.calls
        self._driver = records.driver

    async def claim(
        self,
        run_id: str,
        *,
        thread_id: str | None = None,
        claim_id: str | None = None,
        at_least: int | None = None,
        if_epoch: int | None = None,
    ) -> Claim:
        with self._calls.describing("claim", run_id):
            scope = check_scope(Scope("run", run_id), "run_id", None)
            parent = None if thread_id is None else check_id(thread_id, "thread_id")
            identity = claim_id_or_new(claim_id)
            epoch = check_at_least(at_least, MAX_EPOCH)
            known = check_if_epoch(if_epoch, MAX_EPOCH)
        fence, value = await self._records.claim(
            "claim", scope, identity, at_least=epoch, if_epoch=known, parent=parent
        )
        with self._calls.describing("claim", run_id):
            try:
                checkpoint = self._decode(value)
            except OutlastError as error:
                error.applied = True  # The epoch was raised, whatever the checkpoint is.
                raise
        return Claim(scope, fence.epoch, fence.claim_id, seq=fence.seq, checkpoint=checkpoint)

    async def get(self, run_id: str) -> StreamCheckpoint | None:
        with self._calls.describing("get", run_id):
            scope = check_scope(Scope("run", run_id), "run_id", None)
        value = await self._records.read("get", scope)
        with self._calls.describing("get", run_id):
            return self._decode(value)

    async def put(self, checkpoint: StreamCheckpoint, *, claim: Claim | None = None) -> None:
        with self._calls.describing("put", getattr(checkpoint, "run_id", None)):
            checked = check_record(checkpoint, StreamCheckpoint, "checkpoint")
            scope = check_scope(Scope("run", checked.run_id), "checkpoint.run_id", claim)
            now = self._records.now()
            data = self._records.encode(msgspec.structs.replace(checked, updated_at=now))
            index = Index(checked.thread_id, None, micros(now, "updated_at") or 0)
        write = partial(self._driver.write, scope, "checkpoint", data, index=index)
        await self._calls.send("put", scope, claim, write)

    async def delete(self, run_id: str, *, claim: Claim | None = None) -> None:
        with self._calls.describing("delete", run_id):
            scope = check_scope(Scope("run", run_id), "run_id", claim)
        await self._calls.send("delete", scope, claim, partial(self._driver.remove, scope))

    async def delete_thread(self, thread_id: str, *, force: bool = False) -> int:
        with self._calls.describing("delete_thread", thread_id):
            check_id(thread_id, "thread_id")
            check_bool(force, "force")
        has_begun = False

        def step() -> None:
            nonlocal has_begun
            has_begun = True

        with self._calls.describing("delete_thread", thread_id), self._calls.as_one():
            try:
                if force:
                    return await remove_runs(
                        self._records, "delete_thread", thread_id, task_epoch=None, step=step
                    )
                return await self._remove_unclaimed(thread_id, step)
            except UnavailableError as error:
                if not has_begun:
                    raise
                raise OutcomeUnknownError(error.message) from error
            except OutlastError as error:
                if has_begun and error.applied is False:
                    error.applied = None  # In part, it is applied (E2).
                raise

    async def _remove_unclaimed(self, thread_id: str, step: Callable[[], None]) -> int:
        where = Where(parent=thread_id)
        found = [item async for item in self._records.scan("delete_thread", "run", where)]
        for item in found:
            if item.value.epoch and self._records.live(item.value) is not None:
                raise FencedError(
                    "claimed",
                    item.value.epoch,
                    f"claimed: run {item.id!r} is owned through a claim, nothing was removed; "
                    "pass force=True to fence the owners and remove all",
                )
        removed = 0
        for item in found:
            if item.value.epoch:
                continue  # It has expired: its owner alone may touch what nobody sees.
            scope = Scope("run", item.id)
            await self._calls.send(
                "delete_thread", scope, None, partial(self._driver.remove, scope)
            )
            step()
            removed += self._records.live(item.value) is not None
        return removed

    async def iter_checkpoints(
        self, *, thread_id: str | None = None, updated_before: datetime | None = None
    ) -> AsyncIterator[StreamCheckpoint]:
        with self._calls.describing("iter_checkpoints", thread_id):
            where = Where(
                parent=None if thread_id is None else check_id(thread_id, "thread_id"),
                updated_before=micros(updated_before, "updated_before"),
            )
        async for item in self._records.scan("iter_checkpoints", "run", where):
            with self._calls.describing("iter_checkpoints", item.id):
                checkpoint = self._decode(item.value)
            if checkpoint is not None and _matches(checkpoint, where):
                yield checkpoint

    def _decode(self, value: Value) -> StreamCheckpoint | None:
        data = self._records.live(value)
        if data is None:
            return None
        stored = self._records.decode(data, StreamCheckpoint)
        return msgspec.structs.replace(stored, epoch=value.epoch)


def _matches(checkpoint: StreamCheckpoint, where: Where) -> bool:
    """Whether the checkpoint as returned still matches (L3)."""
    written = micros(checkpoint.updated_at, "updated_at") or 0
    return (where.parent is None or checkpoint.thread_id == where.parent) and (
        where.updated_before is None or written < where.updated_before
    )


__all__ = ["DriverCheckpoints"]
