"""Defects of ownership: claims, epochs, refusals, late copies."""

import asyncio
import time

from broken_backends.kit import BrokenBackend, BrokenHarness, forged, mutant
from outlast.backends import memory
from outlast.backends.memory import MemoryDriver
from outlast.contracts.driver_checkpoints import DriverCheckpoints
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.driver import StoredFence, admit, next_claim
from outlast.errors import FencedError, UnavailableError


@mutant("F2", "F5", "F7", "F8", "F12", "C1", "C6", "F13")
class PutNeverCompares(MemoryDriver):
    """put never compares epochs."""

    async def write(self, scope, register, data, *, fence, **options):
        if scope.kind == "run":
            fence = forged(self, scope, fence)
        return await super().write(scope, register, data, fence=fence, **options)


@mutant("F2", "F5", "F7", "F8", "F12", "C1", "F13")
class DeleteNeverCompares(MemoryDriver):
    """delete never compares epochs."""

    async def remove(self, scope, *, fence):
        await super().remove(scope, fence=forged(self, scope, fence))


@mutant("F1", "F2", "F4", "F6", "F7", "F8", "F13", "S1", "C1", "C2", "C5", "E2", "X1")
class DeleteDropsTheRecord(MemoryDriver):
    """delete removes the record; the next claim starts at 1 again."""

    async def remove(self, scope, *, fence):
        await super().remove(scope, fence=fence)
        self._store.records.pop((self._namespace, scope), None)


@mutant("F2", "F5", "F13", "C1")
class ComparesInTheClient(MemoryDriver):
    """Reads the epoch, compares in the client, then writes."""

    async def write(self, scope, register, data, *, fence, **options):
        record = self._find(scope)
        if admit(record.fence if record else None, fence):
            await asyncio.sleep(0)
            fence = forged(self, scope, fence)
        return await super().write(scope, register, data, fence=fence, **options)


@mutant("F1", "F9", "F13")
class ClaimReadsThenWrites(MemoryDriver):
    """claim = read, add one, write."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        record = self._find(scope)
        stored = record.fence if record else None
        fence = next_claim(stored, claim_id, at_least, self._floor, if_epoch)
        await asyncio.sleep(0)
        with self._store.lock:
            record = self._find(scope) or self._add(scope)
            record.fence = fence
            record.changed = time.monotonic()
            value = memory._value(record, memory.PRIMARY[scope.kind])
            if parent is not None and value.data is None:
                record.index = record.index._replace(parent=parent)
            return value


@mutant("F2", "F1", "F5", "F7", "F11", "A8", "C1", "C6", "F13")
class ToleratesTheLastEpoch(MemoryDriver):
    """Refuses only epochs older than stored - 1."""

    def _admit(self, scope, fence):
        record = self._find(scope)
        if fence is not None and record is not None and fence.epoch == record.fence.epoch - 1:
            return record, True
        return super()._admit(scope, fence)


@mutant("F1", "F2", "F10", "F13", "C1")
class TheEpochIsAClock(MemoryDriver):
    """The epoch is the claimer's clock; clocks differ."""

    _clients = 0

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        TheEpochIsAClock._clients += 1
        self._skew = 40 * (TheEpochIsAClock._clients % 5)

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        record = self._find(scope)
        if at_least is None and not (record and record.fence.claim_id == claim_id):
            with self._store.lock:
                record = record or self._add(scope)
                epoch = int(time.time() * 1000) - self._skew
                record.fence = StoredFence(epoch, claim_id)
                record.changed = time.monotonic()
        return await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )


@mutant("F6", "F7", "F10")
class ALateCopyIsAccepted(MemoryDriver):
    """A late duplicate of an older mutation of the same claim overwrites a newer one."""

    def _admit(self, scope, fence):
        record = self._find(scope)
        if fence and record and fence[:2] == record.fence[:2] and fence.op != record.fence.op:
            return record, True
        return super()._admit(scope, fence)


@mutant("F6")
class TheNumberIsNotStored(MemoryDriver):
    """A done append that changed nothing does not store its number."""

    async def append(self, scope, log, entries, *, fence, present=()):
        if not entries and fence is not None:
            self._admit(scope, fence)
            return []
        return await super().append(scope, log, entries, fence=fence, present=present)


@mutant("E2", "F6", "F7")
class ARepetitionIsFenced(MemoryDriver):
    """A lost reply followed by the automatic retry reports Fenced to the rightful owner."""

    def _admit(self, scope, fence):
        record, is_new = super()._admit(scope, fence)
        if not is_new:
            raise FencedError("superseded", record.fence.epoch)
        return record, is_new


@mutant("A2", "F6", "E2")
class ARepetitionIsAppliedAgain(MemoryDriver):
    """The retry after a lost reply is applied a second time, on top of what came between."""

    async def append(self, scope, log, entries, *, fence, present=()):
        record = self._find(scope)
        if record is not None and fence is not None and fence.op == record.fence.op:
            again = [entry._replace(id=f"{entry.id} again") for entry in entries]
            record.logs.setdefault(log, {}).update(again)
            return []
        return await super().append(scope, log, entries, fence=fence, present=present)


@mutant("E1", "F2", "F6", "F7", "F8", "F10", "F12", "C1", "C6")
class PutGivesUpSilently(BrokenBackend):
    """put logs and returns when it is refused or the store is away."""

    class checkpoints_class(DriverCheckpoints):  # noqa: D106, N801 - the kit's part and name
        async def put(self, checkpoint, *, claim=None):
            try:
                await super().put(checkpoint, claim=claim)
            except (FencedError, UnavailableError):
                return


@mutant("E1", "F2", "F6", "F7", "F8", "F10", "F11", "F12")
class ARefusedSaveReturns(DriverPersistence):
    """A refused save returns normally."""

    async def save_task_state(self, task_id, state, *, claim=None):
        try:
            await super().save_task_state(task_id, state, claim=claim)
        except FencedError:
            return


@mutant("F3", "F2", "F5", "F8", "F10", "S3", "L3", "V1", "V8", "C1")
class ClaimClearsTheCheckpoint(MemoryDriver):
    """Claiming clears the checkpoint that the claimer came to resume from."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        value = await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )
        if scope.kind == "run":
            self._find(scope).registers.clear()
            return value._replace(data=None, age=0.0)
        return value


@mutant(
    "F4", "F2", "F7", "F10", "F12", "S1", "S3", "V2", "V3", "V4", "I1", "I2", "I3", "I4", "C6", "X2"
)
class ReadsAreCached(MemoryDriver):
    """A client reads registers from a cache of its own for a while, until it writes itself."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self._cache = {}

    async def read(self, scope, register):
        value, uses = self._cache.get((scope, register), (None, 0))
        if uses == 0:
            value, uses = await super().read(scope, register), 3
        self._cache[scope, register] = (value, uses - 1)
        return value

    async def claim(self, scope, claim_id, **options):
        self._cache.clear()
        return await super().claim(scope, claim_id, **options)

    def _admit(self, scope, fence):
        self._cache.clear()
        return super()._admit(scope, fence)


@mutant("F5")
class TheSnapshotIsReadFirst(MemoryDriver):
    """claim reads the snapshot first and raises the epoch in a second step."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        early = await self.read(scope, memory.PRIMARY[scope.kind])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        value = await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )
        return value._replace(data=early.data, version=early.version, age=early.age)


@mutant("F7", "F6")
class DeletionForgetsTheNumber(MemoryDriver):
    """The tombstone keeps the epoch and not the number: a late copy brings deleted data back."""

    async def remove(self, scope, *, fence):
        await super().remove(scope, fence=fence)
        record = self._find(scope)
        if record is not None:
            record.fence = record.fence._replace(seq=0, op="")


@mutant("F8", "A8", "C1")
class UnclaimedIsAlwaysFine(MemoryDriver):
    """An unclaimed mutation is accepted although somebody owns the scope."""

    def _admit(self, scope, fence):
        if fence is None:
            return self._find(scope), True
        return super()._admit(scope, fence)


@mutant("F8")
class DeletionEndsOwnership(MemoryDriver):
    """A tombstone counts as unclaimed."""

    def _admit(self, scope, fence):
        record = self._find(scope)
        if fence is None and record is not None and record.is_empty:
            return record, True
        return super()._admit(scope, fence)


@mutant("F9", "E2")
class AnOutsideEpochIsRoundedUp(MemoryDriver):
    """at_least is taken for a lower bound: the epoch is the larger of it and the next one."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        record = self._find(scope)
        if at_least is not None and record is not None:
            at_least = max(at_least, record.fence.epoch + 1)
        return await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )


