"""Defects of deleting tasks, opening, closing and event loops."""

import asyncio
from typing import ClassVar

from broken_backends.kit import BrokenBackend, BrokenHarness, forged, mutant
from outlast.backends.memory import MemoryDriver
from outlast.contracts.driver_persistence import DriverPersistence
from outlast.driver import Scope
from outlast.errors import ClosedError, ConfigurationError


@mutant("C1")
class DeletionForgetsTheMessages(MemoryDriver):
    """delete_task forgets the messages."""

    async def remove(self, scope, *, fence):
        record = self._find(scope)
        logs = {log: dict(entries) for log, entries in record.logs.items()} if record else {}
        await super().remove(scope, fence=fence)
        if record is not None:
            record.logs.update(logs)


@mutant("C1")
class DeletionForgetsTheRuns(DriverPersistence):
    """delete_task leaves the checkpoints of the task's runs."""

    async def delete_task(self, task_id, *, claim=None, force=False):
        async def nothing(*arguments, **options):
            return
            yield

        scan, self._records.scan = self._records.scan, nothing
        try:
            await super().delete_task(task_id, claim=claim, force=force)
        finally:
            self._records.scan = scan


@mutant("C1")
class DeletionTakesNewerRuns(DriverPersistence):
    """delete_task removes runs that a newer claim of the task took over."""

    async def delete_task(self, task_id, *, claim=None, force=False):
        with self._calls.as_one():
            await super().delete_task(task_id, claim=claim, force=force)
            async for point in self._records.scan("delete_task", "run", _where(task_id)):
                scope = Scope("run", point.id)
                driver = self._records.driver
                if point.value.data is not None:
                    await driver.remove(scope, fence=forged(driver, scope, None))


def _where(task_id):
    from outlast.driver import Where

    return Where(parent=task_id)


@mutant("C1")
class DeletionRemovesRunsFirst(DriverPersistence):
    """delete_task removes the checkpoints before it looks at its claim."""

    async def delete_task(self, task_id, *, claim=None, force=False):
        driver = self._records.driver
        if isinstance(task_id, str):
            async for point in self._records.scan("delete_task", "run", _where(task_id)):
                scope = Scope("run", point.id)
                if point.value.data is not None and not point.value.epoch:
                    await driver.remove(scope, fence=None)
        await super().delete_task(task_id, claim=claim, force=force)


@mutant("C3")
class ATraceIsKept(BrokenHarness):
    """Deleted messages stay in the store, where no reader looks."""

    graves: ClassVar = {}

    class driver_class(MemoryDriver):  # noqa: D106, N801 - the kit's part and name
        async def remove(self, scope, *, fence):
            record = self._find(scope)
            logs = (
                [data for entries in record.logs.values() for data in entries.values()]
                if record
                else []
            )
            ATraceIsKept.graves.setdefault(self._namespace, []).extend(logs)
            await super().remove(scope, fence=fence)

    async def raw(self, namespace):
        graves = [("grave", data) for data in self.graves.get(namespace, [])]
        return [*await super().raw(namespace), *graves]


@mutant("C7")
class TheSecondCloseRaises(BrokenBackend):
    """The second close raises."""

    async def aclose(self):
        if self._release is not None:
            raise ClosedError("closed already")
        await super().aclose()


@mutant("C7")
class ACallAfterCloseReopens(BrokenBackend):
    """A call after close opens a new hidden connection."""

    class persistence_class(DriverPersistence):  # noqa: D106, N801 - the kit's part and name
        async def load_task_state(self, task_id):
            if self._calls.state == "closed":
                self._calls._state = "open"
                try:
                    return await super().load_task_state(task_id)
                finally:
                    self._calls._state = "closed"
            return await super().load_task_state(task_id)


@mutant("C7")
class CloseDropsWhatIsUnderWay(BrokenBackend):
    """aclose returns while calls are under way."""

    async def aclose(self):
        self._calls._state = "closed"


@mutant("C7")
class ATaskIsLeftRunning(BrokenBackend):
    """Opening starts a background task that closing forgets."""

    async def open(self):
        await super().open()
        self._pulse = asyncio.get_running_loop().create_task(asyncio.sleep(3600))


@mutant("D2")
class StrictIsIgnored(BrokenHarness):
    """Hazards are warned of, and strict=True opens all the same."""

    class driver_class(MemoryDriver):  # noqa: D106, N801 - the kit's part and name
        async def hazards(self):
            return ["an eviction policy is set"]

    async def open_with(self, namespace, **options):
        options.pop("strict", None)
        return await super().open_with(namespace, **options)


@mutant("X3")
class ASecondLoopGetsAForeignError(BrokenBackend):
    """Used from another event loop, a call fails with an error of asyncio."""

    class persistence_class(DriverPersistence):  # noqa: D106, N801 - the kit's part and name
        async def load_task_state(self, task_id):
            loop = self._calls._loop
            if loop is not None and loop is not asyncio.get_running_loop():
                raise RuntimeError("got Future attached to a different loop")
            return await super().load_task_state(task_id)


@mutant("X4")
class SetUpRaces(MemoryDriver):
    """Two set-ups at once: the second finds what it was about to create."""

    _ready: ClassVar = set()

    async def setup(self, *, create):
        key = (id(self._store), self._namespace)
        if key not in self._ready:
            await asyncio.sleep(0)
            if key in self._ready:
                raise ConfigurationError("table already exists")
            self._ready.add(key)
        await super().setup(create=create)


@mutant("X4")
class SetUpClears(MemoryDriver):
    """initialize() begins with an empty store."""

    async def setup(self, *, create):
        for space, scope in list(self._store.records):
            if space == self._namespace:
                del self._store.records[space, scope]
        await super().setup(create=create)
