"""Defects of lists and sweeps."""

import asyncio

from broken_backends.kit import mutant
from outlast.backends.memory import MemoryDriver
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.driver import Page, SweepPage


@mutant("L1")
class ListsStopAtAThousand(DriverPersistence):
    """A list stops after 1,000."""

    async def list_task_states(self, **options):
        return (await super().list_task_states(**options))[:1000]


@mutant("L1", "C1")
class OnlyTheFirstPageIsRead(MemoryDriver):
    """A scan says that it is at its end after one page."""

    async def scan(self, kind, *, where, after, limit):
        page = await super().scan(kind, where=where, after=after, limit=limit)
        return Page(page.items, None)


@mutant("L2")
class PagesGoByOffset(DriverPersistence):
    """Pages are counted by offset: what is created or deleted meanwhile shifts them."""

    async def list_task_states(self, *, after=None, limit=None, **filters):
        if after is not None or limit is not None:
            return await super().list_task_states(after=after, limit=limit, **filters)
        found = []
        while True:
            everything = await super().list_task_states(**filters)
            part = everything[len(found) : len(found) + 20]
            found += part
            if len(part) < 20:
                return found
            await asyncio.sleep(0)

    async def iter_task_states(self, *, after=None, **filters):
        if after is not None:
            async for state in super().iter_task_states(after=after, **filters):
                yield state
            return
        for state in await self.list_task_states(**filters):
            yield state


@mutant("L3", "L4", "I1", "I4")
class ParentsMatchByPrefix(DriverPersistence):
    """A parent filter matches whatever begins like it."""

    async def list_task_states(self, *, parent_id=None, **options):
        if not isinstance(parent_id, str) or not parent_id:
            return await super().list_task_states(parent_id=parent_id, **options)
        found = await super().list_task_states(**options)
        return [state for state in found if (state.parent_id or "").startswith(parent_id)]


@mutant("C1", "I1")
class ThreadsMatchByPrefix(MemoryDriver):
    """Deleting a task removes the runs of all tasks that begin like it."""

    async def scan(self, kind, *, where, after, limit):
        if kind == "task" or where.parent is None:
            return await super().scan(kind, where=where, after=after, limit=limit)
        page = await super().scan(kind, where=where._replace(parent=None), after=after, limit=limit)
        items = [item for item in page.items if (item.value.parent or "").startswith(where.parent)]
        return Page(items, page.next)


@mutant("L3")
class TheTimeFilterIncludesItsBorder(MemoryDriver):
    """updated_before gives what was written before that instant, the first of it left out."""

    async def scan(self, kind, *, where, after, limit):
        if where.updated_before is not None:
            where = where._replace(updated_before=where.updated_before - 1_000_000)
        return await super().scan(kind, where=where, after=after, limit=limit)


@mutant("L4")
class AfterMustExist(MemoryDriver):
    """A list goes on behind an id only if that is still there; else it begins again."""

    async def scan(self, kind, *, where, after, limit):
        ids = [scope.id for space, scope in self._store.records if space == self._namespace]
        if after is not None and after not in ids:
            after = None
        return await super().scan(kind, where=where, after=after, limit=limit)


@mutant("L4", "L1", "L2")
class AfterIsIncluded(DriverPersistence):
    """A list that goes on behind an id begins with it, unless nothing is left."""

    async def list_task_states(self, *, after=None, limit=None, **filters):
        found = await super().list_task_states(after=after, limit=limit, **filters)
        if after is None or not found:
            return found
        head = [state for state in await super().list_task_states(**filters) if state.id == after]
        return [*head, *found]


@mutant("C5")
class SweepIgnoresTheRetentionTime(MemoryDriver):
    """A sweep removes tombstones of any age."""

    async def sweep(self, *, older_than, limit, dry_run, after):
        return await super().sweep(older_than=0, limit=limit, dry_run=dry_run, after=after)


@mutant("C5")
class ADryRunRemoves(MemoryDriver):
    """A dry run removes what it counts."""

    async def sweep(self, *, older_than, limit, dry_run, after):
        return await super().sweep(older_than=older_than, limit=limit, dry_run=False, after=None)


@mutant("C5")
class SweepStopsEarly(MemoryDriver):
    """A sweep says that it is at its end after its first page."""

    async def sweep(self, *, older_than, limit, dry_run, after):
        page = await super().sweep(older_than=older_than, limit=50, dry_run=dry_run, after=after)
        return SweepPage(page.tombstones, page.debris, None)


@mutant("C4")
class SweepRemovesWhatIsReferenced(MemoryDriver):
    """A sweep takes messages for debris while their task has no state."""

    async def sweep(self, *, older_than, limit, dry_run, after):
        if not dry_run and older_than == 0:
            for record in list(self._store.records.values()):
                for entries in record.logs.values():
                    while len(entries) > 2:
                        entries.pop(next(iter(entries)))
        return await super().sweep(older_than=older_than, limit=limit, dry_run=dry_run, after=after)


@mutant("C5")
class AClaimDoesNotRenewTheAge(MemoryDriver):
    """A claim of a record without data leaves its age as it was."""

    async def claim(self, scope, claim_id, *, at_least=None, if_epoch=None, parent=None):
        record = self._find(scope)
        changed = None if record is None else record.changed
        value = await super().claim(
            scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
        )
        if record is not None:
            record.changed = changed
        return value


@mutant("C5")
class ADeletionDoesNotRenewTheAge(MemoryDriver):
    """What was deleted a second time counts as old from the first time on."""

    async def remove(self, scope, *, fence):
        record = self._find(scope)
        changed = record.changed if record is not None and record.is_empty else None
        await super().remove(scope, fence=fence)
        if changed is not None:
            record.changed = changed