@mutant("F9")
class AnOutsideEpochMeetsTheFloor(MemoryDriver):
    """at_least is compared with the floor of swept records."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        if at_least is not None and at_least <= self._floor:
            raise FencedError("superseded", self._floor)
        return await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )


@mutant("F10")
class ARepeatedClaimIsANewOne(MemoryDriver):
    """claim repeated with the stored claim_id hands out another epoch."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        record = self._find(scope)
        if record is not None and record.fence.claim_id == claim_id:
            record.fence = record.fence._replace(claim_id="")
        return await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )


@mutant("F10")
class ARepeatedClaimStartsAgain(MemoryDriver):
    """claim repeated with the stored claim_id sets the stored number back to 0."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        record = self._find(scope)
        if record is not None and record.fence.claim_id == claim_id:
            record.fence = record.fence._replace(seq=0, op="")
        return await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )


@mutant("F11", "F2", "F7", "F8", "F12", "A8")
class OnlyTheRegistersAreGuarded(MemoryDriver):
    """The task's claim guards state and input; the logs take every claim's appends."""

    async def append(self, scope, log, entries, *, fence, present=()):
        fence = forged(self, scope, fence)
        return await super().append(scope, log, entries, fence=fence, present=present)


@mutant("F12", "F13", "C1")
class AClaimedWriteCreates(MemoryDriver):
    """A claimed write whose scope is gone makes a new record."""

    def _admit(self, scope, fence):
        if fence is not None and self._find(scope) is None:
            self._add(scope).fence = StoredFence(fence.epoch, fence.claim_id)
        return super()._admit(scope, fence)


@mutant("F13", "F6", "F8", "F10")
class EveryRefusalSaysSuperseded(MemoryDriver):
    """Each refusal gives the same reason."""

    def _admit(self, scope, fence):
        try:
            return super()._admit(scope, fence)
        except FencedError as error:
            raise FencedError("superseded", error.stored_epoch) from None


@mutant("F1", "F13", "S1", "C1")
class SweepForgetsTheFloor(MemoryDriver):
    """A sweep removes tombstones without raising the floor."""

    async def sweep(self, *, older_than, limit, dry_run, after):
        before = dict(self._store.floors)
        page = await super().sweep(older_than=older_than, limit=limit, dry_run=dry_run, after=after)
        self._store.floors = before
        return page


@mutant("F2")
class TheClaimIdIsNotCompared(MemoryDriver):
    """Epochs are compared and claim ids are not: whoever has the number may write."""

    def _admit(self, scope, fence):
        record = self._find(scope)
        if fence is not None and record is not None and record.fence.epoch == fence.epoch:
            fence = fence._replace(claim_id=record.fence.claim_id)
        return super()._admit(scope, fence)


@mutant("C6", "F12", "F13")
class ExpiryRemovesTheRecord(BrokenHarness):
    """The payload's expiry removes the whole record; put creates a missing record."""

    class driver_class(MemoryDriver):  # noqa: D106, N801 - the kit's part and name
        ttl = None

        def _find(self, scope):
            record = super()._find(scope)
            if record is None or self.ttl is None or scope.kind != "run":
                return record
            register = record.registers.get("checkpoint")
            if register and register.data and time.monotonic() - register.written > self.ttl:
                del self._store.records[self._namespace, scope]
                return None
            return record

        def _admit(self, scope, fence):
            if fence is not None and self._find(scope) is None and scope.kind == "run":
                self._add(scope).fence = StoredFence(fence.epoch, fence.claim_id)
            return super()._admit(scope, fence)

    async def open_with(self, namespace, **options):
        backend = await super().open_with(namespace, **options)
        if options.get("checkpoint_ttl"):
            backend.driver.ttl = options["checkpoint_ttl"].total_seconds()
        return backend


@mutant("C6")
class ExpiryIsForgotten(BrokenHarness):
    """checkpoint_ttl is accepted and has no effect."""

    async def open_with(self, namespace, **options):
        options.pop("checkpoint_ttl", None)
        return await super().open_with(namespace, **options)


@mutant("F1", "F2", "F13", "C1")
class AConditionalClaimCountsOnFromTheLook(MemoryDriver):
    """A claim with if_epoch takes the number after that one, whatever was handed out since."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        if if_epoch and at_least is None:
            at_least, if_epoch = if_epoch + 1, None
        return await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )


@mutant("F1", "F13", "C1")
class AConditionIsComparedInTheClient(MemoryDriver):
    """if_epoch is compared with what was read, and the claim follows."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        record = self._find(scope)
        if if_epoch is not None:
            next_claim(record.fence if record else None, claim_id, None, 0, if_epoch)
            await asyncio.sleep(0)
        return await super().claim(scope, claim_id, at_least=at_least, parent=parent)
