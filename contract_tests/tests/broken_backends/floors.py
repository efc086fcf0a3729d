"""Defects of the floor that a sweep leaves: it covers less than all epochs that were swept."""

from broken_backends.kit import mutant
from outlast.backends.memory import MemoryDriver
from outlast.driver import StoredFence


class _Sweeping(MemoryDriver):
    """Sets the floor itself."""

    def lowest(self, before, swept):
        """The floor after records were swept whose epochs are these, in their order."""
        raise NotImplementedError

    async def sweep(self, *, older_than, limit, dry_run, after):
        before = self._floor
        records = dict(self._store.records)
        page = await super().sweep(older_than=older_than, limit=limit, dry_run=dry_run, after=after)
        gone = sorted(records.keys() - self._store.records.keys())
        swept = [max(records[key].fence.epoch, records[key].version) for key in gone]
        if swept:
            self._store.floors[self._namespace] = self.lowest(before, swept)
        return page


@mutant("F1", "F13", "C1")
class SweepSetsTheFloor(_Sweeping):
    """Each record that is swept sets the floor to its epoch, also if that was higher."""

    def lowest(self, before, swept):
        return swept[-1]


@mutant("F1")
class SweepForgetsEarlierSweeps(_Sweeping):
    """A sweep sets the floor to the highest epoch that it found itself."""

    def lowest(self, before, swept):
        return max(swept)


@mutant("F1", "F13", "C1")
class SweepTakesTheLastForTheHighest(_Sweeping):
    """A sweep raises the floor to the epoch of its last record, as if they came in order."""

    def lowest(self, before, swept):
        return max(before, swept[-1])


@mutant("F10")
class AClaimThatDidNotWriteMeetsTheFloor(MemoryDriver):
    """A claim repeated before its first mutation hands out another epoch if the floor has risen."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        record = self._find(scope)
        fence = StoredFence() if record is None else record.fence
        if fence.claim_id == claim_id and fence.epoch <= self._floor and not fence.seq:
            record.fence = fence._replace(claim_id="")
        return await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )
